// memcached, of node: ten connections a client, one reply parser that sorts by the reply's shape.

"use strict";

const Memcached = require("memcached");
const [host, port] = process.argv.slice(2);
const KEYS = 500;
// A value that fits the default maximum of 1 MiB for an item with its key, and one that does not.
const LARGE = "l".repeat(1_000_000);
const TOO_LARGE = "t".repeat(2_000_000);
const UNICODE_KEY = "schlüssel:鍵:🔑";

const connect = () => new Memcached(`${host}:${port}`, { maxValue: 1 << 24, timeout: 10_000 });
const client = connect();

// The command as a promise.
function askOf(client, command, ...words) {
  return new Promise((done, failed) => {
    client[command](...words, (error, found) => (error ? failed(error) : done(found)));
  });
}

const ask = (command, ...words) => askOf(client, command, ...words);

function short(value) {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= 300 ? text : `${text.slice(0, 300)}... (${text.length} characters)`;
}

function equal(what, found, expected) {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`${what}: expected ${short(expected)}, found ${short(found)}`);
  }
}

async function fails(what, asked) {
  const found = await asked.then(short, () => "an error");
  equal(what, found, "an error");
}

async function storing() {
  for (const value of ["text", "", 7, { a: [1] }, true]) {
    equal("set", await ask("set", "k", value, 0), true);
    equal("get", await ask("get", "k"), value);
  }
  await ask("set", "k", Buffer.from([0, 13, 10, 255]), 0);
  equal("get of bytes", [...(await ask("get", "k"))], [0, 13, 10, 255]);
  equal("get of nothing", await ask("get", "nothing"), undefined);
  await fails("add over", ask("add", "k", "w", 0));
  equal("add", await ask("add", "added", "w", 0), true);
  equal("replace", await ask("replace", "k", "x", 0), true);
  await fails("replace of nothing", ask("replace", "nothing", "x", 0));
  equal("append", await ask("append", "k", "-end"), true);
  equal("prepend", await ask("prepend", "k", "start-"), true);
  await fails("append to nothing", ask("append", "nothing", "x"));
  const found = await ask("gets", "k");
  equal("append, prepend", found.k, "start-x-end");
  equal("cas", await ask("cas", "k", "new", found.cas, 0), true);
  equal("cas again", await ask("cas", "k", "newer", found.cas, 0), false);
  equal("what cas left", await ask("get", "k"), "new");
  equal("delete", await ask("del", "k"), true);
  equal("delete again", await ask("del", "k"), false);
}

async function sizes() {
  equal("set of a large value", await ask("set", "large", LARGE, 0), true);
  equal("get of a large value", (await ask("get", "large")) === LARGE, true);
  // After a SERVER_ERROR the library shuns the server for half a minute.
  equal("set of a too large value", await askOf(connect(), "set", "large", TOO_LARGE, 0), false);
  equal("after a too large value", await ask("get", "large"), undefined);
  equal("a unicode key", await ask("set", UNICODE_KEY, "ü", 0), true);
  equal("get of a unicode key", await ask("get", UNICODE_KEY), "ü");
  equal("a key of 250 bytes", await ask("set", "k".repeat(250), "v", 0), true);
  equal("get of a key of 250 bytes", await ask("get", "k".repeat(250)), "v");
}

async function multiGet() {
  const keys = Array.from({ length: KEYS }, (_, n) => `multi:${n}`);
  await Promise.all(keys.map((key, n) => ask("set", key, n, 0)));
  const found = await ask("getMulti", [...keys, "nothing"]);
  equal("getMulti", keys.map((key) => found[key]), keys.map((_, n) => n));
  equal("its size", Object.keys(found).length, KEYS);
}

async function counters() {
  equal("incr of nothing", await ask("incr", "n", 1), false);
  equal("decr of nothing", await ask("decr", "n", 1), false);
  await ask("set", "n", 10, 0);
  equal("incr", await ask("incr", "n", 32), 42);
  equal("decr", await ask("decr", "n", 2), 40);
  equal("decr stops at zero", await ask("decr", "n", 100), 0);
  await ask("set", "n", "words", 0);
  await fails("incr of words", ask("incr", "n", 1));
  async function count() {
    const value = await ask("incr", "limit", 1);
    if (value !== false) return value;
    return ask("add", "limit", 1, 100).then(() => 1, () => ask("incr", "limit", 1));
  }
  const counts = await Promise.all(Array.from({ length: KEYS }, count));
  equal("counts at once", counts.sort((a, b) => a - b), Array.from({ length: KEYS }, (_, n) => n + 1));
}

async function expiry() {
  await ask("set", "touched", "v", 2);
  equal("touch", await ask("touch", "touched", 100), true);
  equal("touch of nothing", await ask("touch", "nothing", 100), false);
  equal("a window", await ask("add", "window", 1, 2), true);
  equal("in the window", await ask("incr", "window", 1), 2);
  for (let n = 0; n < 500 && (await ask("get", "window")) !== undefined; n++) {
    await new Promise((done) => setTimeout(done, 20));
  }
  equal("after the window", await ask("incr", "window", 1), false);
  equal("touch keeps", await ask("get", "touched"), "v");
}

async function administration() {
  const [version] = await ask("version");
  equal(`version ${version.version} has three numbers`, /^\d+\.\d+\.\d+$/.test(version.version), true);
  equal("version's parts", [version.major, version.minor, version.bugfix].join("."), version.version);
  const [stats] = await ask("stats");
  equal("stats curr_items", stats.curr_items >= 1, true);
  const [settings] = await ask("settings");
  equal("settings", settings.maxconns > 0, true);
  const [slabs] = await ask("slabs");
  equal("slabs", Object.keys(slabs).length > 0, true);
  const [items] = await ask("items");
  equal("items", Object.keys(items).length > 0, true);
  equal("flush", await ask("flush"), [true]);
  equal("after flush", await ask("get", "added"), undefined);
}

async function main() {
  await ask("flush");
  for (const part of [storing, sizes, multiGet, counters, expiry, administration]) await part();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error instanceof Error ? error.message : error);
    process.exit(1);
  },
);
