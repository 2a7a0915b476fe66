"""pymemcache: quiet storing by default, and the rate limiters' counters."""

import threading

import pymemcache
from checks import (
    HOST, KEYS, LARGE, PORT, TOO_LARGE, U64_MAX, UNICODE_KEY, equal, eventually, fails, is_version,
)

THREADS = 16
COUNTS = 250
# Quiet commands take 40 ms each with Nagle's algorithm, the library's default.
ROUNDS = 20


def client(**options):
    options = {"timeout": 10, "allow_unicode_keys": True, "no_delay": True, **options}
    return pymemcache.Client((HOST, PORT), **options)


def count(client, key, ttl):
    """Counts as rate limiters do: the first request creates the counter, with its window."""
    while True:
        value = client.incr(key, 1)
        if value is not None:
            return value
        if client.add(key, "1", ttl, noreply=False):
            return 1


def storing(c):
    equal("set", c.set("k", "v", noreply=False), True)
    equal("get", c.get("k"), b"v")
    equal("get of nothing", c.get("nothing"), None)
    equal("get_many of nothing", c.get_many(["nothing", "nil"]), {})
    equal("add over", c.add("k", "w", noreply=False), False)
    equal("add", c.add("added", "w", noreply=False), True)
    equal("replace", c.replace("k", "x", noreply=False), True)
    equal("replace of nothing", c.replace("nothing", "x", noreply=False), False)
    equal("append", c.append("k", "-end", noreply=False), True)
    equal("prepend", c.prepend("k", "start-", noreply=False), True)
    equal("append to nothing", c.append("nothing", "x", noreply=False), False)
    equal("prepend to nothing", c.prepend("nothing", "x", noreply=False), False)
    equal("append, prepend", c.get("k"), b"start-x-end")
    value, unique = c.gets("k")
    equal("gets", value, b"start-x-end")
    equal("gets of nothing", c.gets("nothing"), (None, None))
    equal("cas", c.cas("k", "new", unique), True)
    equal("cas again", c.cas("k", "newer", unique), False)
    equal("cas of nothing", c.cas("nothing", "new", unique), None)
    equal("what cas left", c.get("k"), b"new")
    equal("delete", c.delete("k", noreply=False), True)
    equal("delete again", c.delete("k", noreply=False), False)
    equal("after delete", c.get("k"), None)
    c.set("flags", "v", flags=4_294_967_295)
    equal("flags", c.raw_command("get flags", b"END\r\n"),
          b"VALUE flags 4294967295 1\r\nv\r\n")


def sizes(c):
    equal("set of no bytes", c.set("empty", b"", noreply=False), True)
    equal("get of no bytes", c.get("empty"), b"")
    equal("set of a large value", c.set("large", LARGE, noreply=False), True)
    equal("get of a large value", c.get("large"), LARGE)
    fails("set of a too large value", pymemcache.MemcacheServerError,
          lambda: c.set("large", TOO_LARGE, noreply=False))
    equal("after a too large value", c.get("large"), None)
    c.set("large", LARGE)
    c.set("large", TOO_LARGE, noreply=True)
    equal("after a quiet too large value", c.get("large"), None)
    equal("a unicode key", c.set(UNICODE_KEY, "ü".encode(), noreply=False), True)
    equal("get of a unicode key", c.get_many([UNICODE_KEY]), {UNICODE_KEY: "ü".encode()})
    longest = "k" * 250
    equal("a key of 250 bytes", c.set(longest, "v", noreply=False), True)
    equal("get of a key of 250 bytes", c.get(longest), b"v")


def multi_get(c):
    items = {f"multi:{n}": f"value {n}".encode() for n in range(KEYS)}
    equal("set_many", c.set_many(items, noreply=False), [])
    asked = [key for n in range(KEYS) for key in (f"multi:{n}", f"missing:{n}")]
    equal("get_many", c.get_many(asked), items)
    equal("its order", list(c.get_many(asked)), list(items))
    found = c.gets_many(asked)
    equal("gets_many", {key: value for key, (value, _) in found.items()}, items)
    equal("uniques are unique", len({unique for _, unique in found.values()}), KEYS)
    equal("delete_many", c.delete_many(asked, noreply=False), True)
    equal("after delete_many", c.get_many(asked), {})


def counters(c):
    equal("incr of nothing", c.incr("n", 1), None)
    equal("decr of nothing", c.decr("n", 1), None)
    c.set("n", "10", flags=3)
    equal("incr", c.incr("n", 32), 42)
    equal("decr", c.decr("n", 2), 40)
    equal("decr stops at zero", c.decr("n", 100), 0)
    c.set("n", str(U64_MAX))
    equal("incr wraps", c.incr("n", 1), 0)
    equal("incr by the most", c.incr("n", U64_MAX), U64_MAX)
    c.set("n", "100")
    equal("decr to fewer digits", c.decr("n", 1), 99)
    equal("digits keep their room", c.get("n").strip(), b"99")
    c.set("n", "words")
    fails("incr of words", pymemcache.MemcacheClientError, lambda: c.incr("n", 1))
    fails("incr by a negative", pymemcache.MemcacheClientError, lambda: c.incr("n", -1))
    equal("after errors", c.get("n"), b"words")


def quietly(c):
    """A surplus or missing reply would shift all later ones."""
    c.flush_all()
    for n in range(ROUNDS):
        c.set("q", "0", expire=100)
        c.add("q", "1")
        c.replace("q", "7")
        c.incr("q", 1, noreply=True)
        c.decr("q", 1, noreply=True)
        c.incr("nothing", 1, noreply=True)
        c.append("q", str(n))
        c.prepend("q", "1")
        c.touch("q", 100)
        c.delete("nothing")
        c.cas("q", "stale", b"1", noreply=True)
        equal("get among quiet commands", c.get("q"), f"17{n}".encode())
        equal("set among quiet commands", c.set("r", "v", noreply=False), True)
    equal("set_many, quiet", c.set_many({f"q{n}": str(n) for n in range(KEYS)}), [])
    equal("after it", len(c.get_many([f"q{n}" for n in range(KEYS)])), KEYS)
    c.delete_many([f"q{n}" for n in range(KEYS)])
    equal("quiet delete_many", c.get_many([f"q{n}" for n in range(KEYS)]), {})


def expiry(c):
    c.set("gone", "v", expire=-1)
    equal("a negative time is over", c.get("gone"), None)
    c.set("gone", "v")
    equal("touch", c.touch("gone", -1, noreply=False), True)
    equal("after touch", c.get("gone"), None)
    equal("touch of nothing", c.touch("gone", 1, noreply=False), False)
    # A unix time in the past.
    c.set("gone", "v", expire=1_000_000_000)
    equal("a past unix time is over", c.get("gone"), None)
    c.set("touched", "v", expire=2)
    c.touch("touched", 100)
    c.set("month", "v", expire=60 * 60 * 24 * 30)
    equal("first count", count(c, "limit", 2), 1)
    equal("second count", c.incr("limit", 1), 2)
    eventually("a window ends", lambda: c.get("limit"), None)
    equal("next window", count(c, "limit", 100), 1)
    equal("touch keeps", c.get_many(["touched", "month"]), {"touched": b"v", "month": b"v"})


def concurrently():
    """All replies of all threads differ, and no increment is lost."""
    counts = [[] for _ in range(THREADS)]

    def work(mine):
        c = client()
        for _ in range(COUNTS):
            mine.append(count(c, "concurrent", 100))
            # The library takes a refused request back, with a quiet command.
            c.incr("undone", 2, noreply=True)
            c.decr("undone", 1, noreply=True)
        c.get("undone")
        c.quit()

    client().set("undone", "0", noreply=False)
    threads = [threading.Thread(target=work, args=(mine,)) for mine in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = THREADS * COUNTS
    equal("sum of counts", client().get("concurrent"), str(total).encode())
    equal("counts", sorted(sum(counts, [])), list(range(1, total + 1)))
    for mine in counts:
        equal("a thread sees its counts rise", mine, sorted(mine))
    equal("what was taken back", client().get("undone"), str(total).encode())


def administration(c):
    is_version("version", c.version())
    c.set("k", "v", noreply=False)
    stats = c.stats()
    equal("stats curr_items", stats[b"curr_items"] >= 1, True)
    equal("stats version", stats[b"version"], c.version())
    equal("stats settings", b"maxconns" in c.stats("settings"), True)
    equal("stats items", any(b"number" in name for name in c.stats("items")), True)
    equal("stats slabs", b"total_malloced" in c.stats("slabs"), True)
    equal("cache_memlimit", c.cache_memlimit(64), True)
    equal("flush_all", c.flush_all(noreply=False), True)
    equal("after flush_all", c.get("k"), None)
    c.set("k", "v")
    c.flush_all(100)
    equal("flush_all in a while", c.get("k"), b"v")
    c.quit()
    equal("a new connection after quit", c.get("k"), b"v")


for make in (client, lambda: client(default_noreply=False, no_delay=False)):
    c = make()
    c.flush_all()
    for part in (storing, sizes, multi_get, counters, quietly):
        part(c)
expiry(client())
concurrently()
administration(client())
pool = pymemcache.PooledClient((HOST, PORT), max_pool_size=4, timeout=10)
pool.set("pooled", "v")
equal("a pool", pool.get("pooled"), b"v")
ring = pymemcache.HashClient([(HOST, PORT)], timeout=10)
equal("set_many of a ring", ring.set_many({f"ring{n}": str(n) for n in range(KEYS)}), [])
equal("get_many of a ring", len(ring.get_many([f"ring{n}" for n in range(KEYS)])), KEYS)
