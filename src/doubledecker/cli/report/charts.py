"""What a report draws: lines over time, bars and a heat map, as values that terminal and page draw in their ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click
from rich.console import Console

from doubledecker.cli import sketch, words
from doubledecker.model.summary import Moment, Receiving, Serving, Spread, Summary
from doubledecker.plots.chart import COLOURS, Chart, Curve, Panel

_STEP_MS = {"minute": 60_000, "hour": 3_600_000}
_DAYS_MAX = 31
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MARKS = 6


@dataclass(frozen=True)
class ReportCharts:
    """A summary, and events by hour (when it begins, in milliseconds) for the heat map.

    One that reaches to the present is open: what it says of its last moment is not all yet.
    """

    summary: Summary
    hours: dict[int, int]
    is_open: bool = False


@dataclass(frozen=True)
class Bar:
    """One of several, to be compared by length; `label` is its value in words."""

    name: str
    value: float
    label: str


@dataclass(frozen=True)
class Bars:
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Heat:
    """A value for each hour of the day, in rows by day; None where nothing was measured."""

    title: str
    rows: tuple[str, ...]
    cells: tuple[tuple[int | None, ...], ...]


def lines(report: ReportCharts) -> Chart | None:
    """Throughput, latency and fairness over time; None when the stretch has but one moment."""
    summary = report.summary
    step_ms = _STEP_MS[summary.span]
    ats = list(range(summary.since, summary.until, step_ms))
    if len(ats) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    known = {moment.at: moment for moment in summary.moments}
    moments = [known.get(at, Moment(at)) for at in ats]
    # A moment that is still being counted would look like a fall.
    ends = max(known, default=0) if report.is_open else summary.until

    def rates(name: str) -> list[float | None]:
        return [getattr(each, name) * 1000 / step_ms if each.at < ends else None for each in moments]

    panels = [
        Panel(
            "per second",
            tuple(
                _line(name, rates(name), colour) for name, colour in (("events", 0), ("attempts", 1), ("retries", 3))
            ),
        ),
        *_spreads("attempts took, ms", moments, lambda each: each.took),
        *_spreads("from accepted to delivered, ms", moments, lambda each: each.age),
        *_fairness(summary, ats),
    ]
    return Chart(
        f"By {summary.span}", "UTC", tuple(map(float, range(len(ats)))), tuple(panels), _marks(ats, summary.span)
    )


def bars(summary: Summary) -> Iterator[Bars]:
    """The largest topics and tenants, who failed, and who was served."""
    for title, flows in (("Events by topic", summary.topics), ("Events by tenant", summary.tenants)):
        if flows:
            yield Bars(title, tuple(Bar(flow.name, flow.events, f"{flow.events:,}") for flow in flows))
    failing = [(each, failures(each)) for each in summary.subscribers]
    if failing:
        found = [Bar(each.name, count, _failed(each, count)) for each, count in failing]
        yield Bars("Failed attempts by subscriber", tuple(sorted(found, key=lambda bar: -bar.value)))
    for queue in summary.queues:
        shares = tuple(Bar(name, share, _served(queue, name, share)) for name, share in queue.shares.items())
        if shares:
            yield Bars(f"Served by queue {queue.name}, share of each tenant ({fairness(queue)})", shares)


def heat(report: ReportCharts) -> Heat:
    """Events by hour of the day: a row a day, or a weekday where the days would be too many."""
    first, last = (
        datetime.fromtimestamp(each / 1000, UTC) for each in (report.summary.since, report.summary.until - 1)
    )
    days = [(first + timedelta(days=n)).date() for n in range((last.date() - first.date()).days + 1)]
    if len(days) <= _DAYS_MAX:
        rows = {day.isoformat(): index for index, day in enumerate(days)}
        named = [(datetime.fromtimestamp(at / 1000, UTC), count) for at, count in report.hours.items()]
        placed = [(rows[moment.date().isoformat()], moment.hour, count) for moment, count in named]
    else:
        rows = {day: index for index, day in enumerate(_WEEKDAYS)}
        named = [(datetime.fromtimestamp(at / 1000, UTC), count) for at, count in report.hours.items()]
        placed = [(moment.weekday(), moment.hour, count) for moment, count in named]
    cells: list[list[int | None]] = [[None] * 24 for _ in rows]
    for row, hour, count in placed:
        cells[row][hour] = (cells[row][hour] or 0) + count
    return Heat("Events by hour of the day (UTC)", tuple(rows), tuple(map(tuple, cells)))


def failures(each: Receiving) -> int:
    return each.attempts - each.outcomes.get("delivered", 0)


def outcomes(each: Receiving) -> str:
    """How failed attempts ended, the most frequent first."""
    failed = sorted(
        ((count, word) for word, count in each.outcomes.items() if count and word != "delivered"), reverse=True
    )
    return ", ".join(f"{word} {count:,}" for count, word in failed)


def _failed(each: Receiving, count: int) -> str:
    share = f"{count:,} of {each.attempts:,}"
    return f"{share} ({outcomes(each)})" if count else share


def fairness(queue: Serving) -> str:
    """How fairly a queue served, in words."""
    if queue.jain is None:
        return "what was asked for is not known"
    divided = " of time" if queue.charge == "time" else ""
    return f"Jain index{divided} against demand {queue.jain:.3f}"


def wait(wait_ms: float | None) -> str:
    """How long a tenant waited, in words."""
    return "waits, not served" if wait_ms is None else f"waited {words.age(round(wait_ms))}"


def _served(queue: Serving, tenant: str, share: float) -> str:
    return f"{share:.1%}, {wait(queue.waits[tenant])}" if tenant in queue.waits else f"{share:.1%}"


def _spreads(title: str, moments: Sequence[Moment], get: Callable[[Moment], Spread | None]) -> Iterator[Panel]:
    spreads = [get(moment) for moment in moments]
    if any(spreads):
        names = ("p50", "p95", "p99")
        yield Panel(
            title,
            tuple(
                _line(name, [None if each is None else float(getattr(each, name)) for each in spreads], colour)
                for colour, name in enumerate(names)
            ),
        )


def _fairness(summary: Summary, ats: Sequence[int]) -> Iterator[Panel]:
    places = {moment.at: index for index, moment in enumerate(summary.moments)}
    shown = [queue for queue in summary.queues if queue.jain is not None][: len(COLOURS)]
    if shown:
        found = [
            _line(queue.name, [queue.jains[places[at]] if at in places else None for at in ats], index)
            for index, queue in enumerate(shown)
        ]
        yield Panel("fairness by queue (Jain index against demand)", tuple(found), top=1.0)


def _line(name: str, ys: Sequence[float | None], colour: int) -> Curve:
    return Curve(name, tuple(ys), colour=colour)


def _marks(ats: Sequence[int], span: str) -> tuple[str, ...]:
    """Times along the axis: few, evenly apart, the first and the last among them."""
    form = "%H:%M" if span == "minute" or ats[-1] - ats[0] <= 48 * _STEP_MS["hour"] else "%m-%d %Hh"
    marked = {round(index * (len(ats) - 1) / _MARKS) for index in range(_MARKS + 1)}
    return tuple(
        f"{datetime.fromtimestamp(at / 1000, UTC):{form}}" if index in marked else "" for index, at in enumerate(ats)
    )


# A report in the terminal: tables with bars, and lines drawn in characters; when piped, the tables alone.

_BAR = 30
_SHADES = " ░▒▓█"


def show(report: ReportCharts, console: Console) -> None:
    """Print all of it."""
    summary = report.summary
    click.echo(f"{words.moment(summary.since)} to {words.moment(summary.until)}, by {summary.span}")
    click.echo()
    words.show(["in all", ""], totals(summary.total))
    chart = lines(report)
    if chart is not None and console.is_terminal:
        click.echo()
        sketch.show(chart, console)
    for each in bars(summary):
        click.echo()
        _show_bars(each)
    _show_subscribers(summary)
    click.echo()
    _show_heat(heat(report))


def totals(total: Moment) -> list[list[str]]:
    """The numbers of the whole stretch, in words."""
    return [
        ["events", f"{total.events:,}"],
        ["bytes", words.size(total.bytes)],
        ["tenants", f"{total.tenants:,}"],
        ["keys", f"{total.keys:,}"],
        ["attempts", f"{total.attempts:,}"],
        ["delivered", f"{total.delivered:,}"],
        ["retries", f"{total.retries:,}"],
        ["attempts took", spread(total.took)],
        ["accepted to delivered", spread(total.age)],
    ]


def spread(found: Spread | None) -> str:
    """Percentiles in words."""
    if found is None:
        return "none"
    return f"p50 {words.age(found.p50)}, p95 {words.age(found.p95)}, p99 {words.age(found.p99)}"


def _show_bars(shown: Bars) -> None:
    most = max(bar.value for bar in shown.bars) or 1.0
    rows = [[bar.name, bar.label, "█" * round(bar.value / most * _BAR)] for bar in shown.bars]
    words.show([shown.title, "", ""], rows)


def _show_subscribers(summary: Summary) -> None:
    if not summary.subscribers:
        return
    click.echo()
    titles = ["subscriber", "attempts", "retries", "events", "attempts took", "accepted to delivered"]
    rows = [
        [each.name, f"{each.attempts:,}", f"{each.retries:,}", f"{each.events:,}", spread(each.took), spread(each.age)]
        for each in summary.subscribers
    ]
    words.show(titles, rows)


def _show_heat(heat: Heat) -> None:
    most = max((cell or 0 for row in heat.cells for cell in row), default=0) or 1
    rows = [
        [
            name,
            "".join(_SHADES[-(-(cell or 0) * (len(_SHADES) - 1) // most)] * 2 for cell in cells),
            f"{sum(cell or 0 for cell in cells):,}",
        ]
        for name, cells in zip(heat.rows, heat.cells, strict=True)
    ]
    hours = "".join(f"{hour:<6}" for hour in range(0, 24, 3))
    words.show([heat.title, hours, "events"], rows)
