// memcached, of node, without options, on the nodes of a cluster: HOST... COUNT.

"use strict";

const Memcached = require("memcached");
const hosts = process.argv.slice(2);
const count = Number(hosts.pop());
const client = new Memcached(hosts.map((host) => `${host}:11211`));

function ask(command, ...words) {
  return new Promise((done, failed) => {
    client[command](...words, (error, found) => (error ? failed(error) : done(found)));
  });
}

async function run() {
  for (let number = 0; number < count; number++) {
    const key = `node:${number}`;
    if ((await ask("set", key, number, 0)) !== true) throw new Error(`${key} is not set`);
    if ((await ask("incr", key, 7)) !== number + 7) throw new Error(`${key} does not count`);
    if ((await ask("get", key)) !== number + 7) throw new Error(`${key} is not read back`);
  }
}

run().then(
  () => client.end(),
  (error) => {
    console.error(String(error));
    process.exit(1);
  },
);
