"""netdata's plugin for memcached, as its collector runs it: on a server with items, every round has values."""

import importlib.util
import sys

from checks import HOST, PORT, equal

FOLDER = sys.argv[3]
sys.path[:0] = [FOLDER, f"{FOLDER}/python_modules"]
spec = importlib.util.spec_from_file_location("memcached", f"{FOLDER}/memcached.chart.py")
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)

settings = {
    "job_name": "local",
    "override_name": None,
    "update_every": 1,
    "penalty": True,
    "priority": 1,
    "chart_cleanup": 10,
    "host": HOST,
    "port": PORT,
}
service = plugin.Service(configuration=settings, name="local")


def ask(request, end):
    """Sends a request over a connection of its own."""
    import socket

    with socket.create_connection((HOST, PORT), timeout=10) as stream:
        stream.sendall(request)
        answer = b""
        while not answer.endswith(end):
            answer += stream.recv(4096)
        return answer


def values():
    """One round of the plugin, as numbers. It leaves carriage returns in, which `int` passes over."""
    return {name: float(value) for name, value in service._get_data().items() if is_number(value)}


def is_number(value):
    try:
        float(value)
    except ValueError:
        return False
    return True


equal("check", service.check(), True)
equal("its charts are made", service.create(), True)
equal("items of an empty server", values()["curr_items"], 0)
ask(b"set a 0 0 1\r\n1\r\nset b 0 0 3\r\nabc\r\nincr a 2\r\nget a b c\r\n", b"END\r\n")
equal("a round on a server with items", service.update(1_000_000), True)
full = values()
equal("items", full["curr_items"], 2)
equal("increments", full["incr_hits"], 1)
equal("keys asked for", full["cmd_get"], 3)
equal("free memory", full["avail"] + full["used"], full["limit_maxbytes"])
dimensions = {line[0] for chart in plugin.CHARTS.values() for line in chart["lines"]}
equal("dimensions without a value", sorted(dimensions - set(full)), [])
print(f"{len(dimensions)} dimensions")
