"""The gain of a second worker over TCP, with no load generator beside the two.

    python3 benches/two_workers.py target/release/tollgate

On two processors a generator would need one of them. Here requests are queued in the sockets while the
server is stopped; then it continues, and is stopped again while every worker still has a part of its
queue: until then no other process has work, and no worker waits for the end of another. The replies up to
then are counted, then the server answers the rest, and no reply may be missing. A read of a queue returns
more than one request: this is a deep pipeline.

Beside them run two servers of one worker each, which share only the machine: they show the gain that the
machine allows at this time, an upper bound for any server.

It prints, for each of the three, medians of the rounds: requests a second, CPU of a request, busy
processors; then the ratios of the rates round by round, and the ratio of CPU times. Not here: a server
under a generator (`load`).
"""

import argparse
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import time

CONNECTIONS = 256
# Bytes of requests per connection: its buffers hold them while the server does not read.
QUEUED_BYTES = 384 << 10
LINES = {
    "incr": "incr {} 1\r\n",
    "get": "get {}\r\n",
    "take": "take {} 1 bucket:1/1d,capacity=100000\r\n",
}
# Lines of a reply for an existing key.
ANSWER_LINES = {"incr": 1, "get": 3, "take": 1}
# The share answered when the server is stopped again: one worker may be two thirds faster than the mean.
WINDOW = 0.6
FIRST_WINDOW_SECONDS = 0.12
WARM_UP_ROUNDS = 2
# After this time without another byte all replies have arrived.
QUIET_SECONDS = 0.05


def key(number):
    return f"key:{number:016}"


class Side:
    """Servers that are measured as one: a share of the connections goes to each."""

    def __init__(self, program, servers, workers, port):
        self.name = f"{servers} server{'s' * (servers > 1)}, {workers} worker{'s' * (workers > 1)}"
        self.processes = []
        self.connections = []
        try:
            for number in range(servers):
                arguments = ["-t", str(workers), "-m", "1024", "-l", "127.0.0.1", "-p", str(port + number)]
                self.processes.append(
                    subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
                first = self.connect_within(port + number, seconds=5)
                rest = range(CONNECTIONS // servers - 1)
                others = [socket.create_connection(("127.0.0.1", port + number)) for _ in rest]
                self.connections += [first, *others]
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
        for process in self.processes:
            process.kill()
            process.wait()

    def signal(self, number):
        for process in self.processes:
            os.kill(process.pid, number)

    def fill(self, line, keys):
        """Flushes all items, and sends one request for each of the `keys`, so that each exists."""
        for connection in self.connections[:: CONNECTIONS // len(self.processes)]:
            connection.sendall(b"flush_all\r\n")
            self.read_lines(connection, 1)
            for start in range(0, keys, 1000):
                numbers = range(start, min(start + 1000, keys))
                connection.sendall("".join(line.format(key(number)) for number in numbers).encode())
                self.read_lines(connection, len(numbers))

    @staticmethod
    def read_some_lines(connection):
        """Waits for bytes, and counts the ends of lines in them."""
        got = connection.recv(1 << 20)
        assert got, "the server hung up"
        return got.count(b"\n")

    @staticmethod
    def read_lines(connection, lines):
        left = lines
        while left > 0:
            left -= Side.read_some_lines(connection)
        assert left == 0, f"{-left} lines more than were asked for"

    def cpu_nanos(self):
        total = 0
        for process in self.processes:
            threads = f"/proc/{process.pid}/task"
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

    def read_answered(self):
        """Lines that each connection has answered so far."""
        answered = dict.fromkeys(self.connections, 0)
        with selectors.DefaultSelector() as ready:
            for connection in self.connections:
                ready.register(connection, selectors.EVENT_READ)
            while events := ready.select(QUIET_SECONDS):
                for entry, _ in events:
                    answered[entry.fileobj] += self.read_some_lines(entry.fileobj)
        return answered

    def run(self, requests, answer_lines, window):
        """Returns the lines answered within the window, its length and the CPU time, both in seconds.

        Then the server answers the rest. None if the connections with an empty queue are so numerous
        that a worker may have been idle.
        """
        self.signal(signal.SIGSTOP)
        self.queue(requests)
        before = self.cpu_nanos()
        began = time.perf_counter()
        self.signal(signal.SIGCONT)
        time.sleep(window)
        self.signal(signal.SIGSTOP)
        seconds = time.perf_counter() - began
        answered = self.read_answered()
        used = self.cpu_nanos() - before
        self.signal(signal.SIGCONT)
        done = sum(lines == answer_lines for lines in answered.values())
        for connection, lines in answered.items():
            self.read_lines(connection, answer_lines - lines)
        if done > CONNECTIONS / 4:
            return None
        return sum(answered.values()), seconds, used / 1e9


def measure(sides, kind, rounds, keys):
    line = LINES[kind]
    each = QUEUED_BYTES // len(line.format(key(0)))
    ran = {side: [] for side in sides}
    window = dict.fromkeys(sides, FIRST_WINDOW_SECONDS)
    for number in range(WARM_UP_ROUNDS + rounds):
        requests = [
            "".join(line.format(key(random.randrange(keys))) for _ in range(each)).encode()
            for _ in range(CONNECTIONS)
        ]
        # Each begins a round in turn.
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            while not (figures := side.run(requests, each * ANSWER_LINES[kind], window[side])):
                window[side] /= 2
                print(f"{kind:5} {side.name}: a queue was empty, asked again with half the window")
            lines, seconds, used = figures
            answered = lines / ANSWER_LINES[kind]
            if number < WARM_UP_ROUNDS:
                window[side] = seconds * WINDOW * each * CONNECTIONS / answered
            else:
                ran[side].append((answered / seconds, used / answered * 1e9, used / seconds))
    one, *others = sides
    for side, figures in ran.items():
        rate, cpu, at_work = (statistics.median(column) for column in zip(*figures))
        print(f"{kind:5} {side.name}: {rate:12,.0f}/s {cpu:6.1f} ns {at_work:.2f} at work")
    for side in others:
        rates = sorted(rate / one_rate for (one_rate, *_), (rate, *_) in zip(ran[one], ran[side]))
        by_cpu = statistics.median(2 * one_cpu / cpu for (_, one_cpu, _), (_, cpu, _) in zip(ran[one], ran[side]))
        told = " ".join(f"{ratio:.2f}" for ratio in rates)
        print(f"{kind:5} {side.name}: {statistics.median(rates):.2f}x the rate ({told}); {by_cpu:.2f}x by CPU", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the server")
    parser.add_argument("--rounds", type=int, default=9, help="of each kind (default: 9)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="in use; 1 is one hot key (default: 1,000,000)")
    parser.add_argument("--port", type=int, default=13001, help="and the next three (default: 13001)")
    parser.add_argument("--kinds", nargs="+", choices=LINES, default=list(LINES), help="of requests (default: all)")
    options = parser.parse_args()
    sides = []
    try:
        for servers, workers, port in ((1, 1, 0), (1, 2, 1), (2, 1, 2)):
            sides.append(Side(options.program, servers, workers, options.port + port))
        for kind in options.kinds:
            for side in sides:
                side.fill("set {} 0 0 1\r\n1\r\n" if kind != "take" else LINES["take"], options.keys)
            measure(sides, kind, options.rounds, options.keys)
    finally:
        for side in sides:
            side.stop()


if __name__ == "__main__":
    main()
