"""A round trip over a bus that runs: an event is published, and comes back to this process.

As root it makes a client for that, whose subscription leads to a port of this machine; where the bus calls no such
addresses, or is not on this machine, and for a client that is given, a queue takes the place of the subscription. All
of it is named `doctor-…` and removed at the end. What a run that was killed left behind, the next one removes.
"""

import contextlib
import http.server
import queue
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from doubledecker import client, clock
from doubledecker.cli import folder, words
from doubledecker.cli.doctor.finding import Finding, failed, ok, warning
from doubledecker.client import Bus
from doubledecker.errors import BusAway, SettingInvalid

_CHECK = "publish and deliver"
_NAME = "doctor"
# A worker that is there takes milliseconds.
_WAIT_S = 10.0
# Longer than any run takes.
_LEFT_MS = 600_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check(bus: str | None, data: Path | None, secret: str | None) -> Finding:
    """Try it, if there is a bus and a key to ask it with."""
    try:
        return _try(bus, data, secret)
    except BusAway as error:
        found, remedy = str(error), "start that bus, or leave out --data"
    except SettingInvalid as error:
        return warning(_CHECK, f"not tried: {error}", "pass --token, or the --data of the bus")
    except client.AddressInvalid as error:
        found, remedy = str(error), f"pass a --bus like {folder.DEFAULT_URL}"
    except client.Refused as error:
        found, remedy = f"refused: {error.detail}", "pass the --token of a client that may, or the root key"
    except client.ClientError as error:
        found, remedy = str(error), "look at the logs of web"
    return failed(_CHECK, found, remedy)


def _try(bus: str | None, data: Path | None, secret: str | None) -> Finding:
    url = bus or folder.find_bus(data) or folder.DEFAULT_URL
    with Bus(url, "", patience_s=0) as anyone:
        if not anyone.is_ready():
            remedy = "start one with `doubledecker up`, or name one with --bus; then ask again"
            return (failed if bus else warning)(_CHECK, f"not tried: no bus at {url} is ready", remedy)
    address = folder.address_of(bus, data, secret)
    with Bus(address.url, address.secret, patience_s=0) as remote:
        if secret:
            return _by_queue(remote)
        with _a_client(remote, address.url) as ours:
            is_here = urlsplit(address.url).hostname in _LOOPBACK
            return _by_subscription(ours) if is_here else _by_queue(ours)


@contextlib.contextmanager
def _a_client(root: Bus, url: str) -> Iterator[Bus]:
    """A client for this run alone, and what is left of earlier ones removed."""
    for left in root.tokens():
        if left.name.startswith(f"{_NAME}-") and left.created_at < clock.now_ms() - _LEFT_MS:
            _forget(root, left.id)
    made = root.create_token(f"{_NAME}-{secrets.token_hex(4)}")
    try:
        with Bus(url, made.token, patience_s=0) as ours:
            yield ours
    finally:
        with contextlib.suppress(client.ClientError):
            _forget(root, made.id)


def _forget(root: Bus, id_: str) -> None:
    for queue_ in root.queues():
        if queue_.owner == id_:
            root.queue(queue_.name).delete(discard=True)
    topics = [topic.name for topic in root.topics() if topic.publisher_id == id_]
    root.revoke_token(id_)
    for name in topics:
        root.delete_topic(name)


def _by_subscription(ours: Bus) -> Finding:
    """By a worker, to a server of our own."""
    name = _a_name()
    with _Receiver() as receiver:
        try:
            ours.subscribe([name], f"http://127.0.0.1:{receiver.server_port}/", timeout=0)
        except client.Refused:
            # Callbacks at addresses like ours are for `private_callbacks`.
            return _by_queue(ours)
        began_s = time.monotonic()
        id_ = ours.publish(topic=name, type="check")
        try:
            while id_ not in receiver.bodies.get(timeout=max(0.0, began_s + _WAIT_S - time.monotonic())):
                pass
        except queue.Empty:
            found = f"an event was published, and not delivered within {_WAIT_S:.0f} s"
            return failed(_CHECK, found, "`doubledecker status` shows whether a worker runs, `attempts` what it tried")
        took = words.age((time.monotonic() - began_s) * 1000)
    return ok(_CHECK, f"an event was published, and delivered by a worker in {took}")


def _by_queue(ours: Bus) -> Finding:
    """By a pull, without a worker."""
    name = _a_name()
    made = ours.queue(name)
    made.register(f".*:{name}:.*")
    try:
        began_s = time.monotonic()
        id_ = ours.publish(topic=name, type="check")
        try:
            pulled = made.pull(wait_ms=round(_WAIT_S * 1000))
            took = words.age((time.monotonic() - began_s) * 1000)
            for message in pulled:
                message.ack()
        finally:
            with contextlib.suppress(client.ClientError):
                ours.delete_topic(name)
    finally:
        with contextlib.suppress(client.ClientError):
            made.delete(discard=True)
    if [message.event.id for message in pulled] != [id_]:
        found = f"an event was published, and not in its queue within {_WAIT_S:.0f} s"
        return failed(_CHECK, found, "look at the logs of web")
    return ok(_CHECK, f"an event was published, and pulled from a queue in {took}")


def _a_name() -> str:
    return f"{_NAME}-{secrets.token_hex(4)}"


class _Receiver(http.server.ThreadingHTTPServer):
    """Takes what is posted to a free port of the loopback address."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.bodies: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self.serve_forever, name="receiver", daemon=True)
        self._thread.start()

    def server_close(self) -> None:
        """End the thread too."""
        self.shutdown()
        self._thread.join()
        super().server_close()


class _Posted(http.server.BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.bodies.put(body.decode(errors="replace"))

    def log_message(self, *_: object) -> None:
        """Nothing: the finding says what came."""
