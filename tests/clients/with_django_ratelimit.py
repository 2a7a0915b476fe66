"""django-ratelimit on Django's memcached cache, alone or bound: `add`, and `incr` if that is too late."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import django
from checks import HOST, PORT, equal
from django.conf import settings

BOUND = sys.argv[3] == "bound"

settings.configure(
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
            "LOCATION": f"{HOST}:{PORT}",
            "OPTIONS": {"no_delay": True},
        }
    },
    INSTALLED_APPS=["django_ratelimit"],
)
django.setup()

from django.core.checks import run_checks  # noqa: E402: Django wants its settings first
from django.http import HttpResponse  # noqa: E402
from django.test import RequestFactory  # noqa: E402
from django.test.utils import override_settings  # noqa: E402
from django_ratelimit.core import _get_window, get_usage  # noqa: E402
from django_ratelimit.decorators import ratelimit  # noqa: E402
from django_ratelimit.exceptions import Ratelimited  # noqa: E402

IP = "192.0.2.7"


class Readable:
    """Returns the unhashed name of a key."""

    def __init__(self, name):
        self.name = name

    def hexdigest(self):
        return self.name.decode()


@ratelimit(key="ip", rate="10/h", block=True)
def login(request):
    return HttpResponse("login")


def request(ip=IP):
    return RequestFactory().get("/", REMOTE_ADDR=ip)


def passes(ip):
    try:
        return login(request(ip)).status_code == 200
    except Ratelimited:
        return False


def usage(increment, rate="10/h", group="group"):
    return get_usage(request(), group=group, key="ip", rate=rate, increment=increment)


def at_once():
    with ThreadPoolExecutor(8) as pool:
        equal("requests at once", sum(pool.map(passes, [IP] * 48)), 10)
    equal("another address", passes("192.0.2.8"), True)


def told():
    found = usage(increment=False)
    equal("nothing yet", (found["count"], found["should_limit"]), (0, False))
    counts = [usage(increment=True)["count"] for _ in range(10)]
    equal("counts", counts, list(range(1, 11)))
    found = usage(increment=False)
    equal("full", (found["count"], found["limit"], found["should_limit"]), (10, 10, False))
    for n in (11, 12):
        found = usage(increment=True)
        # Without limits, the library counts refused requests too.
        equal("refused", (found["count"], found["should_limit"]), (11 if BOUND else n, True))
    equal("the reset", 0 <= found["time_left"] <= 3600, True)


def across_windows():
    """20 at the end of one window of the library, and 20 at the beginning of the next."""
    edge = _get_window(IP, 2) + 1
    if edge - time.time() < 0.5:
        edge += 2

    def hits():
        asked = [usage(increment=True, rate="20/2s", group="search") for _ in range(25)]
        return sum(not found["should_limit"] for found in asked)

    time.sleep(edge - 0.4 - time.time())
    start = time.time()
    before = hits()
    filled = time.time()
    time.sleep(max(0, edge + 0.1 - time.time()))
    after = hits()
    if filled < edge and time.time() < start + 1.9:
        equal("at the end of a window", before, 20)
        equal("at once in the next", after, 0 if BOUND else 20)
    else:
        print("too slow to tell what passes across windows")


equal("Django's checks", run_checks(), [])
at_once()
told()
with override_settings(RATELIMIT_HASH_ALGORITHM=Readable):
    across_windows()
