"""One round trip with the whole verdict, from a service that must not hang on its limiter.

    pip install pymemcache
    tollgate --limits examples/limits.toml
    python examples/verdict.py [host:port]

Shows what every caller should have: a time-out, a pool, safe keys, and a decision on what happens
while the limiter does not answer.
"""

import hashlib
import socket
import sys
import time
from typing import NamedTuple

from pymemcache import PooledClient
from pymemcache.exceptions import MemcacheError

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11211"


def pool(address, timeout):
    """One connection for each thread that asks at the same time, kept open.

    The time-out is what a request may lose while the limiter is gone. Within one data centre 50 ms do;
    a pool that is empty refuses at once.
    """
    return PooledClient(
        address, max_pool_size=8, connect_timeout=timeout, timeout=timeout, no_delay=True
    )


class Verdict(NamedTuple):
    word: str
    limit: int = 0
    remaining: int = 0
    retry_ms: int = 0
    reset_ms: int = 0

    @property
    def allowed(self):
        return self.word == "ALLOW"


def hashed(text):
    """What a caller wrote, as a part of a key: a key has no blanks and at most 250 bytes. It also keeps
    names of people out of the server. Not for addresses: overrides for networks need to read them."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def take(cache, key, cost=1, *, on_failure):
    """Takes from the limit that is bound to the key; `on_failure`: allow or deny while it cannot be asked."""
    try:
        answer = cache.raw_command(f"take {key} {cost} -").decode()
        word, *numbers = answer.split(" ")[:5]
        return Verdict(word, *map(int, numbers))
    except (MemcacheError, OSError, RuntimeError, ValueError):
        # RuntimeError: all connections of the pool are in use.
        return Verdict("ALLOW" if on_failure == "allow" else "DENY")


cache = pool(ADDRESS, timeout=1)
key = f"api:{hashed('ann@example.org')}"
# So that this can be run again within the hour.
cache.delete(key, noreply=False)

first = take(cache, key, on_failure="allow")
print("first call:", first.word, first.limit, first.remaining, first.retry_ms)
assert first[:4] == ("ALLOW", 150, 149, 0)
dear = take(cache, key, 151, on_failure="allow")
print("dearer than the limit:", dear.word, dear.retry_ms)
assert not dear.allowed and dear.retry_ms == -1
rest = take(cache, key, 149, on_failure="allow")
over = take(cache, key, on_failure="allow")
print("one too many:", over.word, over.remaining)
assert rest.allowed and not over.allowed and 3_500_000 < over.retry_ms <= 3_660_000

# A limiter that accepts and says nothing, as a machine does that hangs.
with socket.create_server(("127.0.0.1", 0)) as silent:
    gone = pool(silent.getsockname(), timeout=0.2)
    start = time.monotonic()
    # Limits for capacity fail open: better too many calls than none.
    assert take(gone, key, on_failure="allow").allowed
    # Limits against guessing fail closed: who guesses passwords must not gain by breaking the limiter.
    assert not take(gone, "login:192.0.2.7", on_failure="deny").allowed
    assert time.monotonic() - start < 5
print("no answer: calls are allowed, logins are not")
