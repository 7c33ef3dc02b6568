"""Charts of simulations over time: latency, success, traffic, queues and breakers; one chain, or several on top."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from doubledecker.plots.chart import Chart, Curve, Panel, is_flat
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.simulation.report import Estimate, Interval, IntervalMeasure, Report, moments, over_time
from doubledecker.stages.statistics import Snapshot

_SHARES, _SHARES_COMPARED = (0.5, 0.95, 0.99), (0.99, 0.5)
# A breaker's states: one circuit's, or how many of those of all keys are not closed.
_CIRCUITS = re.compile(r"(?P<one>closed|open|half-open)|(?P<some>\d+) of (?P<all>\d+) not closed")


def chart(reports: Mapping[str, Report], *, title: str) -> Chart:
    """Draw one report, or compare several that were sampled at the same moments."""
    sampled_at = [moments(report) for report in reports.values()]
    if not sampled_at[0]:
        raise ChainInvalid("nothing to draw over time: simulate with sample_every")
    if any(one != sampled_at[0] for one in sampled_at):
        raise ChainInvalid("cannot draw these over one another: their durations or samples differ")
    panels = (
        Panel("latency, s", tuple(_latencies(reports))),
        Panel("success", tuple(_each(reports, lambda one: one.success, "success")), top=1.0),
        Panel("calls per second", tuple(_calls(reports))),
        Panel("waiting in queues", tuple(_queues(reports))),
        Panel("circuits not closed (share)", tuple(_circuits(reports)), top=1.0),
    )
    return Chart(title, "seconds", tuple(sampled_at[0]), tuple(panel for panel in panels if panel.lines))


def _latencies(reports: Mapping[str, Report]) -> list[Curve]:
    """One chain: a colour a quantile. Several: a colour a chain, a style a quantile."""
    lines = []
    is_alone = len(reports) == 1
    for i, (name, report) in enumerate(reports.items()):
        for j, share in enumerate(_SHARES if is_alone else _SHARES_COMPARED):
            values = over_time(report, partial(_latency_s, share=share))
            quantile = f"p{share * 100:g}"
            if is_alone:
                lines.append(_line(quantile, values, colour=j))
            else:
                lines.append(_line(f"{name} {quantile}", values, colour=i, style=2 * j, is_bounded=False))
    return lines


def _latency_s(interval: Interval, *, share: float) -> float | None:
    return interval.latency_s(share)


def _each(reports: Mapping[str, Report], measure: IntervalMeasure, word: str) -> list[Curve]:
    return [
        _line(word if len(reports) == 1 else name, over_time(report, measure), colour=i)
        for i, (name, report) in enumerate(reports.items())
    ]


def _calls(reports: Mapping[str, Report]) -> list[Curve]:
    """What callers send (the same for all), and what reaches the dependency."""
    first = next(iter(reports.values()))
    sent = _line("sent", over_time(first, lambda one: one.arrived_per_s(0)), colour=len(reports), style=1)
    reaching = _each(reports, lambda one: one.arrived_per_s(-1), "reaching the dependency")
    return [*reaching, sent] if len(first.replications[0].snapshots) > 1 else [sent]


def _queues(reports: Mapping[str, Report]) -> list[Curve]:
    lines = []
    for i, (name, report) in enumerate(reports.items()):
        for j, stage in enumerate(_stages(report, lambda one: one.workers is not None)):
            values = over_time(report, partial(_queued, stage=stage))
            line = _line(_label(reports, name, stage), values, colour=i if len(reports) > 1 else j, style=j)
            lines.append(line)
    waiting = [line for line in lines if not is_flat(line)]
    return waiting or lines[:1]


def _circuits(reports: Mapping[str, Report]) -> list[Curve]:
    lines = []
    for i, (name, report) in enumerate(reports.items()):
        for j, stage in enumerate(_stages(report, lambda one: _CIRCUITS.fullmatch(one.state) is not None)):
            values = over_time(report, partial(_not_closed, stage=stage))
            colour = i if len(reports) > 1 else j
            lines.append(_line(_label(reports, name, stage), values, colour=colour, is_step=True, is_bounded=False))
    return lines


def _queued(interval: Interval, *, stage: str) -> float:
    return float(interval.at_end(stage).queued)


def _not_closed(interval: Interval, *, stage: str) -> float:
    """The share of a breaker's circuits: of its only one, or of those that it has by key."""
    state = _CIRCUITS.fullmatch(interval.at_end(stage).state)
    assert state is not None
    if state["one"]:
        return float(state["one"] != "closed")
    return int(state["some"]) / max(1, int(state["all"]))


def _label(reports: Mapping[str, Report], name: str, stage: str) -> str:
    return stage if len(reports) == 1 else f"{name} {stage}"


def _stages(report: Report, wanted: Callable[[Snapshot], bool]) -> list[str]:
    seen = [one for sample in report.replications[0].samples for one in sample.snapshots]
    return list(dict.fromkeys(one.stage for one in seen if wanted(one)))


def _line(
    name: str,
    values: Sequence[Estimate | None],
    *,
    colour: int,
    style: int = 0,
    is_step: bool = False,
    is_bounded: bool = True,
) -> Curve:
    known = values if is_bounded else ()
    return Curve(
        name,
        tuple(value.mean if value else None for value in values),
        tuple(max(0.0, value.low) if value else None for value in known),
        tuple(value.high if value else None for value in known),
        colour=colour,
        style=style,
        is_step=is_step,
    )
