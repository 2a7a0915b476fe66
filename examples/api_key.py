"""An API key with 150 calls an hour, and the headers that tell the caller about it.

    pip install pymemcache
    tollgate --limits examples/limits.toml
    python examples/api_key.py [host:port]
"""

import math
import sys

from pymemcache import Client
from pymemcache.exceptions import MemcacheError

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11211"
# For several threads: PooledClient. What a request may lose while the server is gone is the time-out.
cache = Client(ADDRESS, no_delay=True, connect_timeout=1, timeout=1)


def call(api_key, cost=1):
    """Status and headers of one call; a dear one may cost more than 1."""
    key = f"api:{api_key}"
    # The wait is asked for with the cost: one call may pass where ten do not.
    asked = [f"{key}#{what}" for what in ("limit", "remaining", f"retry:{cost}", "reset")]
    try:
        used = cache.incr(key, cost)
        limit, remaining, retry_ms, reset_ms = map(int, cache.get_many(asked).values())
    except (MemcacheError, OSError, ValueError):
        # It fails open: better a few calls too many than none.
        return 200, {}
    headers = {
        "X-RateLimit-Limit": limit,
        "X-RateLimit-Remaining": remaining,
        "X-RateLimit-Reset": math.ceil(reset_ms / 1000),
    }
    if used <= limit:
        return 200, headers
    if retry_ms < 0:
        # A call that costs more than the whole limit never passes.
        return 429, headers
    # At least a second: units may have come back since the refusal.
    return 429, headers | {"Retry-After": max(1, math.ceil(retry_ms / 1000))}


# So that this can be run again within the hour.
cache.delete("api:k-1f9a", noreply=False)

answers = [call("k-1f9a") for _ in range(153)]
for number in (1, 2, 150, 151):
    print(f"call {number}:", *answers[number - 1])
assert [status for status, _ in answers] == [200] * 150 + [429] * 3
assert answers[0][1]["X-RateLimit-Remaining"] == 149
assert answers[149][1]["X-RateLimit-Remaining"] == 0
assert 3500 < answers[150][1]["Retry-After"] <= 3660

# A refusal consumed nothing: what is given back is there for the next.
cache.decr("api:k-1f9a", 10)
status, headers = call("k-1f9a", cost=11)
assert status == 429 and headers["Retry-After"] >= 1
status, headers = call("k-1f9a", cost=151)
assert status == 429 and "Retry-After" not in headers
assert call("k-1f9a", cost=10)[0] == 200
print("after 10 were given back: 11 refused, 10 allowed")
