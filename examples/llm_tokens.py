"""The tokens of a language model: hold what a call may need, settle for what it used.

    tollgate --limits examples/limits.toml
    python examples/llm_tokens.py [host:port]

Needs no library: the native verbs are one line each way.
"""

import math
import socket
import sys


class Tollgate:
    """A connection that speaks the native verbs."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.lines = socket.create_connection((host, int(port)), timeout=10).makefile("rw", newline="\r\n")

    def ask(self, *words):
        self.lines.write(" ".join(map(str, words)) + "\n")
        self.lines.flush()
        return self.lines.readline().split()

    def take(self, key, cost, *options):
        """Verdict, remaining, milliseconds to wait, and what else the answer tells."""
        answer = self.ask("take", key, cost, *options)
        if answer[0] not in ("ALLOW", "DENY"):
            raise RuntimeError(" ".join(answer))
        verdict, _limit, remaining, retry_ms, _reset_ms, *pairs = answer
        return verdict, int(remaining), int(retry_ms), dict(pair.split("=") for pair in pairs)

    def settle(self, key, lease, actual):
        """Ends a hold with the true cost; what remains. Too late, and the estimate stays spent."""
        answer = self.ask("settle", key, lease, actual)
        return int(answer[2]) if answer[0] == "SETTLED" else None


limits = Tollgate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11211")
# So that this can be run again within the minute.
limits.ask("delete", "llm:search")

# `-` is the limit that the server has bound to the key.
verdict, remaining, _, told = limits.take("llm:search", 60_000, "-", "hold=2m")
print(f"a prompt that may need 60000: {verdict}, {remaining} left")
assert verdict == "ALLOW" and remaining == 40_000

verdict, remaining, wait_ms, _ = limits.take("llm:search", 60_000, "-", "hold=2m")
print(f"another one beside it: {verdict}, in {math.ceil(wait_ms / 1000)} s")
assert verdict == "DENY" and 11_000 < wait_ms <= 12_000

remaining = limits.settle("llm:search", told["lease"], 12_500)
print(f"the first used 12500: {remaining} left")
assert 87_500 <= remaining < 90_000

verdict, _, _, told = limits.take("llm:search", 60_000, "-", "hold=2m")
print(f"the other one again: {verdict}")
assert verdict == "ALLOW"
# It fails before it began: nothing was used.
remaining = limits.settle("llm:search", told["lease"], 0)
print(f"it was cancelled: {remaining} left")
assert remaining >= 87_500
assert limits.settle("llm:search", told["lease"], 0) is None
