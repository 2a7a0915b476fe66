"""What a second worker brings over TCP, with no load generator beside the two.

    python3 benches/two_workers.py target/release/tollgate

On two processors a generator would need one of them. Here requests are queued in the sockets while the server is
stopped; then it goes on, and is stopped again while every worker still has some of its queue: until then nothing
else has anything to do, and no worker has to wait for the end of the other. What was answered by then is counted,
then it answers the rest, and nothing may be missing. Reading the queues it finds more than one request at a time:
this is a deep pipeline.

Told are, for one worker and for two, medians of the rounds: requests a second, CPU of a request, processors at
work; then the ratio of the rates round by round, and what two processors do to one by CPU. Not here: threads
without sockets (`workers`), a server under a generator (`load`).
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
# How much of all is answered when the server is stopped again: one worker may be quicker than the mean by two thirds.
WINDOW = 0.6
FIRST_WINDOW_SECONDS = 0.12
WARM_UP_ROUNDS = 2
# After this long without another byte all that was answered has come.
QUIET_SECONDS = 0.05


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
    def read_some_lines(connection):
        """Waits for more, and counts the ends of lines in it."""
        got = connection.recv(1 << 20)
        assert got, "the server hung up"
        return got.count(b"\n")

    @staticmethod
    def read_lines(connection, lines):
        left = lines
        while left > 0:
            left -= Server.read_some_lines(connection)
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
        """Lines answered within the window, how long it was, and CPU, both in seconds; then all else is answered.

        None where so many connections were done that a worker may have had nothing left to do.
        """
        os.kill(self.process.pid, signal.SIGSTOP)
        self.queue(requests)
        before = self.cpu_nanos()
        began = time.perf_counter()
        os.kill(self.process.pid, signal.SIGCONT)
        time.sleep(window)
        os.kill(self.process.pid, signal.SIGSTOP)
        seconds = time.perf_counter() - began
        answered = self.read_answered()
        used = self.cpu_nanos() - before
        os.kill(self.process.pid, signal.SIGCONT)
        done = sum(lines == answer_lines for lines in answered.values())
        for connection, lines in answered.items():
            self.read_lines(connection, answer_lines - lines)
        if done > CONNECTIONS / 4:
            return None
        return sum(answered.values()), seconds, used / 1e9


def measure(servers, kind, rounds):
    line = LINES[kind]
    each = QUEUED_BYTES // len(line.format(key(0)))
    ran = {server: [] for server in servers}
    window = dict.fromkeys(servers, FIRST_WINDOW_SECONDS)
    for number in range(WARM_UP_ROUNDS + rounds):
        requests = [
            "".join(line.format(key(random.randrange(KEYS))) for _ in range(each)).encode()
            for _ in range(CONNECTIONS)
        ]
        for server in servers if number % 2 else servers[::-1]:
            while not (figures := server.run(requests, each * ANSWER_LINES[kind], window[server])):
                window[server] /= 2
                print(f"{kind:5} {server.workers} worker(s): a queue was empty, asked again with half the window")
            lines, seconds, used = figures
            answered = lines / ANSWER_LINES[kind]
            if number < WARM_UP_ROUNDS:
                window[server] = seconds * WINDOW * each * CONNECTIONS / answered
            else:
                ran[server].append((answered / seconds, used / answered * 1e9, used / seconds))
    one, two = ran.values()
    for server, figures in ran.items():
        rate, cpu, at_work = (statistics.median(column) for column in zip(*figures))
        print(f"{kind:5} {server.workers} worker(s): {rate:12,.0f}/s {cpu:6.1f} ns {at_work:.2f} at work")
    rates = sorted(two_rate / one_rate for (one_rate, *_), (two_rate, *_) in zip(one, two))
    by_cpu = statistics.median(2 * one_cpu / two_cpu for (_, one_cpu, _), (_, two_cpu, _) in zip(one, two))
    told = " ".join(f"{ratio:.2f}" for ratio in rates)
    print(f"{kind:5} {statistics.median(rates):.2f}x the rate ({told}); {by_cpu:.2f}x by CPU", flush=True)


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
