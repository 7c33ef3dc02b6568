"""`doubledecker tail` against a running bus: what is published is shown, once, whatever happens to the bus."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.commands import COMMAND, Up, environment, run, until


@pytest.fixture
def secret(bus: Up, request: pytest.FixtureRequest) -> str:
    return run("token", "create", "shop", "--bus", bus.url, "--data", str(bus.data)).stdout.strip()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return request.node.name.partition("[")[0][:60]


def publish(bus: Up, secret: str, topic: str, *types: str, **fields: object) -> None:
    for type_ in types:
        assert bus.post("/events", secret, {"topic": topic, "type": type_, **fields}) == 202


@contextmanager
def a_tail(bus: Up, *arguments: str, out: int = subprocess.PIPE, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running tail, which says nothing before something happens: so it starts with what is there already."""
    with errors.open("wb") as stderr:
        command = [*COMMAND, "tail", "--data", str(bus.data), *arguments]
        process = subprocess.Popen(command, env=environment(COLUMNS="120"), stdout=out, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_it_finds_the_bus_of_a_folder_and_prints_json_when_piped(bus: Up, secret: str, topic: str):
    publish(bus, secret, topic, "one", "two", tenant="acme", data={"n": 1})
    publish(bus, secret, "elsewhere_" + topic[:40], "three")
    answer = run("tail", f"*:{topic}:*", "--from", "earliest", "--count", "2", "--data", str(bus.data))

    events = [json.loads(line) for line in answer.stdout.splitlines()]
    assert answer.returncode == 0, answer.stderr
    assert [(event["tenant"], event["topic"], event["type"]) for event in events] == [
        ("acme", topic, "one"),
        ("acme", topic, "two"),
    ]
    assert events[0]["data"] == {"n": 1}


def test_it_follows_what_is_published_while_it_runs(bus: Up, secret: str, topic: str, tmp_path: Path):
    publish(bus, secret, topic, "first")
    arguments = [f"*:{topic}:*", "--from", "earliest", "--token", secret]
    with a_tail(bus, *arguments, errors=tmp_path / "err") as tail:
        first = json.loads(tail.stdout.readline())
        publish(bus, secret, topic, "second")
        second = json.loads(tail.stdout.readline())

    assert (first["type"], second["type"]) == ("first", "second")


def test_it_shows_requests_of_any_size(bus: Up, secret: str, topic: str):
    """Long ones are compressed in the journal."""
    sizes = [1, 2_000, 60_000]
    for size in sizes:
        publish(bus, secret, topic, "one", data="x" * size)
    assert bus.post("/events", secret, [{"topic": topic, "type": f"t{n}", "data": n} for n in range(200)]) == 202
    answer = run("tail", f"*:{topic}:*", "--from", "earliest", "--count", "203", "--data", str(bus.data))

    events = [json.loads(line) for line in answer.stdout.splitlines()]
    assert answer.returncode == 0, answer.stderr
    assert [event["data"] for event in events] == [*("x" * size for size in sizes), *range(200)]


@pytest.mark.slow
def test_it_comes_back_after_web_was_killed_and_nothing_is_missing_or_shown_twice(
    bus: Up, secret: str, topic: str, tmp_path: Path
):
    errors = tmp_path / "err"
    publish(bus, secret, topic, "t0")
    with a_tail(bus, f"*:{topic}:*", "--from", "earliest", errors=errors) as tail:
        shown = [json.loads(tail.stdout.readline())["type"]]
        for round_ in range(1, 3):
            os.kill(bus.child("web"), signal.SIGKILL)
            until(lambda: bus.post("/events", secret, {"topic": topic, "type": f"t{round_}"}) == 202)  # noqa: B023
            shown.append(json.loads(tail.stdout.readline())["type"])
        said = errors.read_text()

    assert shown == ["t0", "t1", "t2"]
    assert said.count("trying again until it is back") == 2
    assert said.count("connected again; going on after ") == 2


def test_a_terminal_gets_a_coloured_line_an_event(bus: Up, secret: str, topic: str, tmp_path: Path):
    publish(bus, secret, topic, "painted", tenant="acme", data={"text": "é\u202e\x1b]0;owned\x07"})
    ours, theirs = pty.openpty()
    with a_tail(bus, f"*:{topic}:*", "--from", "earliest", "--count", "1", out=theirs, errors=tmp_path / "err") as tail:
        assert tail.wait(20) == 0
        os.close(theirs)
        line = os.read(ours, 65_536).decode()
    os.close(ours)

    assert line.count("\n") == 1
    assert "\x1b[36macme" in line
    assert topic[:14] in line
    assert "painted" in line
    assert "\x1b]0" not in line
    assert "\u202e" not in line


def test_an_interrupt_says_how_to_go_on(bus: Up, secret: str, topic: str, tmp_path: Path):
    errors = tmp_path / "err"
    publish(bus, secret, topic, "one", "two")
    with a_tail(bus, f"*:{topic}:*", "--from", "earliest", errors=errors) as tail:
        tail.stdout.readline()
        tail.stdout.readline()
        publish(bus, secret, topic, "three")
        tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(10) == 130
    publish(bus, secret, topic, "four")
    last_id = errors.read_text().split("--from ")[1].strip()
    rest = run("tail", f"*:{topic}:*", "--from", last_id, "--count", "1", "--data", str(bus.data))

    assert json.loads(rest.stdout)["type"] == "four"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["page"], 4, "tenant:topic:type"),
        (["--from", "yesterday"], 4, "`earliest` or `latest`"),
        (["--token", "wrong"], 4, "does not know this key"),
        (["--bus", "http://127.0.0.1:1"], 3, "no bus answers at http://127.0.0.1:1"),
        (["--bus", "nowhere"], 2, "it must be a URL like"),
        (["--count", "0"], 2, "--count"),
    ],
)
def test_a_tail_that_cannot_be_says_why(bus: Up, arguments: list[str], exit_code: int, said: str):
    answer = run("tail", *arguments, "--data", str(bus.data))

    assert answer.returncode == exit_code
    assert said in answer.stderr
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr


def test_without_a_folder_and_a_token_it_says_what_is_missing(tmp_path: Path):
    answer = run("tail", "--data", str(tmp_path / "none"), "--bus", "http://127.0.0.1:1")

    assert answer.returncode == 1
    assert "no root key" in answer.stderr


def test_a_reader_that_leaves_ends_it_quietly(bus: Up, secret: str, topic: str, tmp_path: Path):
    errors = tmp_path / "err"
    publish(bus, secret, topic, *(f"t{n}" for n in range(20)))
    with a_tail(bus, f"*:{topic}:*", "--from", "earliest", errors=errors) as tail:
        tail.stdout.readline()
        tail.stdout.close()
        for n in range(20):
            publish(bus, secret, topic, f"u{n}")
        tail.wait(10)

    assert "Traceback" not in errors.read_text()
