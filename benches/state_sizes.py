"""Memory of a key, by what it counts, and the number of keys that fit into a memory cap.

    python3 benches/state_sizes.py target/release/tollgate

Each row has a server of its own, with one worker. Keys have 20 bytes and are all in use: none is idle
when the server is asked for its resident memory. The last rows fill a server with `-m 64` until it evicts.
Not here: connections and freed memory (`load --memory`).
"""

import argparse
import socket
import subprocess
import time

# Requests that are sent before their replies are read.
BATCH = 2000
# The requests between two looks at the evictions.
LOOK_EVERY = 20_000
TAKE = "take k{:019d} 1 {}\r\n"
SET = "set k{:019d} 0 3600 1\r\n{}\r\n"
# Name, line, its policy or value, requests, and the requests of each key.
ROWS = [
    ("counter with a TTL", SET, "1", 1_000_000, 1),
    ("fixed", TAKE, "fixed:100/1h", 1_000_000, 1),
    ("bucket", TAKE, "bucket:100/1h", 1_000_000, 1),
    ("gcra", TAKE, "gcra:100/1h", 1_000_000, 1),
    ("sliding", TAKE, "sliding:100/1h", 1_000_000, 1),
    ("sliding, 60 slices", TAKE, "sliding:100/1h,slices=60", 1_000_000, 1),
    ("log, 10 calls at once", TAKE, "log:100/1h", 2_000_000, 10),
    ("concurrency, 10 holders", TAKE, "concurrency:20,hold=1h", 1_000_000, 10),
    ("concurrency, 500 holders", TAKE, "concurrency:1000,hold=1h", 1_000_000, 500),
]
FULL = [("counter with a TTL", SET, "1"), ("bucket", TAKE, "bucket:100/1h")]
FULL_MB = 64


class Server:
    """A server of one worker, and a connection to it."""

    def __init__(self, program, megabytes):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [program, "-p", str(port), "-l", "127.0.0.1", "-t", "1", "-m", str(megabytes), "--http", "off"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.05)
        self.replies = self.socket.makefile("rb")

    def end(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

    def stats(self):
        self.socket.sendall(b"stats\r\n")
        found = {}
        while (line := self.replies.readline().split()) != [b"END"]:
            found[line[1].decode()] = line[2].decode()
        return found

    def send(self, line, value, numbers, per_key):
        """Sends a request for each number, and checks that each has a good reply."""
        numbers = list(numbers)
        for at in range(0, len(numbers), BATCH):
            batch = numbers[at : at + BATCH]
            self.socket.sendall("".join(line.format(number // per_key, value) for number in batch).encode())
            for _ in batch:
                reply = self.replies.readline()
                assert reply.startswith((b"ALLOW ", b"STORED")), reply


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    program = parser.parse_args().program
    print("| state | resident bytes a key |\n|---|--:|")
    for name, line, value, requests, per_key in ROWS:
        server = Server(program, 1024)
        empty = server.resident()
        server.send(line, value, range(requests), per_key)
        keys = requests // per_key
        assert int(server.stats()["curr_items"]) == keys
        print(f"| {name} | {(server.resident() - empty) / keys:,.0f} |", flush=True)
        server.end()
    print(f"\n| state | keys in -m {FULL_MB} | bytes of the cap a key |\n|---|--:|--:|")
    for name, line, value in FULL:
        server, sent = Server(program, FULL_MB), 0
        while int(server.stats()["evictions"]) == 0:
            server.send(line, value, range(sent, sent + LOOK_EVERY), 1)
            sent += LOOK_EVERY
        keys = int(server.stats()["curr_items"])
        print(f"| {name} | {keys:,} | {(FULL_MB << 20) / keys:.1f} |", flush=True)
        server.end()


if __name__ == "__main__":
    main()
