"""aiomcache: one client over a pool of connections, many requests at once."""

import asyncio

import aiomcache
from aiomcache.exceptions import ClientException
from checks import (
    HOST, KEYS, LARGE, PORT, TOO_LARGE, U64_MAX, UNICODE_KEY, equal, is_version,
)

AT_ONCE = 50
COUNTS = 40


async def fails(what, awaitable):
    try:
        found = await awaitable
    except ClientException:
        return
    equal(what, found, "an error")


async def storing(c):
    equal("set", await c.set(b"k", b"v"), True)
    equal("get", await c.get(b"k"), b"v")
    equal("get of nothing", await c.get(b"nothing", b"default"), b"default")
    equal("add over", await c.add(b"k", b"w"), False)
    equal("add", await c.add(b"added", b"w"), True)
    equal("replace", await c.replace(b"k", b"x"), True)
    equal("replace of nothing", await c.replace(b"nothing", b"x"), False)
    equal("append", await c.append(b"k", b"-end"), True)
    equal("prepend", await c.prepend(b"k", b"start-"), True)
    value, unique = await c.gets(b"k")
    equal("append, prepend", value, b"start-x-end")
    equal("gets of nothing", await c.gets(b"nothing"), (None, None))
    equal("cas", await c.cas(b"k", b"new", unique), True)
    equal("cas again", await c.cas(b"k", b"newer", unique), False)
    equal("delete", await c.delete(b"k"), True)
    equal("delete again", await c.delete(b"k"), False)


async def sizes(c):
    equal("set of no bytes", await c.set(b"empty", b""), True)
    equal("get of no bytes", await c.get(b"empty"), b"")
    equal("set of a large value", await c.set(b"large", LARGE), True)
    equal("get of a large value", await c.get(b"large"), LARGE)
    await fails("set of a too large value", c.set(b"large", TOO_LARGE))
    equal("after a too large value", await c.get(b"large"), None)
    key = UNICODE_KEY.encode()
    equal("a unicode key", await c.set(key, b"v"), True)
    equal("get of a unicode key", await c.get(key), b"v")


async def multi_get(c):
    keys = [f"multi:{n}".encode() for n in range(KEYS)]
    equal("sets at once", await asyncio.gather(*(c.set(key, key) for key in keys)), [True] * KEYS)
    equal("multi_get", await c.multi_get(*keys, b"nothing"), (*keys, None))


async def counters(c):
    await fails("incr of nothing", c.incr(b"n"))
    await fails("decr of nothing", c.decr(b"n"))
    await c.set(b"n", b"10")
    equal("incr", await c.incr(b"n", 32), 42)
    equal("decr", await c.decr(b"n", 2), 40)
    equal("decr stops at zero", await c.decr(b"n", 100), 0)
    await c.set(b"n", str(U64_MAX).encode())
    equal("incr wraps", await c.incr(b"n"), 0)
    await c.set(b"n", b"words")
    await fails("incr of words", c.incr(b"n"))

    async def count():
        try:
            return await c.incr(b"limit")
        except ClientException:
            return 1 if await c.add(b"limit", b"1", 100) else await c.incr(b"limit")

    async def counts():
        return [await count() for _ in range(COUNTS)]

    found = await asyncio.gather(*(counts() for _ in range(AT_ONCE)))
    equal("counts at once", sorted(sum(found, [])), list(range(1, AT_ONCE * COUNTS + 1)))


async def expiry(c):
    await c.set(b"touched", b"v", 2)
    equal("touch", await c.touch(b"touched", 100), True)
    equal("touch of nothing", await c.touch(b"nothing", 100), False)
    await c.add(b"window", b"1", 2)
    equal("in the window", await c.incr(b"window"), 2)
    for _ in range(500):
        if await c.get(b"window") is None:
            break
        await asyncio.sleep(0.02)
    await fails("after the window", c.incr(b"window"))
    equal("touch keeps", await c.get(b"touched"), b"v")


async def administration(c):
    is_version("version", await c.version())
    stats = await c.stats()
    equal("stats curr_items", int(stats[b"curr_items"]) >= 1, True)
    equal("stats settings", b"maxconns" in await c.stats(b"settings"), True)
    await c.flush_all()
    equal("after flush_all", await c.get(b"added"), None)


async def main():
    c = aiomcache.Client(HOST, PORT, pool_size=8)
    await c.flush_all()
    for part in (storing, sizes, multi_get, counters, expiry, administration):
        await asyncio.wait_for(part(c), 30)
    await c.close()


asyncio.run(main())
