"""Fill a bus and a lake with some of everything, and pack what it wrote: the dump that later releases must open.

Run it with the release whose data is to be kept, from the root of its tree; it needs the extra `spark`:

    .venv/bin/python tests/upgrade/fill.py tests/upgrade/0.1.0.tar.gz

The bus is killed, not stopped, so that the dump has leases, pending jobs and batches in every state. Callbacks then
lead to port 9 of the loopback address, where nothing listens: a test that opens the dump subscribes anew.
"""

import base64
import contextlib
import gzip
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT_KEY = "root-key-of-the-dump"
NOWHERE = "http://127.0.0.1:9/callback"
TOKENS = {name: f"{name}--of-the-dump" for name in ("shop", "blog", "billing", "mailer", "digest", "backlog", "bulk")}
WAIT_S = 180.0
# What belongs to the process that wrote it, and what names the folder it was written in.
LEFT_OUT = (
    "logs",
    "valkey.log",
    "valkey.lock",
    "valkey.sock",
    "redis.url",
    "bus.url",
    "sources.toml",
    "inbox",
    "checkpoints",
)


class Receiver(http.server.ThreadingHTTPServer):
    """Answers 204 below /ok while `is_taking`, never below /hang, and 500 elsewhere; keeps the ids that it took."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Callback)
        self.taken: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.is_taking = True
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Callback(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        if self.path.startswith("/hang"):
            threading.Event().wait()
        is_ok = self.path.startswith("/ok") and self.server.is_taking
        if is_ok:
            self.server.taken.setdefault(self.path, []).extend(event["id"] for event in json.loads(body))
        self.send_response(204 if is_ok else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Bus:
    """One `doubledecker up` on a data folder."""

    def __init__(self, data: Path, *, with_pipeline: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "ROOT_KEY": ROOT_KEY,
            "PRIVATE_CALLBACKS": "true",
            "MEASURE_INTERVAL_S": "2",
            "TEND_INTERVAL_S": "5",
        }
        environment = os.environ | {f"DOUBLEDECKER_{name}": value for name, value in settings.items()}
        words = ["up", "--no-demo", "--port", str(port), "--data", str(data)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "doubledecker", *words, *([] if with_pipeline else ["--no-pipeline"])],
            env=environment,
            start_new_session=True,
        )
        until(lambda: self.call("GET", "/readyz", token=None)[0] == 200)

    def call(
        self, method: str, path: str, body: object = None, *, token: str | None = ROOT_KEY, key: str = ""
    ) -> tuple[int, object]:
        """The status and the decoded answer; 0 while nobody listens."""
        request = urllib.request.Request(self.url + path, method=method)
        if token:
            request.add_header("Authorization", "Basic " + base64.b64encode(f"{token}:x".encode()).decode())
        if key:
            request.add_header("Idempotency-Key", key)
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, None

    def want(self, method: str, path: str, body: object = None, *, client: str = "") -> object:
        """The answer, which must be a success."""
        status, answer = self.call(method, path, body, token=TOKENS[client] if client else ROOT_KEY)
        assert 200 <= status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def publish(self, client: str, *events: dict[str, object]) -> list[str]:
        answer = self.want("POST", "/events", list(events), client=client)
        assert isinstance(answer, dict)
        assert answer["refused"] == []
        return list(answer["ids"])

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def kill(self) -> None:
        """End every process at once, as a power cut would: nobody gives back what it holds."""
        for pid in reversed([self._process.pid, *descendants(self._process.pid)]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(30)


def descendants(pid: int) -> list[int]:
    """Every process that this one started, and those that these did."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [each for child in found.stdout.split() for each in (int(child), *descendants(int(child)))]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def orders(tenant: str, count: int) -> list[dict[str, object]]:
    return [
        {
            "topic": "orders",
            "type": "paid",
            "tenant": tenant,
            "key": f"order-{n % 3}",
            "data": {"total": n, "for": tenant},
        }
        for n in range(count)
    ]


def fill(bus: Bus, receiver: Receiver, data: Path) -> dict[str, object]:
    """Register clients, publish, and wait until it is delivered, landed, measured and erased."""
    for name, token in TOKENS.items():
        bus.want("POST", "/api_tokens", {"name": name, "token": token})
    subscribe(bus, {"billing": receiver.url("/ok/billing"), "bulk": receiver.url("/ok/bulk")})
    bus.want("PUT", "/queues/jobs", {"pattern": ".*:orders:.*", "attempts_max": 3, "lease_ms": 60_000}, client="shop")
    bus.want("PATCH", "/queues/jobs/facets/acme", {"weight": 2, "concurrency": 5}, client="shop")
    bus.want("PATCH", "/queues/jobs/facets/late", {"paused": True}, client="shop")
    bus.want(
        "PUT", "/queues/hooks", {"pattern": ".*:orders:paid", "callback": receiver.url("/ok/hooks")}, client="blog"
    )
    bus.want(
        "PUT", "/queues/strict", {"pattern": ".*:pages:.*", "max_length": 1000, "overflow": "refuse"}, client="blog"
    )
    erased = bus.publish("shop", *orders("gone", 2))
    ids = bus.publish("shop", *orders("acme", 6), *orders("late", 2))
    ids += bus.publish("shop", {"topic": "orders", "type": "paid", "id": "order-of-the-shop", "data": None})
    ids += bus.publish("blog", {"topic": "pages", "type": "viewed", "url": "https://blog.example/1"})
    bus.call("POST", "/events", orders("acme", 1), token=TOKENS["shop"], key="request-of-the-dump")
    bus.want("POST", "/topics/orders", {"type": "create", "url": "https://shop.example/orders/1"}, client="shop")
    # One more with an idempotency key, one by Routemaster's route, and one from the source.
    delivered = len(erased) + len(ids) + 3
    until(lambda: len(receiver.taken.get("/ok/billing", [])) >= delivered)
    until(lambda: len(receiver.taken.get("/ok/bulk", [])) >= delivered)
    until(lambda: len(receiver.taken.get("/ok/hooks", [])) >= len(erased) + len(ids) - 1)
    (data / "inbox" / "bad.json").write_text('{"order": 2, "customer": "not a key", "total": 1.0}\n')
    until((data / "lake" / "quarantine").exists)
    errand(bus, "/replays", {"topic": "orders", "to_queue": "jobs", "dry_run": True})
    errand(bus, "/replays", {"topic": "pages", "to_queue": "strict"})
    errand(bus, "/erasures", {"tenant": "gone"})
    return {"landed": sorted({*ids, *receiver.taken["/ok/billing"]} - {*erased}), "erased": sorted(erased)}


def errand(bus: Bus, path: str, body: object) -> None:
    """Ask the pipeline for a replay or an erasure, and wait until it is done."""
    asked = bus.want("POST", path, body)
    assert isinstance(asked, dict)

    def is_done() -> bool:
        found = bus.want("GET", f"{path}/{asked['id']}")
        assert isinstance(found, dict)
        assert found["state"] != "failed", found
        return bool(found["state"] == "done")

    until(is_done)


def subscribe(bus: Bus, callbacks: dict[str, str]) -> None:
    shapes: dict[str, dict[str, object]] = {
        "billing": {"timeout": 0},
        "mailer": {"timeout": 0, "max": 2, "uuid": "credential-of-the-mailer"},
        "digest": {"timeout": 60_000},
        "backlog": {"timeout": 0, "max": 1, "concurrency": 1},
        "bulk": {"tier": "bulk"},
    }
    for name, callback in callbacks.items():
        body = {"topics": ["orders", "pages"], "callback": callback, **shapes[name]}
        bus.want("POST", "/subscription", body, client=name)


def leave_waiting(bus: Bus, receiver: Receiver) -> dict[str, object]:
    """Without a pipeline, and with receivers that fail: what waits, in every state; then the kill."""
    # For a second after the change a worker may still call the former callback.
    receiver.is_taking = False
    subscribe(
        bus,
        {
            "mailer": receiver.url("/fail"),
            "backlog": receiver.url("/hang"),
            "digest": NOWHERE,
            "billing": NOWHERE,
            "bulk": NOWHERE,
        },
    )
    bus.want("PUT", "/queues/hooks", {"pattern": ".*:orders:paid", "callback": NOWHERE}, client="blog")
    waiting = bus.publish("shop", *orders("acme", 5), *orders("late", 1))
    waiting += bus.publish(
        "shop", {"topic": "orders", "type": "paid", "id": "last-order", "data": {"n": [1, "ä", None]}}
    )
    queue = "/queues/jobs"
    taken = pull(bus, 4)
    bus.want("POST", f"{queue}/nack", {"messages": taken[:1], "reject": True, "why": "no such order"}, client="shop")
    bus.want("POST", f"{queue}/nack", {"messages": taken[1:2], "delay_ms": 60_000}, client="shop")
    bus.want("POST", f"{queue}/ack", {"messages": taken[2:3]}, client="shop")
    # Failed and due again, and in the hands of a worker that dies: both are part of the dump.
    until(lambda: receiver.asked.count("/fail") >= 3 and "/hang" in receiver.asked)
    subscribe(bus, {"mailer": NOWHERE, "backlog": NOWHERE})
    bus.want("POST", "/replays", {"topic": "orders", "to_subscriber": "billing", "dry_run": True})
    return {
        "waiting": waiting,
        "dead": taken[0]["id"],
        "delayed": taken[1]["id"],
        "acked": taken[2]["id"],
        "leased": taken[3]["id"],
    }


def pull(bus: Bus, count: int) -> list[dict[str, object]]:
    answer = bus.want("POST", "/queues/jobs/pull", {"max": count}, client="shop")
    assert isinstance(answer, dict)
    return [{"id": message["id"], "attempt": message["attempt"]} for message in answer["messages"]]


def describe(bus: Bus) -> dict[str, object]:
    """What the bus answers about itself: a later release must answer the same of this data."""
    paths = ("/api_tokens", "/topics", "/subscriptions", "/queues", "/queues/jobs", "/replays", "/erasures")
    return {path: bus.want("GET", path) for path in paths}


@contextlib.contextmanager
def running(data: Path, *, with_pipeline: bool) -> Iterator[Bus]:
    bus = Bus(data, with_pipeline=with_pipeline)
    try:
        yield bus
    finally:
        bus.kill()


def main(target: Path) -> None:
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        sources(data)
        with running(data, with_pipeline=True) as bus:
            facts = fill(bus, receiver, data)
            bus.stop()
        with running(data, with_pipeline=False) as bus:
            facts |= leave_waiting(bus, receiver)
            facts["answers"] = describe(bus)
        (data / "facts.json").write_text(json.dumps(facts, indent=1))
        pack(data, target)


def sources(data: Path) -> None:
    (data / "inbox").mkdir(parents=True)
    example = Path("examples/sources/sources.toml").read_text()
    (data / "sources.toml").write_text(example)
    (data / "inbox" / "first.json").write_text(
        '{"order": 1, "customer": "c1", "total": 9.5, "placed": "2026-11-01T10:00:00Z"}\n'
    )


def pack(data: Path, target: Path) -> None:
    """One archive, the same bytes for the same files."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name in LEFT_OUT:
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with gzip.GzipFile(target, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(data, "data", filter=plain)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
