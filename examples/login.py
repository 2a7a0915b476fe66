"""A login limiter: five tries in any minute from one address, with one plain `incr`.

    pip install pymemcache
    tollgate --limits examples/limits.toml
    python examples/login.py [host:port]

The limit is the server's, by the key's name. What is refused is not counted.
"""

import sys

from pymemcache import Client
from pymemcache.exceptions import MemcacheError

TRIES = 5
ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11211"
# For several threads: PooledClient. What a request may lose while the server is gone is the time-out.
cache = Client(ADDRESS, no_delay=True, connect_timeout=1, timeout=1)


def may_try(ip):
    try:
        return cache.incr(f"login:{ip}", 1) <= TRIES
    except (MemcacheError, OSError):
        # It fails closed: who guesses passwords must not gain by breaking the limiter.
        return False


def logged_in(ip):
    """Whoever gets in starts anew."""
    cache.delete(f"login:{ip}", noreply=False)


# So that this can be run again within the minute.
for ip in ("192.0.2.7", "192.0.2.8"):
    logged_in(ip)

answers = [may_try("192.0.2.7") for _ in range(7)]
print("192.0.2.7:", *("try" if answer else "wait" for answer in answers))
assert answers == [True] * 5 + [False] * 2

wait_ms = int(cache.get("login:192.0.2.7#retry"))
print(f"192.0.2.7 may try again in {wait_ms / 1000:.0f} s")
assert 50_000 < wait_ms <= 65_000

assert may_try("192.0.2.8")
print("192.0.2.8: try")
logged_in("192.0.2.7")
assert may_try("192.0.2.7")
print("192.0.2.7, after a success: try")

assert all(may_try("10.1.2.3") for _ in range(100))
print("10.1.2.3, the office: always")
assert not may_try("203.0.113.66")
print("203.0.113.66, blocked: never")
