"""A report in the terminal: tables with bars, and lines drawn in characters; when piped, the tables alone."""

import click
from rich.console import Console

from doubledecker.cli import sketch, table, words
from doubledecker.cli.report import charts
from doubledecker.cli.report.charts import Bars, Heat, ReportCharts
from doubledecker.model.summary import Moment, Spread, Summary

_BAR = 30
_SHADES = " ░▒▓█"


def show(report: ReportCharts, console: Console) -> None:
    """Print all of it."""
    summary = report.summary
    click.echo(f"{words.moment(summary.since)} to {words.moment(summary.until)}, by {summary.span}")
    click.echo()
    table.show(["in all", ""], totals(summary.total))
    chart = charts.lines(report)
    if chart is not None and console.is_terminal:
        click.echo()
        sketch.show(chart, console)
    for each in charts.bars(summary):
        click.echo()
        _show_bars(each)
    _show_subscribers(summary)
    click.echo()
    _show_heat(charts.heat(report))


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
    rows = [[bar.name, bar.told, "█" * round(bar.value / most * _BAR)] for bar in shown.bars]
    table.show([shown.title, "", ""], rows)


def _show_subscribers(summary: Summary) -> None:
    if not summary.subscribers:
        return
    click.echo()
    titles = ["subscriber", "attempts", "retries", "events", "attempts took", "accepted to delivered"]
    rows = [
        [each.name, f"{each.attempts:,}", f"{each.retries:,}", f"{each.events:,}", spread(each.took), spread(each.age)]
        for each in summary.subscribers
    ]
    table.show(titles, rows)


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
    table.show([heat.title, hours, "events"], rows)
