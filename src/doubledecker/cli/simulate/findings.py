"""What a rehearsal found, as tables and as JSON."""

import json
import math
from collections.abc import Mapping, Sequence

import click
from rich.console import Console

from doubledecker.cli import words
from doubledecker.stages.simulation.record import Bounded, Fit
from doubledecker.stages.simulation.report import Estimate, Report, differences
from doubledecker.stages.simulation.report import measures as measures_of
from doubledecker.stages.simulation.runs import Settings, word


def show(title: str, reports: Mapping[str, Report], *, fit: Fit | None = None, as_json: bool) -> None:
    """What callers saw, side by side where there are several, and then every stage."""
    if as_json:
        click.echo(json.dumps(_as_json(title, reports, fit)))
        return
    if fit is not None:
        words.show(["fitted from the record", ""], _fit_rows(fit))
        click.echo()
    words.show(["callers", *_heads(reports)], _caller_rows(reports))
    for name, report in reports.items():
        if name != "recorded" or fit is None:
            click.echo()
            _show_stages(name, report)


def show_grid(points: Sequence[Settings], reports: Sequence[Report], *, as_json: bool) -> None:
    """A row for each combination."""
    if as_json:
        found = [
            {"settings": dict(settings), "callers": _estimates(measures_of(report))}
            for settings, report in zip(points, reports, strict=True)
        ]
        click.echo(json.dumps({"grid": found}))
        return
    wanted = ("success", "latency p50", "latency p95", "latency p99", "calls per event")
    rows = []
    for settings, report in zip(points, reports, strict=True):
        measures = measures_of(report)
        rows.append([*(word(value) for _, value in settings), *(str(measures[name]) for name in wanted)])
    words.show([*(path for path, _ in points[0]), *wanted], rows)


def _heads(reports: Mapping[str, Report]) -> list[str]:
    """Two are worth a difference."""
    names = list(reports)
    return names if len(names) != 2 else [*names, "difference"]  # noqa: PLR2004 - a pair


def _caller_rows(reports: Mapping[str, Report]) -> list[list[str]]:
    columns = [measures_of(report) for report in reports.values()]
    if len(columns) == 2:  # noqa: PLR2004 - a pair
        columns.append(differences(*reports.values()))
    rows = [[name, *(str(column[name]) for column in columns)] for name in columns[0]]
    return rows + _outcome_rows(reports, len(columns))


def _outcome_rows(reports: Mapping[str, Report], width: int) -> list[list[str]]:
    """How events ended, besides succeeding; by the class of what was raised."""
    kinds = {kind for report in reports.values() for one in report.replications for kind in one.outcomes}
    rows = []
    for kind in sorted(kinds - {"succeeded"}):
        cells = [str(report.ended(kind)) for report in reports.values()]
        rows.append([f"ended {kind}", *cells, *[""] * (width - len(cells))])
    return rows


def _show_stages(name: str, report: Report) -> None:
    """On a terminal a column a stage, which fits; when piped a row a stage, which is easier to read for programs."""
    stages = report.stages()
    columns = list(next(iter(stages.values())))
    if Console().is_terminal:
        rows = [[column, *(str(stages[stage][column]) for stage in stages)] for column in columns]
        words.show([name, *stages], rows)
    else:
        rows = [[stage, *(str(found[column]) for column in columns)] for stage, found in stages.items()]
        words.show([name, *columns], rows)


def _fit_rows(fit: Fit) -> list[list[str]]:
    rows = [
        ["events", f"{len(fit.traffic.seen):,}"],
        ["seconds", f"{fit.duration_s:.4g}"],
        ["availability", _bounded(fit.availability)],
        ["latency p50", _bounded(fit.median_s)],
        ["outages", ", ".join(f"{one.start_s:.4g} to {one.end_s:.4g} s" for one in fit.outages) or "none"],
    ]
    if fit.cut:
        rows.append(["cut by a timeout", f"{fit.cut:.2%} of the attempts: how slow they really were is not known"])
    return rows


def _bounded(found: Bounded) -> str:
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


def _as_json(title: str, reports: Mapping[str, Report], fit: Fit | None) -> dict[str, object]:
    found: dict[str, object] = {
        "title": title,
        "chains": {name: _report_as_json(report) for name, report in reports.items()},
    }
    if len(reports) == 2:  # noqa: PLR2004 - a pair
        found["difference"] = _estimates(differences(*reports.values()))
    if fit is not None:
        found["fit"] = {
            "events": len(fit.traffic.seen),
            "duration_s": fit.duration_s,
            "availability": vars(fit.availability),
            "median_s": vars(fit.median_s),
            "outages": [vars(one) for one in fit.outages],
            "cut": fit.cut,
        }
    return found


def _report_as_json(report: Report) -> dict[str, object]:
    kinds = sorted({kind for one in report.replications for kind in one.outcomes})
    outcomes = {kind: report.ended(kind) for kind in kinds}
    return {
        "replications": len(report.replications),
        "callers": _estimates(measures_of(report)),
        "outcomes": _estimates(outcomes),
        "stages": {name: _estimates(columns) for name, columns in report.stages().items()},
    }


def _estimates(found: Mapping[str, Estimate]) -> dict[str, dict[str, float | None]]:
    """Names as JSON likes them; a margin that is not known is null."""
    return {
        name.replace(" ", "_"): {"mean": one.mean, "margin": one.margin if math.isfinite(one.margin) else None}
        for name, one in found.items()
    }
