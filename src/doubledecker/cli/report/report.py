"""`doubledecker report`: what the measures say of a stretch of time, in the terminal and as a page.

Only the tables of measures are read, without Spark: a report is there in a second or two, and needs no running bus.
"""

import importlib.util
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
from rich.console import Console

from doubledecker import clock
from doubledecker.assembly import settings as reading
from doubledecker.cli import folder
from doubledecker.cli.report import page, text
from doubledecker.cli.report.charts import ReportCharts
from doubledecker.errors import BadRequest, LakeUnfit, SettingInvalid, SparkUnfit
from doubledecker.model import moment

_DAY = timedelta(days=1)
# Up to this long a report goes by minutes: as many points as a line can show.
_MINUTES_MAX = timedelta(hours=6)
_SPANS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ReportRange:
    """What is reported on: whole minutes or hours."""

    span: str
    since: datetime
    until: datetime


def report(
    *, start: str | None, end: str | None, html: Path | None, data: Path | None, lake: str | None, as_json: bool
) -> None:
    """Print the report, and write it as a page when a file is named."""
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    wanted = stretch(start, end, now=now)
    root = find(data, lake)
    if start is None:
        wanted = stretch(_first(root, wanted), end, now=now)
    if html is not None:
        # Before the work, and before anything is printed.
        _check(html)
    found = _read(root, wanted, is_open=wanted.until >= now)
    if html is not None:
        _write(html, page.render(found))
    if as_json:
        click.echo(msgspec.json.encode(found.summary))
    elif html is None:
        text.show(found, Console())


def stretch(start: str | None, end: str | None, *, now: datetime) -> ReportRange:
    """The time that is meant, the last day unless told otherwise, widened to whole minutes or hours."""
    until = moment.parse(end) if end else now
    since = moment.parse(start) if start else until - _DAY
    if since >= until:
        raise BadRequest(f"the report is to go from {_iso(since)} to {_iso(until)}; --from must be the earlier")
    span = "minute" if until - since <= _MINUTES_MAX else "hour"
    step = _SPANS[span]
    return ReportRange(span, since - (since - _EPOCH) % step, until + (_EPOCH - until) % step)


def find(data: Path | None, lake: str | None) -> str:
    """Where the lake is; raises when there is none, or nothing to read it with."""
    if importlib.util.find_spec("deltalake") is None:
        raise SparkUnfit("deltalake is not installed; get it with: pip install 'doubledecker[lake]'")
    root = lake or reading.read(os.environ).lake or str((data or folder.DEFAULT) / folder.LAKE)
    if not folder.has_lake(root):
        where = "pass its --lake, or --data of `doubledecker up`, or make one with `doubledecker pipeline run`"
        raise LakeUnfit(f"there is no lake at {root}; {where}")
    return str(Path(root).resolve())


def _read(root: str, wanted: ReportRange, *, is_open: bool) -> ReportCharts:
    from doubledecker.pipeline.metrics import summaries  # noqa: PLC0415 - slow to import, and may not be there

    summary = summaries.summarize(root, span=wanted.span, since=wanted.since, until=wanted.until)
    if not summary.moments:
        reach = summaries.reach(root)
        if reach is None:
            raise LakeUnfit(f"nothing has been measured yet in {root}; `doubledecker pipeline run` does it")
        first, last = map(_iso, reach)
        there = f"there are from {first} to {last}: pass --from and --to"
        raise LakeUnfit(f"there are no measures from {_iso(wanted.since)} to {_iso(wanted.until)}; {there}")
    # The heat map goes by hours, whatever the lines go by.
    hour = _SPANS["hour"]
    since, until = wanted.since - (wanted.since - _EPOCH) % hour, wanted.until + (_EPOCH - wanted.until) % hour
    return ReportCharts(summary, summaries.by_hour(root, since=since, until=until), is_open=is_open)


def _first(root: str, wanted: ReportRange) -> str | None:
    """When the measures begin, if that is within the time that is meant: a young bus is shown by minutes."""
    from doubledecker.pipeline.metrics import summaries  # noqa: PLC0415 - slow to import, and may not be there

    reach = summaries.reach(root)
    return _iso(reach[0]) if reach is not None and wanted.since < reach[0] < wanted.until else None


def _iso(moment_: datetime) -> str:
    return f"{moment_:%Y-%m-%dT%H:%M:%SZ}"


def _check(path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        word = "it is a folder" if path.is_dir() else "there is no such folder"
        raise SettingInvalid(f"cannot write {path}: {word}; name a file, like report.html")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingInvalid(f"cannot write {path}: {error.strerror}; name a file, like report.html") from error
    click.echo(f"written to {path}", err=True)
