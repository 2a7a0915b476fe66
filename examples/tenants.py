"""A tenant and its users: 30 calls a minute each, 100 for all of a tenant's users together.

    pip install pymemcache
    tollgate --limits examples/limits.toml
    python examples/tenants.py [host:port]

One `incr` on the user's key is charged to the tenant as well: both, or neither.
"""

import sys

from pymemcache import Client

USER, TENANT = 30, 100
ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11211"
# For several threads: PooledClient. What a request may lose while the server is gone is the time-out.
cache = Client(ADDRESS, no_delay=True, connect_timeout=1, timeout=1)


def call(tenant, user):
    # If the tenant has nothing left, the answer is above the user's limit as well.
    return cache.incr(f"user:{tenant}:{user}", 1) <= USER


def used(key):
    return int(cache.get(key) or 0)


users = ("ann", "bob", "cid", "dora")
for key in ["tenant:acme", *(f"user:acme:{user}" for user in users), "user:zeta:ann"]:
    cache.delete(key, noreply=False)

allowed = {user: sum(call("acme", user) for _ in range(40)) for user in users}
for user in users:
    print(f"acme, {user}: {allowed[user]} of 40")
assert list(allowed.values()) == [30, 30, 30, 10]

# What the tenant refused was not charged to the user.
print(f"acme used {used('tenant:acme')} of {TENANT}, dora {used('user:acme:dora')} of {USER}")
assert (used("tenant:acme"), used("user:acme:dora")) == (TENANT, 10)

# What one user gives back is there for another.
cache.decr("user:acme:ann", 5)
assert sum(call("acme", "dora") for _ in range(40)) == 5
print("acme, dora: 5 more, that ann gave back")
assert call("zeta", "ann")
print("zeta, ann: another tenant, another account")
