"""Flask-Limiter on memcached, alone or bound: many requests at once, and the headers."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from checks import HOST, PORT, equal
from flask import Flask, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from limits import parse

BOUND = sys.argv[3] == "bound"
REQUESTS = 48

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=f"memcached://{HOST}:{PORT}",
    headers_enabled=True,
    default_limits=["100/hour"],
)


@app.get("/")
def home():
    return "home"


@app.get("/login")
@limiter.limit("10/hour")
def login():
    return "login"


@app.get("/both")
@limiter.limit("10/hour;100/hour")
def both():
    return "both"


@app.get("/failed")
@limiter.limit("10/hour", deduct_when=lambda response: response.status_code == 401)
def failed():
    return "failed", 401


@app.get("/dear/<int:cost>")
@limiter.limit("10/hour", cost=lambda: request.view_args["cost"])
def dear(cost):
    return "dear"


def get(path):
    return app.test_client().get(path)


def statuses(path, requests):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: get(path), range(requests)))
    found = [answer.status_code for answer in answers]
    return {status: found.count(status) for status in sorted(set(found))}


equal("at once", statuses("/login", REQUESTS), {200: 10, 429: REQUESTS - 10})
answer = get("/login")
headers = answer.headers
equal("refused", answer.status_code, 429)
equal("limit", headers["X-RateLimit-Limit"], "10")
equal("remaining", headers["X-RateLimit-Remaining"], "0")
reset = int(headers["X-RateLimit-Reset"]) - time.time()
equal(f"the reset in {reset} s", 3580 < reset <= 3662, True)
equal("Retry-After", 3580 < int(headers["Retry-After"]) <= 3662, True)

answer = get("/")
equal("another route", answer.status_code, 200)
equal("its remaining", answer.headers["X-RateLimit-Remaining"], "99")
equal("two rates", statuses("/both", 12), {200: 10, 429: 2})
# Tested first, counted when the response is known.
found = [get("/failed").status_code for _ in range(12)]
equal("counted afterwards", found, [401] * 10 + [429] * 2)
# Without limits, the library counts refused requests too.
found = [get(f"/dear/{cost}").status_code for cost in (7, 7, 3)]
equal("costs", found, [200, 429, 200 if BOUND else 429])

limiter.limiter.clear(parse("10/hour"), "127.0.0.1", "login")
equal("after clear", get("/login").status_code, 200)
