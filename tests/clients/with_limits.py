"""limits: its fixed windows on memcached, without limits or on keys of sliding limits."""

import multiprocessing
import sys
import time

from checks import HOST, PORT, equal
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

BOUND = sys.argv[3] == "bound"
URI = f"memcached://{HOST}:{PORT}"
PROCESSES, HITS = 4, 40
HOURLY, BRIEF = parse("100/hour"), parse("20/2 seconds")


def limiter(kind=FixedWindowRateLimiter):
    return kind(storage_from_string(URI, no_delay=True))


def work(_):
    mine = limiter()
    return sum(mine.hit(HOURLY, "crowd") for _ in range(HITS))


def many_processes():
    with multiprocessing.Pool(PROCESSES) as pool:
        equal("hits of all processes", sum(pool.map(work, range(PROCESSES))), HOURLY.amount)
    mine = limiter()
    stats = mine.get_window_stats(HOURLY, "crowd")
    left = stats.reset_time - time.time()
    equal("remaining", stats.remaining, 0)
    # A sliding window is empty when its last slice is.
    equal(f"the reset in {left} s", 3580 < left <= 3661, True)
    equal("test", mine.test(HOURLY, "crowd"), False)
    equal("another caller", mine.hit(HOURLY, "somebody"), True)
    mine.clear(HOURLY, "crowd")
    equal("after clear", mine.test(HOURLY, "crowd"), True)
    equal("remaining after clear", mine.get_window_stats(HOURLY, "crowd").remaining, 100)


def costs():
    mine = limiter()
    equal("a cost", mine.hit(HOURLY, "dear", cost=70), True)
    equal("too dear", mine.hit(HOURLY, "dear", cost=70), False)
    # Without limits, the library counts refused requests too.
    equal("what is left", mine.hit(HOURLY, "dear", cost=30), BOUND)
    equal("nothing is left", mine.hit(HOURLY, "dear"), False)


def across_windows():
    """One hit begins the window, the rest come at its end; then the next window begins."""
    mine = limiter()
    start = time.time()
    equal("the first", mine.hit(BRIEF, "edge"), True)
    time.sleep(1.6)
    at_the_end = sum(mine.hit(BRIEF, "edge") for _ in range(25))
    filled = time.time()
    time.sleep(max(0, start + 2.2 - time.time()))
    begun = sum(mine.hit(BRIEF, "edge") for _ in range(25))
    if filled < start + 1.9 and time.time() < start + 3.4:
        equal("at the end of the window", at_the_end, 19)
        # Under 20 in two seconds, 39 hits pass in less than one second without limits; with a
        # sliding limit, 20 and those that have expired.
        equal("at once in the next", begun, 1 if BOUND else 20)
    else:
        print("too slow to tell what passes across windows")


def sliding_counter():
    """The library's own sliding counter has keys of two windows, and they are not bound."""
    mine = limiter(SlidingWindowCounterRateLimiter)
    rate = parse("5/day")
    equal("its own sliding counter", sum(mine.hit(rate, "x") for _ in range(8)), 5)
    equal("its remaining", mine.get_window_stats(rate, "x").remaining, 0)


equal("check", storage_from_string(URI).check(), True)
many_processes()
costs()
across_windows()
sliding_counter()
