"""Shared by the scripts of Python clients: the server's address, and checks that name the failure."""

import sys
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
# Keys of one multi-get.
KEYS = 500
# A value that fits the default maximum of 1 MiB for an item with its key, and one that does not.
LARGE = b"l" * 1_000_000
TOO_LARGE = b"t" * 2_000_000
# The largest counter.
U64_MAX = 2**64 - 1
UNICODE_KEY = "schlüssel:鍵:🔑"


def short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def equal(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {short(expected)}, found {short(found)}")


def fails(what, error, call):
    """Checks that `call` raises `error`."""
    try:
        found = call()
    except error:
        return
    sys.exit(f"{what}: expected {error}, found {short(found)}")


def eventually(what, call, expected):
    """Waits until `call` returns `expected`: the server's clock ticks in whole seconds."""
    start = time.monotonic()
    while (found := call()) != expected:
        if time.monotonic() - start > 10:
            equal(what, found, expected)
        time.sleep(0.02)


def is_version(what, found):
    """Checks for three numbers: several clients parse nothing else."""
    numbers = found.decode().split(".")
    equal(f"{what} {found} has three numbers", [n.isdigit() for n in numbers], [True] * 3)
