// rate-limiter-flexible on memcached, without limits or on keys of limits: `incr`, else `add`, and a key for the time.

"use strict";

const { Worker, isMainThread, parentPort } = require("node:worker_threads");
const Memcached = require("memcached");
const { RateLimiterMemcache } = require("rate-limiter-flexible");

const [host, port, mode] = process.argv.slice(2);
const BOUND = mode === "bound";
const WORKERS = 4;
const CALLS = 60;

const client = new Memcached(`${host}:${port}`, { timeout: 10_000 });
const hourly = new RateLimiterMemcache({
  storeClient: client, keyPrefix: "api", points: 100, duration: 3600,
});
const brief = new RateLimiterMemcache({
  storeClient: client, keyPrefix: "burst", points: 20, duration: 2,
});

function equal(what, found, expected) {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`${what}: expected ${JSON.stringify(expected)}, found ${JSON.stringify(found)}`);
  }
}

const sleep = (ms) => new Promise((done) => setTimeout(done, Math.max(0, ms)));

// Returns whether the request passes, and the time until the limit is full; the library throws
// both refusals and errors.
async function consume(limiter, key, points = 1) {
  try {
    return { passes: true, ms: (await limiter.consume(key, points)).msBeforeNext };
  } catch (told) {
    if (told instanceof Error) throw told;
    return { passes: false, ms: told.msBeforeNext };
  }
}

function passing(limiter, key, calls) {
  return Promise.all(Array.from({ length: calls }, () => consume(limiter, key)));
}

const count = (answers) => answers.filter(({ passes }) => passes).length;

function work() {
  return new Promise((done, failed) => {
    const worker = new Worker(__filename, { argv: process.argv.slice(2) });
    worker.on("message", done);
    worker.on("error", failed);
  });
}

const isReset = (ms) => ms > 3_500_000 && ms <= 3_660_000;

async function manyWorkers() {
  const answers = (await Promise.all(Array.from({ length: WORKERS }, work))).flat();
  equal("calls of all workers", answers.length, WORKERS * CALLS);
  equal("what passes", count(answers), 100);
  // Without limits, a request between the creation of the counter and of the key for its time may get -1.
  if (BOUND) equal("the time is always told", answers.every(({ ms }) => isReset(ms)), true);
  const told = await hourly.get("crowd");
  equal("remaining", told.remainingPoints, 0);
  equal("the time", isReset(told.msBeforeNext), true);
  equal("delete", await hourly.delete("crowd"), true);
  equal("after delete", await hourly.get("crowd"), null);
  const first = await hourly.consume("crowd");
  equal("the first", [first.consumedPoints, first.remainingPoints], [1, 99]);
  equal("its time", isReset(first.msBeforeNext), true);
}

async function costs() {
  equal("points", (await consume(hourly, "dear", 70)).passes, true);
  equal("too many", (await consume(hourly, "dear", 70)).passes, false);
  // Without limits, the library counts refused requests too.
  equal("what is left", (await consume(hourly, "dear", 30)).passes, BOUND);
  equal("nothing is left", (await consume(hourly, "dear")).passes, false);
}

async function byHand() {
  equal("penalty", (await hourly.penalty("hand", 40)).consumedPoints, 40);
  await hourly.set("hand", 90, 3600);
  equal("set", (await hourly.get("hand")).remainingPoints, 10);
  equal("the rest", count(await passing(hourly, "hand", 15)), 10);
  await hourly.block("shut", 3600);
  equal("block", (await consume(hourly, "shut")).passes, false);
  // The library sends a negative number, and memcached has none.
  const found = await hourly.reward("hand", 1).then(() => "a reward", () => "an error");
  equal("reward", found, "an error");
  equal("after an error", (await consume(hourly, "another")).passes, true);
}

// One call begins the window, the rest come at its end; then the next window begins.
async function acrossWindows() {
  const start = Date.now();
  equal("the first", (await consume(brief, "edge")).passes, true);
  await sleep(1_600);
  const atTheEnd = count(await passing(brief, "edge", 25));
  const filled = Date.now();
  await sleep(start + 2_200 - Date.now());
  const begun = count(await passing(brief, "edge", 25));
  if (filled < start + 1_900 && Date.now() < start + 3_400) {
    equal("at the end of the window", atTheEnd, 19);
    // Under 20 in two seconds, 39 calls pass in less than one second without limits; with a
    // sliding limit, 20 and those that have expired.
    equal("at once in the next", begun, BOUND ? 1 : 20);
  } else {
    console.log("too slow to tell what passes across windows");
  }
}

async function main() {
  if (!isMainThread) {
    parentPort.postMessage(await passing(hourly, "crowd", CALLS));
    return;
  }
  await Promise.all([manyWorkers(), costs(), byHand(), acrossWindows()]);
}

main()
  .catch((error) => {
    console.error(error);
    process.exitCode = 1;
  })
  .finally(() => client.end());
