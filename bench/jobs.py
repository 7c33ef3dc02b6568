"""What a job of a peer does: nothing, or one POST of one event to the receiver over a kept-alive connection."""

import http.client
import os
import sys
import threading
import time
from collections.abc import Callable

from bench import events

URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0")
_BODY = b"[" + events.delivered(0) + b"]"
_local = threading.local()


def post() -> None:
    """Deliver one event; raises unless the receiver says 200."""
    if not hasattr(_local, "connection"):
        _local.connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["BENCH_RECEIVER_PORT"]))
    _local.connection.request("POST", "/", body=_BODY, headers={"Content-Type": "application/json"})
    answer = _local.connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise ValueError(answer.status)


def enqueue_as_asked(sends: dict[str, Callable[[], object]]) -> None:
    """Enqueue the job and count named on the command line, and print the rate."""
    send, count = sends[sys.argv[1]], int(sys.argv[2])
    send()  # opens the connection
    started_s = time.perf_counter()
    for _ in range(count - 1):
        send()
    print((count - 1) / (time.perf_counter() - started_s), flush=True)
