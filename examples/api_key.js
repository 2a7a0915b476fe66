// An API key with 150 calls an hour, and the headers that tell the caller about it.
//
//     npm install memcached
//     tollgate --limits examples/limits.toml
//     node examples/api_key.js [host:port]

"use strict";

const assert = require("node:assert");
const { promisify } = require("node:util");
const Memcached = require("memcached");

const client = new Memcached(process.argv[2] ?? "127.0.0.1:11211", {
  // Connections kept open, and what a request may lose while the server is gone, in milliseconds.
  poolSize: 10,
  timeout: 1000,
  retries: 0,
  // Keys have at most 250 bytes: longer ones are hashed. Then no limit matches them by name.
  maxKeySize: 250,
});
const incr = promisify(client.incr.bind(client));
const decr = promisify(client.decr.bind(client));
const getMulti = promisify(client.getMulti.bind(client));
const del = promisify(client.del.bind(client));

// Status and headers of one call; a dear one may cost more than 1.
async function call(apiKey, cost = 1) {
  const key = `api:${apiKey}`;
  // The wait is asked for with the cost: one call may pass where ten do not.
  const beside = ["limit", "remaining", `retry:${cost}`, "reset"].map((what) => `${key}#${what}`);
  let used, found;
  try {
    used = await incr(key, cost);
    found = await getMulti(beside);
  } catch {
    // It fails open: better a few calls too many than none.
    return { status: 200, headers: {} };
  }
  const [limit, remaining, retryMs, resetMs] = beside.map((name) => Number(found[name]));
  const headers = {
    "X-RateLimit-Limit": limit,
    "X-RateLimit-Remaining": remaining,
    "X-RateLimit-Reset": Math.ceil(resetMs / 1000),
  };
  if (used <= limit) return { status: 200, headers };
  // A call that costs more than the whole limit never passes.
  if (retryMs < 0) return { status: 429, headers };
  // At least a second: units may have come back since the refusal.
  return { status: 429, headers: { ...headers, "Retry-After": Math.max(1, Math.ceil(retryMs / 1000)) } };
}

async function main() {
  // So that this can be run again within the hour.
  await del("api:k-77c0");

  // All at once, over the client's ten connections: 150 pass, whichever they are.
  const answers = await Promise.all(Array.from({ length: 200 }, () => call("k-77c0")));
  const passed = answers.filter(({ status }) => status === 200).length;
  console.log(`200 calls at once: ${passed} allowed, ${200 - passed} refused`);
  assert.strictEqual(passed, 150);

  const { status, headers } = await call("k-77c0");
  console.log("one more:", status, JSON.stringify(headers));
  assert.strictEqual(status, 429);
  assert.strictEqual(headers["X-RateLimit-Remaining"], 0);
  assert(headers["Retry-After"] > 3500 && headers["Retry-After"] <= 3660);

  // A refusal consumed nothing: what is given back is there for the next.
  await decr("api:k-77c0", 10);
  const dear = await call("k-77c0", 11);
  assert.strictEqual(dear.status, 429);
  assert(dear.headers["Retry-After"] >= 1);
  assert.strictEqual((await call("k-77c0", 10)).status, 200);
  console.log("after 10 were given back: 11 refused, 10 allowed");
}

main()
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(() => client.end());
