"""What a second worker brings over TCP, with no load generator beside the two.

    python3 benches/two_workers.py target/release/tollgate

On two processors a generator would need one of them. Here requests are queued in the sockets while the server is
stopped; then it goes on, and until its threads sleep again nothing else has anything to do. Reading the queues it
finds more than one request at a time: this is a deep pipeline. All answers are counted.

Told are, for one worker and for two, medians of the rounds: requests a second, CPU of a request, processors at
work; then the ratio of the rates, and what two processors do to one by CPU. Not here: threads without sockets
(`workers`), a server under a generator (`load`).
"""

import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import time

CONNECTIONS = 256
# Of requests to a connection: what its buffers hold while nobody reads.
QUEUED_BYTES = 384 << 10
KEYS = 1_000_000
LINES = {
    "incr": "incr {} 1\r\n",
    "get": "get {}\r\n",
    "take": "take {} 1 bucket:1/1d,capacity=100000\r\n",
}
# Lines of an answer to a key that is there.
ANSWER_LINES = {"incr": 1, "get": 3, "take": 1}
# How often it is asked whether the threads still work, and how much is work.
LOOK_SECONDS = 0.004
WORK_NANOS = 300_000
LOOKS_WITHOUT_WORK = 6


def key(number):
    return f"key:{number:016}"


class Server:
    def __init__(self, program, workers, port):
        self.workers = workers
        self.process = subprocess.Popen(
            [program, "-t", str(workers), "-m", "1024", "-l", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            first = self.connect_within(port, seconds=5)
            others = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS - 1)]
            self.connections = [first, *others]
            for connection in self.connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        except OSError:
            self.stop()
            raise

    @staticmethod
    def connect_within(port, seconds):
        end = time.monotonic() + seconds
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask_of_all(self, line):
        """Asks once of every key, so that each is there."""
        for start in range(0, KEYS, 1000):
            lines = "".join(line.format(key(number)) for number in range(start, start + 1000))
            self.connections[0].sendall(lines.encode())
            self.read_lines(self.connections[0], 1000)

    @staticmethod
    def read_lines(connection, lines):
        left = lines
        while left > 0:
            got = connection.recv(1 << 20)
            assert got, "the server hung up"
            left -= got.count(b"\n")
        assert left == 0, f"{-left} lines more than were asked for"

    def cpu_nanos(self):
        threads = f"/proc/{self.process.pid}/task"
        total = 0
        for thread in os.listdir(threads):
            with open(f"{threads}/{thread}/schedstat") as figures:
                total += int(figures.read().split()[0])
        return total

    def queue(self, requests):
        for connection, wire in zip(self.connections, requests):
            connection.setblocking(False)
            sent = 0
            while sent < len(wire):
                # `BlockingIOError` says that the buffers are smaller here than `QUEUED_BYTES`.
                sent += connection.send(wire[sent : sent + 4096])
            connection.setblocking(True)

    def run(self, requests, answer_lines):
        """Seconds until all is answered, and seconds of CPU."""
        os.kill(self.process.pid, signal.SIGSTOP)
        self.queue(requests)
        before = last = self.cpu_nanos()
        os.kill(self.process.pid, signal.SIGCONT)
        began = ended = time.perf_counter()
        idle = 0
        while idle < LOOKS_WITHOUT_WORK:
            time.sleep(LOOK_SECONDS)
            now = self.cpu_nanos()
            if now - last > WORK_NANOS:
                ended, idle = time.perf_counter(), 0
            else:
                idle += 1
            last = now
        for connection, lines in zip(self.connections, answer_lines):
            self.read_lines(connection, lines)
        return ended - began, (last - before) / 1e9


def measure(servers, kind, rounds):
    line = LINES[kind]
    each = QUEUED_BYTES // len(line.format(key(0)))
    answer_lines = [each * ANSWER_LINES[kind]] * CONNECTIONS
    ran = {server.workers: [] for server in servers}
    for number in range(rounds + 1):
        requests = [
            "".join(line.format(key(random.randrange(KEYS))) for _ in range(each)).encode()
            for _ in range(CONNECTIONS)
        ]
        for server in servers if number % 2 else servers[::-1]:
            figures = server.run(requests, answer_lines)
            # The first round warms up.
            if number > 0:
                ran[server.workers].append(figures)
    asked = each * CONNECTIONS
    cpu = {}
    for workers, figures in ran.items():
        cpu[workers] = statistics.median(used / asked * 1e9 for _, used in figures)
        rate = statistics.median(asked / seconds for seconds, _ in figures)
        at_work = statistics.median(used / seconds for seconds, used in figures)
        print(f"{kind:5} {workers} worker(s): {rate:12,.0f}/s {cpu[workers]:6.1f} ns {at_work:.2f} at work")
    ratios = [one[0] / two[0] for one, two in zip(ran[1], ran[2])]
    told = " ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    by_cpu = 2 * cpu[1] / cpu[2]
    print(f"{kind:5} {statistics.median(ratios):.2f}x the rate ({told}); {by_cpu:.2f}x by CPU", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the server")
    parser.add_argument("--rounds", type=int, default=9, help="of each kind (default: 9)")
    parser.add_argument("--port", type=int, default=13001, help="and the next (default: 13001)")
    options = parser.parse_args()
    servers = []
    try:
        for workers in (1, 2):
            port = options.port + workers - 1
            servers.append(Server(options.program, workers, port))
        for kind in LINES:
            for server in servers:
                server.connections[0].sendall(b"flush_all\r\n")
                server.read_lines(server.connections[0], 1)
                server.ask_of_all("set {} 0 0 1\r\n1\r\n" if kind != "take" else LINES["take"])
            measure(servers, kind, options.rounds)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
