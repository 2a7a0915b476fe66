"""pylibmc, libmemcached from Python: types in the client flags, trailing blanks, `gets` for cas."""

import pylibmc
from checks import (
    HOST, KEYS, LARGE, PORT, TOO_LARGE, UNICODE_KEY, equal, eventually, fails, is_version,
)


def client(**behaviors):
    return pylibmc.Client([f"{HOST}:{PORT}"], binary=False, behaviors=behaviors)


def storing(c):
    for value in ("text", b"bytes", 7, 2**40, None, 1.5, {"a": [1]}, "", b""):
        equal(f"set {value!r}", c.set("k", value), True)
        found = c.get("k", "nothing")
        equal(f"get {value!r}", (type(found), found), (type(value), value))
    equal("get of nothing", c.get("nothing"), None)
    equal("set", c.set("k", b"v"), True)
    equal("add over", c.add("k", b"w"), False)
    equal("add", c.add("added", b"w"), True)
    equal("replace", c.replace("k", b"x"), True)
    equal("replace of nothing", c.replace("nothing", b"x"), False)
    equal("append", c.append("k", b"-end"), True)
    equal("prepend", c.prepend("k", b"start-"), True)
    equal("append, prepend", c.get("k"), b"start-x-end")
    equal("delete", c.delete("k"), True)
    equal("delete again", c.delete("k"), False)


def cas(c):
    c.set("k", b"v")
    value, unique = c.gets("k")
    equal("gets", value, b"v")
    equal("gets of nothing", c.gets("nothing"), (None, None))
    equal("cas", c.cas("k", b"new", unique), True)
    equal("cas again", c.cas("k", b"newer", unique), False)
    c.delete("k")
    fails("cas of nothing", pylibmc.NotFound, lambda: c.cas("k", b"newest", unique))


def sizes(c):
    equal("set of a large value", c.set("large", LARGE), True)
    equal("get of a large value", c.get("large"), LARGE)
    fails("set of a too large value", pylibmc.Error, lambda: c.set("large", TOO_LARGE))
    equal("after a too large value", c.get("large"), None)
    equal("a unicode key", c.set(UNICODE_KEY, "ü"), True)
    equal("get of a unicode key", c.get(UNICODE_KEY), "ü")
    equal("a key of 249 bytes", c.set("k" * 249, b"v"), True)
    equal("get of a key of 249 bytes", c.get("k" * 249), b"v")


def multi_get(c):
    items = {f"multi:{n}": n for n in range(KEYS)}
    equal("set_multi", c.set_multi(items), [])
    equal("get_multi", c.get_multi([*items, "nothing"]), items)
    equal("incr_multi", c.incr_multi(list(items), delta=10), None)
    equal("after incr_multi", c.get_multi(list(items)), {key: n + 10 for key, n in items.items()})
    equal("delete_multi", c.delete_multi(list(items)), True)
    equal("after delete_multi", c.get_multi(list(items)), {})
    equal("add_multi", c.add_multi({"a": 1, "b": 2}), [])
    equal("with a prefix", c.get_multi(["a", "b"], key_prefix=""), {"a": 1, "b": 2})


def counters(c):
    fails("incr of nothing", pylibmc.NotFound, lambda: c.incr("n"))
    fails("decr of nothing", pylibmc.NotFound, lambda: c.decr("n"))
    c.set("n", 10)
    equal("incr", c.incr("n", 32), 42)
    equal("decr", c.decr("n", 2), 40)
    equal("decr stops at zero", c.decr("n", 100), 0)
    equal("a counter keeps its type", c.get("n"), 0)
    c.set("n", "words")
    fails("incr of words", pylibmc.Error, lambda: c.incr("n"))
    equal("after an error", c.get("n"), "words")


def expiry(c):
    def count():
        try:
            return c.incr("limit")
        except pylibmc.NotFound:
            return 1 if c.add("limit", 1, time=2) else c.incr("limit")

    c.set("touched", 1, time=2)
    equal("touch", c.touch("touched", 100), True)
    equal("touch of nothing", c.touch("nothing", 100), False)
    equal("first count", count(), 1)
    equal("second count", c.incr("limit"), 2)
    eventually("a window ends", lambda: c.get("limit"), None)
    equal("next window", count(), 1)
    equal("touch keeps", c.get("touched"), 1)


def administration(c):
    ((name, stats),) = c.get_stats()
    equal("name in stats", f"{HOST}:{PORT}".encode() in name, True)
    is_version("version in stats", stats["version"])
    equal("stats curr_items", int(stats["curr_items"]) >= 1, True)
    # libmemcached drops unknown names.
    equal("stats settings", len(c.get_stats("settings")), 1)
    c.set("k", 1)
    equal("flush_all", c.flush_all(), True)
    equal("after flush_all", c.get("k"), None)
    c.disconnect_all()
    equal("a new connection", c.set("k", 1), True)


for behaviors in ({"cas": True}, {"cas": True, "tcp_nodelay": True}):
    c = client(**behaviors)
    c.flush_all()
    for part in (storing, cas, sizes, multi_get, counters):
        part(c)
expiry(client())
administration(client(cas=True))
quiet = client(_noreply=True)
for n in range(KEYS):
    quiet.set(f"quiet:{n}", n)
quiet.disconnect_all()
keys = [f"quiet:{n}" for n in range(KEYS)]
eventually("quiet requests", lambda: len(client().get_multi(keys)), KEYS)
