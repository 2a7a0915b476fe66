"""python-memcached: trailing blanks, pipelined `set_multi`, stats of slabs."""

import memcache
from checks import HOST, KEYS, LARGE, PORT, TOO_LARGE, UNICODE_KEY, equal, eventually, is_version

c = memcache.Client(
    [f"{HOST}:{PORT}"], socket_timeout=10, cache_cas=True, server_max_value_length=1 << 24)
c.flush_all()

for value in ("text", b"bytes", 7, 2**40, True, {"a": [1]}, ""):
    equal(f"set {value!r}", c.set("k", value), True)
    equal(f"get {value!r}", c.get("k"), value)
equal("get of nothing", c.get("nothing"), None)
equal("add over", c.add("k", "w"), 0)
equal("add", c.add("added", "w"), True)
equal("set", c.set("k", "v"), True)
equal("replace", c.replace("k", "x"), True)
equal("replace of nothing", c.replace("nothing", "x"), 0)
equal("append", c.append("k", "-end"), True)
equal("prepend", c.prepend("k", "start-"), True)
equal("append to nothing", c.append("nothing", "x"), 0)
equal("append, prepend", c.get("k"), "start-x-end")
equal("gets", c.gets("k"), "start-x-end")
equal("cas", c.cas("k", "new"), True)
equal("cas again", c.cas("k", "newer"), 0)
equal("what cas left", c.get("k"), "new")
equal("delete", c.delete("k"), 1)
equal("delete again", c.delete("k"), 0)
equal("after delete", c.get("k"), None)

equal("set of a large value", c.set("large", LARGE), True)
equal("get of a large value", c.get("large"), LARGE)
equal("set of a too large value", c.set("large", TOO_LARGE), 0)
equal("after a too large value", c.get("large"), None)
equal("a unicode key", c.set(UNICODE_KEY, "ü"), True)
equal("get of a unicode key", c.get(UNICODE_KEY), "ü")

items = {f"multi:{n}": n for n in range(KEYS)}
equal("set_multi", c.set_multi(items), [])
equal("get_multi", c.get_multi([*items, "nothing"]), items)
equal("delete_multi", c.delete_multi(list(items)), 1)
equal("after delete_multi", c.get_multi(list(items)), {})
equal("quiet set_multi", c.set_multi(items, noreply=True), [])
equal("after quiet set_multi", c.get_multi(list(items)), items)
equal("quiet delete_multi", c.delete_multi(list(items), noreply=True), 1)
equal("after quiet delete_multi", c.get_multi(list(items)), {})

equal("incr of nothing", c.incr("n"), None)
equal("decr of nothing", c.decr("n"), None)
c.set("n", 10)
equal("incr", c.incr("n", 32), 42)
equal("decr", c.decr("n", 2), 40)
equal("decr stops at zero", c.decr("n", 100), 0)
for n in range(20):
    c.set("n", "1", noreply=True)
    c.add("n", "2", noreply=True)
    c.incr("n", n, noreply=True)
    c.append("n", "0", noreply=True)
    c.touch("n", 100, noreply=True)
    c.delete("nothing", noreply=True)
    equal("get among quiet commands", c.get("n"), f"{n + 1}0")


def count():
    return c.incr("limit") or (1 if c.add("limit", "1", time=2) else c.incr("limit"))


c.set("touched", 1, time=2)
equal("touch", c.touch("touched", 100), 1)
equal("first count", count(), 1)
equal("second count", c.incr("limit"), 2)
eventually("a window ends", lambda: c.get("limit"), None)
equal("next window", count(), 1)
equal("touch keeps", c.get("touched"), 1)

((_, stats),) = c.get_stats()
is_version("version in stats", stats["version"].encode())
equal("stats curr_items", int(stats["curr_items"]) >= 1, True)
((_, settings),) = c.get_stats("settings")
equal("stats settings", "maxconns" in settings, True)
((_, slabs),) = c.get_slab_stats()
equal("stats slabs", "total_malloced" in slabs, True)
c.set("k", 1)
c.flush_all()
equal("after flush_all", c.get("k"), None)
c.quit_all()
equal("a new connection after quit", memcache.Client([f"{HOST}:{PORT}"]).set("k", 1), True)
