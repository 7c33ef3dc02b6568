"""Lines that are logged very often: the same as structlog's, for a fraction of their cost."""

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
import structlog

from doubledecker import log

FIELDS = {
    "subscriber": "s-0a1b2c3d",
    "attempt": 3,
    "status": None,
    "detail": "",
    "spaced": "Internal Server Error",
    "quoted": 'it\'s "so"',
    "pair": "a=b",
    "broken": "one\ntwo\t",
    "accent": "é",
    "share": 0.5,
    "is_late": True,
}
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a test sets up ends with it."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    log._lines.is_on, log._lines.as_json, log._lines.process = True, False, None


def both(capsys: pytest.CaptureFixture[str], *, as_json: bool, process: str | None) -> tuple[str, str]:
    """The same line by structlog, and by `log.line`."""

    async def write() -> None:
        log.configure(level="info", as_json=as_json, process=process)
        log.get("worker").info("delivery.attempted", **FIELDS)
        log.line("worker", "delivery.attempted")(**FIELDS)
        await asyncio.sleep(0)

    asyncio.run(write())
    first, second = capsys.readouterr().err.splitlines()
    return first, second


@pytest.mark.parametrize("process", [None, "worker-2"])
def test_a_line_of_json_has_the_same_fields_as_structlog_s(capsys: pytest.CaptureFixture[str], process: str | None):
    first, second = (json.loads(line) for line in both(capsys, as_json=True, process=process))

    assert _AT.fullmatch(first.pop("timestamp"))
    assert _AT.fullmatch(second.pop("timestamp"))
    assert second == first
    assert second.items() >= {**FIELDS, "event": "delivery.attempted", "part": "worker", "level": "info"}.items()
    assert second.get("process") == process


@pytest.mark.parametrize("process", [None, "worker-2"])
def test_a_line_of_text_reads_as_structlog_s(capsys: pytest.CaptureFixture[str], process: str | None):
    first, second = both(capsys, as_json=False, process=process)

    assert _AT.match(second)
    assert _AT.sub("at", second) == _AT.sub("at", first)


def test_a_level_above_info_leaves_lines_out(capsys: pytest.CaptureFixture[str]):
    async def write() -> None:
        log.configure(level="warning", as_json=True)
        log.line("worker", "delivery.attempted")(attempt=1)
        await asyncio.sleep(0)

    asyncio.run(write())

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_no_text_is_logged_all_the_same(capsys: pytest.CaptureFixture[str], as_json: bool):
    async def write() -> None:
        log.configure(level="info", as_json=as_json)
        log.line("worker", "delivery.attempted")(detail=b"\xff".decode(errors="surrogateescape"))
        await asyncio.sleep(0)

    asyncio.run(write())

    assert "detail" in capsys.readouterr().err


def test_lines_of_one_turn_are_written_together_and_those_of_a_loop_that_ended_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
):
    written = []
    monkeypatch.setattr("sys.stderr", type("Out", (), {"write": written.append, "flush": lambda: None}))
    line = log.line("worker", "x.done")

    async def write(*numbers: int) -> None:
        for number in numbers:
            line(n=number)

    asyncio.run(write(1, 2))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(write(3))
    loop.close()
    asyncio.run(write(4))

    numbers = [re.findall(r"n=(\d)", text) for text in written]
    assert numbers[0] == ["1", "2"]
    assert [number for some in numbers for number in some] == ["1", "2", "3", "4"]
