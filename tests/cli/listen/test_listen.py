"""`doubledecker listen`: what is published reaches a local URL, signed, whatever becomes of bus and receiver."""

import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from cli.commands import COMMAND, Up, an_up, environment, run, until
from doubledecker.model import signing
from doubledecker.store import machine

SECRET = signing.make(0).secret


class Receiver(http.server.ThreadingHTTPServer):
    """A developer's own server: what it was posted, and what it answers."""

    def __init__(self, port: int = 0, status: int = 200) -> None:
        super().__init__(("127.0.0.1", port), _Posted)
        self.posted: list[tuple[dict[str, str], bytes]] = []
        self.status = status
        self.url = f"http://127.0.0.1:{self.server_port}/hooks"

    @property
    def types(self) -> list[list[str]]:
        return [[event["type"] for event in json.loads(body)] for _, body in self.posted]


class _Posted(http.server.BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def a_receiver(port: int = 0, status: int = 200) -> Iterator[Receiver]:
    with Receiver(port, status) as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


@pytest.fixture
def secret(bus: Up) -> str:
    return run("token", "create", "shop", "--data", str(bus.data)).stdout.strip()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    # Of this file alone: tests of other commands on the same bus have names that begin alike.
    return f"listen_{request.node.name.partition('[')[0]}"[:60]


def publish(bus: Up, secret: str, topic: str, *types: str) -> None:
    for type_ in types:
        assert bus.post("/events", secret, {"topic": topic, "type": type_}) == 202


@contextmanager
def a_listen(bus: Up, *arguments: str, errors: Path) -> Iterator[subprocess.Popen[str]]:
    with errors.open("wb") as stderr:
        command = [*COMMAND, "listen", "--data", str(bus.data), "--from", "earliest", *arguments]
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_events_are_posted_signed_and_told(bus: Up, secret: str, topic: str):
    publish(bus, secret, topic, "one", "two", "three")
    arguments = ["--topic", topic, "--from", "earliest", "--count", "3", "--data", str(bus.data), "--json"]
    with a_receiver(status=500) as receiver:
        answer = run("listen", "--forward-to", receiver.url, "--max", "2", "--secret", SECRET, *arguments)

    assert answer.returncode == 0, answer.stderr
    assert [type_ for types in receiver.types for type_ in types] == ["one", "two", "three"]
    for headers, body in receiver.posted:
        Webhook(SECRET).verify(body, headers)
    told = [json.loads(line) for line in answer.stdout.splitlines()]
    assert {(each["outcome"], each["status"], each["topic"]) for each in told} == {("refused", 500, topic)}


def test_a_server_that_is_away_is_waited_for_and_gets_all_in_order(bus: Up, secret: str, topic: str, tmp_path: Path):
    errors, port = tmp_path / "err", machine.free_port()
    publish(bus, secret, topic, "one", "two")
    to = f"http://127.0.0.1:{port}/hooks"
    with a_listen(bus, "--topic", topic, "--forward-to", to, "--count", "2", errors=errors) as listen:
        until(lambda: "nobody answers" in errors.read_text())
        with a_receiver(port) as receiver:
            assert listen.wait(20) == 0

    assert receiver.types == [["one"], ["two"]]


def test_a_typed_line_sends_an_event_again(bus: Up, secret: str, topic: str, tmp_path: Path):
    publish(bus, secret, topic, "one", "two")
    with (
        a_receiver() as receiver,
        a_listen(bus, "--topic", topic, "--forward-to", receiver.url, errors=tmp_path / "err") as listen,
    ):
        rows = [listen.stdout.readline().split("\t") for _ in range(2)]
        listen.stdin.write(f"r\nr {rows[0][4]}\n")
        listen.stdin.flush()
        again = [listen.stdout.readline().split("\t") for _ in range(2)]

    assert receiver.types == [["one"], ["two"], ["two"], ["one"]]
    assert [row[5].strip() for row in again] == ["again", "again"]
    ids = [headers["webhook-id"] for headers, _ in receiver.posted]
    assert ids[2:] == [ids[1], ids[0]]


@pytest.mark.slow
def test_it_comes_back_after_web_was_killed_and_nothing_is_missing_or_posted_twice(
    bus: Up, secret: str, topic: str, tmp_path: Path
):
    publish(bus, secret, topic, "t0")
    errors = tmp_path / "err"
    with (
        a_receiver() as receiver,
        a_listen(bus, "--topic", topic, "--forward-to", receiver.url, errors=errors) as listen,
    ):
        listen.stdout.readline()
        os.kill(bus.child("web"), signal.SIGKILL)
        until(lambda: bus.post("/events", secret, {"topic": topic, "type": "t1"}) == 202)
        listen.stdout.readline()
        listen.send_signal(signal.SIGINT)
        assert listen.wait(10) == 130

    assert receiver.types == [["t0"], ["t1"]]
    assert "connecting again in 1 s" in errors.read_text()
    assert "connected again" in errors.read_text()
    assert "stopped; go on with --from " in errors.read_text()


@pytest.mark.slow
def test_a_revoked_token_ends_it_with_exit_code_4(bus: Up, tmp_path: Path):
    where, errors = ["--data", str(bus.data)], tmp_path / "err"
    made = run("token", "create", "gone", *where)
    with a_listen(
        bus, "--forward-to", "http://127.0.0.1:1", "--token", made.stdout.strip(), "--topic", "no_such", errors=errors
    ) as listen:
        until(lambda: "forwarding to" in errors.read_text())
        run("token", "revoke", made.stderr.split()[1].rstrip("."), "--yes", *where)

        assert listen.wait(30) == 4
    assert "revoked" in errors.read_text()


@pytest.mark.slow
def test_a_bus_that_stays_away_ends_it_with_exit_code_3(data_dir: Path, tmp_path: Path):
    errors = tmp_path / "err"
    with an_up(data_dir, "--no-demo") as up:
        arguments = ["--forward-to", "http://127.0.0.1:1", "--give-up-s", "0.5"]
        with a_listen(up, *arguments, errors=errors) as listen:
            until(lambda: "forwarding to" in errors.read_text())
            up.end()

            assert listen.wait(30) == 3
    assert "go on later with --from " in errors.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--forward-to"),
        (["--forward-to", "nowhere"], "--forward-to"),
        (["--forward-to", "http://127.0.0.1:1", "--secret", "short"], "--secret must begin with whsec_"),
        (["--forward-to", "http://127.0.0.1:1", "--topic", "a", "--pattern", "b"], "pass one"),
        (["--forward-to", "http://127.0.0.1:1", "--format", "cloudevents-binary", "--max", "2"], "leave out --max"),
    ],
)
def test_a_listen_that_cannot_be_says_why(arguments: list[str], told: str):
    answer = run("listen", *arguments, "--bus", "http://127.0.0.1:1", "--token", "x")

    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr
