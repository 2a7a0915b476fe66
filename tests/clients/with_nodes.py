"""pylibmc on the nodes of a cluster, as a ketama client: HOST... COUNT."""

import sys

import pylibmc

*hosts, count = sys.argv[1:]
client = pylibmc.Client(hosts, binary=False, behaviors={"hash": "md5", "ketama_weighted": True})
for number in range(int(count)):
    key = f"py:{number}"
    if not client.set(key, number):
        sys.exit(f"{key} is not set")
    if client.incr(key, 7) != number + 7:
        sys.exit(f"{key} does not count")
    if client.get(key) != number + 7:
        sys.exit(f"{key} is not read back")
