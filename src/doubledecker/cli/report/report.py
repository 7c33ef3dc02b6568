"""`doubledecker report`: the measures of a stretch of time, in the terminal and as a page.

Only the tables of measures are read, without Spark: a report is there in a second or two, and needs no running bus.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path

import click
import msgspec
from rich.console import Console

from doubledecker import clock
from doubledecker.assembly import settings as reading
from doubledecker.cli import folder, words
from doubledecker.cli.report import charts
from doubledecker.cli.report.charts import Bars, Heat, ReportCharts, spread, totals
from doubledecker.errors import BadRequest, LakeUnfit, SettingInvalid, SparkUnfit
from doubledecker.model import moment
from doubledecker.model.summary import Summary
from doubledecker.plots import svg
from doubledecker.plots.chart import COLOURS

# A report as a page: one HTML file with its drawings inside; it loads nothing, runs nothing, and follows the theme.

_WIDTH, _NAME, _VALUE, _ROW = 760, 190, 200, 22
_CELL, _LABEL = 26, 100
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #666; --line: #ddd; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --faint: #999; --line: #333; --paper: #161616 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p { color: var(--faint); margin: 0 } figure { margin: 0; padding-right: 1rem }
svg { max-width: 100%; height: auto; display: block; overflow: visible }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: .5rem 1.5rem; margin: 1rem 0 }
dt { color: var(--faint); font-size: .85rem } dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .5rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
.wide { overflow-x: auto }
"""


def render(report: ReportCharts) -> str:
    """The whole page."""
    summary = report.summary
    title = f"Doubledecker, {words.moment(summary.since)} to {words.moment(summary.until)}"
    parts = [*_head(title, summary), *_drawn(report), *_subscribers(summary), "</main>", "</body>", "</html>", ""]
    return "\n".join(parts)


def _head(title: str, summary: Summary) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>"
    yield f"<h1>{escape(title)}</h1>\n<p>Measured by {summary.span}, in UTC.</p>"
    yield "<dl>"
    for name, value in totals(summary.total):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _drawn(report: ReportCharts) -> Iterator[str]:
    chart = charts.lines(report)
    if chart is not None:
        yield _section("Over time", svg.draw(chart))
    heat = charts.heat(report)
    yield _section(heat.title, _heat(heat))
    for each in charts.bars(report.summary):
        yield _section(each.title, _bars(each))


def _section(title: str, drawing: str) -> str:
    return f'<section>\n<h2>{escape(title)}</h2>\n<figure class="wide">\n{drawing}</figure>\n</section>'


def _bars(shown: Bars) -> str:
    """Names on the left, bars, and each one's value in words at its end."""
    most = max(bar.value for bar in shown.bars) or 1.0
    room = _WIDTH - _NAME - _VALUE
    parts = [_open(_WIDTH, _ROW * len(shown.bars) + 4, shown.title)]
    for index, bar in enumerate(shown.bars):
        y, wide = index * _ROW + 4, bar.value / most * room
        parts += [
            f"<g><title>{escape(bar.name)}: {escape(bar.label)}</title>",
            f'<text x="{_NAME - 8}" y="{y + 13}" text-anchor="end">{escape(_short(bar.name))}</text>',
            f'<rect fill="{COLOURS[0]}" x="{_NAME}" y="{y}" width="{wide:.1f}" height="{_ROW - 5}" rx="2"/>',
            f'<text class="faint" x="{_NAME + wide + 6:.1f}" y="{y + 13}">{escape(_short(bar.label, 30))}</text></g>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _heat(heat: Heat) -> str:
    """A cell an hour, the darker the more; what it stands for is its title."""
    most = max((cell or 0 for row in heat.cells for cell in row), default=0) or 1
    parts = [_open(_WIDTH, 20 + _CELL * len(heat.rows), heat.title)]
    parts += [
        f'<text class="faint" x="{_LABEL + (hour + 0.5) * _CELL:g}" y="12" text-anchor="middle">{hour}</text>'
        for hour in range(24)
    ]
    for index, (name, cells) in enumerate(zip(heat.rows, heat.cells, strict=True)):
        y = 20 + index * _CELL
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        for hour, cell in enumerate(cells):
            shade = 0.06 if not cell else 0.15 + 0.85 * cell / most
            title = f"{name} {hour}:00, " + ("nothing measured" if cell is None else f"{cell:,} events")
            parts.append(
                f'<rect fill="{COLOURS[0]}" fill-opacity="{shade:.2f}" x="{_LABEL + hour * _CELL}" y="{y}" '
                f'width="{_CELL - 2}" height="{_CELL - 2}" rx="3"><title>{escape(title)}</title></rect>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _open(width: int, height: int, title: str) -> str:
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return f"{begin}\n<title>{escape(title)}</title>\n{svg.STYLE}"


def _subscribers(summary: Summary) -> Iterator[str]:
    if summary.subscribers:
        titles = ("Subscriber", "Attempts", "Failed", "How", "Retries", "Attempts took", "Accepted to delivered")
        rows = [
            (
                each.name,
                f"{each.attempts:,}",
                f"{charts.failures(each):,}",
                charts.outcomes(each),
                f"{each.retries:,}",
                spread(each.took),
                spread(each.age),
            )
            for each in summary.subscribers
        ]
        yield "<section>\n<h2>Subscribers</h2>\n" + _table(titles, rows) + "</section>"
    if summary.queues:
        kinds = ("pulled", "acked", "nacked", "expired", "dead", "redriven")
        settled = [
            (
                queue.name,
                f"{queue.tenants:,}",
                queue.charge,
                "none" if queue.jain is None else f"{queue.jain:.3f}",
                *(f"{queue.settled[kind]:,}" for kind in kinds),
            )
            for queue in summary.queues
        ]
        names = ("Queue", "Tenants", "Charged by", "Jain index", *(kind.capitalize() for kind in kinds))
        yield "<section>\n<h2>Queues</h2>\n" + _table(names, settled) + "</section>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>\n'


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
        _write(html, render(found))
    if as_json:
        click.echo(msgspec.json.encode(found.summary))
    elif html is None:
        charts.show(found, Console())


def stretch(start: str | None, end: str | None, *, now: datetime) -> ReportRange:
    """The time that is meant, by default the last day, widened to whole minutes or hours."""
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
    root = lake or reading.read(os.environ).lake or str((data or folder.default()) / folder.LAKE)
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
