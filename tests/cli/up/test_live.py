"""The live view: its arithmetic, its size, and that a terminal really shows it."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands import COMMAND, environment
from doubledecker.bus import telemetry
from doubledecker.bus.overview import Overview, SubscriberView
from doubledecker.cli import live, status, words
from doubledecker.cli.live import Board
from doubledecker.cli.serve import keep
from doubledecker.cli.serve.keep import ChildLife, Command, Kept
from doubledecker.cli.status import Trail
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import embedded
from doubledecker.store.subscribers import Condition


def a_look(at_s: float = 0, *, names: tuple[str, ...] = (), sent: int = 0, **counters: int) -> Overview:
    named = {name.replace("__", "."): value for name, value in counters.items()}
    return Overview(
        at=round(at_s * 1000),
        subscribers=tuple(a_view(name, sent) for name in names),
        counters=named,
        jobs={},
        slots_alive=1,
        memory=(),
        journal_bytes={},
        oldest_at=None,
    )


def a_view(name: str, sent: int = 0, *, health: int = 100) -> SubscriberView:
    subscriber = Subscriber(token=name, callback="http://x", uuid="x")
    return SubscriberView(subscriber, Condition(health=health), events=12, batches=1, sent=sent, oldest_at=None)


def a_board(view: Overview | None = None) -> Board:
    life = ChildLife(Command([], {}, None))
    board = Board("http://127.0.0.1:17890", began_at=0)
    board.kept += [Kept(name, life, on_end=print, grace_s=1) for name in ("valkey", "worker", "web", "demo")]
    board.hint = "Try: curl -u x http://127.0.0.1:17890/subscribers"
    board.messages.extend(f"message {number}" for number in range(5))
    if view is not None:
        board.trail.add(view)
    return board


def screen(board: Board, width: int = 80, height: int = 24) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=width, height=height)
    console.print(live.render(board, width=width, height=height, now_ms=5_000, foot="Ctrl-C stops"))
    return text.getvalue().rstrip("\n").split("\n")


def test_a_subscriber_is_shown_by_its_name_and_a_queue_by_all_of_its_own():
    shown = "\n".join(screen(a_board(a_look(names=("billing-4aec50d4", "@demo-partners")))))

    assert " billing " in shown
    assert " @demo-partners " in shown


def test_those_that_fail_are_shown_first_then_those_that_refuse():
    names = tuple(f"subscriber-{letter}-0123abcd" for letter in "abcdefghijklmnopqrstuvwxyz")
    look = a_look(names=names)
    conditions = {names[20]: Condition(health=90, failures=3), names[21]: Condition(health=96, refusals=2)}
    seen = [replace(each, condition=conditions.get(each.subscriber.token, each.condition)) for each in look.subscribers]

    lines = screen(a_board(replace(look, subscribers=tuple(seen))))

    first, second = (line.split() for line in lines[lines.index(heading(lines)) + 1 :][:2])
    assert first[:3] == ["subscriber-u", "failing", "90"]
    assert second[:3] == ["subscriber-v", "refusing", "96"]


def heading(lines: list[str]) -> str:
    return next(line for line in lines if line.lstrip().startswith("subscriber "))


def test_a_rate_is_what_a_counter_grew_by_over_the_last_seconds():
    seen = Trail()
    for second in range(20):
        seen.add(a_look(second, events__published=100 * second if second < 10 else 1000 + 50 * (second - 10)))

    assert seen.rate(status.published) == 50


def test_a_counter_that_began_anew_has_no_negative_rate():
    seen = Trail()
    seen.add(a_look(0, events__published=1000))
    seen.add(a_look(1, events__published=10))

    assert seen.rate(status.published) == 0
    assert seen.rates(status.published) == [0]


def test_only_delivered_events_count_as_delivered():
    fields = {
        telemetry.counter("delivery.events", subscriber="a", outcome="delivered"): 3,
        telemetry.counter("delivery.events", subscriber="b", outcome="delivered"): 4,
        telemetry.counter("delivery.events", subscriber="b", outcome="refused"): 50,
    }

    assert status.delivered(a_look(**fields)) == 7


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({"10": 10}, 0.5, 7.5),
        ({"2": 50, "100": 50}, 0.5, 2),
        ({"2": 50, "100": 50}, 0.75, 75),
        ({"2": 1, "+Inf": 9}, 0.95, float("inf")),
    ],
)
def test_a_quantile_is_estimated_within_its_bucket(counts: dict[str, int], share: float, expected: float | None):
    assert telemetry.quantile(counts, share) == expected


def test_latency_is_that_of_the_last_ten_seconds():
    name = telemetry.counter("latency.batches.last_attempt", le="5000")
    quick = telemetry.counter("latency.batches.last_attempt", le="2")
    seen = Trail()
    for second in range(30):
        seen.add(a_look(second, **{name: 1000, quick: 10 * second}))

    assert seen.latency_ms(0.99) == pytest.approx(1.98)


def test_a_sparkline_goes_from_nothing_to_the_highest():
    assert status.sparkline([0, 1, 2, 7], width=3) == "▂▃█"
    assert status.sparkline([0, 0], width=9) == "▁▁"
    assert status.sparkline([], width=9) == ""


@pytest.mark.parametrize("count", [0, 3, 60])
def test_the_view_fits_a_small_terminal_however_many_subscribers_there_are(count: int):
    board = a_board(a_look(1, names=tuple(f"subscriber-number-{n}-0123abcd" for n in range(count))))
    lines = screen(board)

    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 80
    assert any("and 5" in line for line in lines) == (count == 60)
    assert lines[-1].strip() == "Ctrl-C stops"


def test_the_view_says_that_redis_is_away():
    board = a_board(a_look(1))
    board.away = "Redis at unix:///x: Connection refused"

    assert "Redis is away" in screen(board)[0]


def test_a_view_before_the_first_look_is_no_error():
    assert any("waiting for the first look" in line for line in screen(a_board()))


def test_names_are_short_where_they_are_unique():
    assert words.names(["a-1", "b-1", "b-2"]) == {"a-1": "a", "b-1": "b-1", "b-2": "b-2"}


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "none"), (0, "0 ms"), (999, "999 ms"), (1_234, "1.2 s"), (59_000, "59 s"), (61_000, "1 min 1 s")],
)
def test_ages_are_short(ms: int | None, text: str):
    assert words.age(ms) == text


def test_pauses_double_up_to_ten_seconds_and_start_anew_after_a_good_run():
    pauses = [0.0]
    for _ in range(8):
        pauses.append(keep.next_pause_s(pauses[-1], ran_s=1))

    assert pauses[1:] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])
    assert keep.next_pause_s(10, ran_s=31) == 0.2


@pytest.mark.slow
def test_a_terminal_shows_the_view_and_the_logs_go_to_files(data_dir: Path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [
        *COMMAND,
        "up",
        "--no-demo",
        "--no-pipeline",
        "--port",
        str(embedded.free_port()),
        "--data",
        str(data_dir),
    ]
    process = subprocess.Popen(command, env=environment(TERM="xterm"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown = shown_until(ours, b"Dashboard: ", b"published", b"web")
    finally:
        process.send_signal(signal.SIGTERM)
        rest = shown_until(ours, b"Doubledecker has stopped")
        exit_code = process.wait(12)
        os.close(ours)

    assert exit_code == 0
    assert b"web.started" not in shown + rest
    assert "web.started" in (data_dir / "logs" / "web.log").read_text()
    assert "worker.stopped" in (data_dir / "logs" / "worker.log").read_text()


def shown_until(terminal: int, *wanted: bytes) -> bytes:
    """What a terminal shows until all that is wanted was there; colours left out."""
    seen = b""
    deadline = time.monotonic() + 20
    while not all(word in seen for word in wanted):
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            seen += plain(os.read(terminal, 65536))
    return seen


def plain(shown: bytes) -> bytes:
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)


@pytest.mark.parametrize(
    ("points", "failures", "refusals", "word"),
    [
        *((100, 0, 0, "healthy"), (80, 0, 0, "healthy"), (30, 0, 0, "recovering")),
        *((84, 20, 0, "failing"), (0, 1, 0, "failing"), (90, 1, 5, "failing")),
        *((98, 0, 1, "refusing"), (30, 0, 4, "refusing")),
    ],
)
def test_the_word_for_health_shows_the_present(points: int, failures: int, refusals: int, word: str):
    assert words.health(points, failures=failures, refusals=refusals) == word
