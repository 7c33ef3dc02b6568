"""Charts of a grid: success, latency and calls by one setting, a line for each combination of the others."""

from collections.abc import Sequence

from doubledecker.plots.chart import COLOURS, Chart, Curve, Panel
from doubledecker.stages.simulation.report import MEASURES, Report
from doubledecker.stages.simulation.runs import Axis, Settings, Value, word

_PANELS = (
    ("success", "success", 1.0),
    ("latency p95", "latency p95, s", None),
    ("latency p99", "latency p99, s", None),
    ("calls per event", "calls of the dependency per event", None),
)
_LINES_MAX, _MARKS_MAX = 12, 12  # more cannot be distinguished


def chart(axes: Sequence[Axis], points: Sequence[Settings], reports: Sequence[Report], *, title: str) -> Chart:
    """Along the axis with the most values; a grid with very many other combinations shows the first of them."""
    along = max(axes, key=lambda axis: len(axis.values))
    found: dict[Settings, dict[Value, Report]] = {}
    for settings, report in zip(points, reports, strict=True):
        others = tuple((path, value) for path, value in settings if path != along.path)
        found.setdefault(others, {})[dict(settings)[along.path]] = report
    shown = dict(list(found.items())[:_LINES_MAX])
    values = _in_order(along.values)
    panels = tuple(
        Panel(
            title,
            tuple(_line(i, others, [by[v] for v in values], measure) for i, (others, by) in enumerate(shown.items())),
            top,
        )
        for measure, title, top in _PANELS
    )
    return Chart(title, along.path, _xs(values), panels, _words(values))


def _in_order(values: Sequence[Value]) -> list[Value]:
    return sorted(set(values), key=lambda value: value or 0) if _are_numbers(values) else list(dict.fromkeys(values))


def _are_numbers(values: Sequence[Value]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _xs(values: Sequence[Value]) -> tuple[float, ...]:
    """Numbers stand where they are, anything else side by side."""
    return tuple(float(value or 0) if _are_numbers(values) else float(i) for i, value in enumerate(values))


def _words(values: Sequence[Value]) -> tuple[str, ...]:
    """Few values are each marked with their own; many numbers with round ones."""
    return () if _are_numbers(values) and len(values) > _MARKS_MAX else tuple(map(word, values))


def _line(i: int, others: Settings, found: Sequence[Report], measure: str) -> Curve:
    estimates = [report.estimate(MEASURES[measure]) for report in found]
    return Curve(
        ", ".join(f"{_short(path, others)}={word(value)}" for path, value in others),
        tuple(one.mean for one in estimates),
        tuple(max(0.0, one.low) for one in estimates),
        tuple(one.high for one in estimates),
        colour=i,
        style=i // len(COLOURS),
    )


def _short(path: str, others: Settings) -> str:
    """The last part of a path, where no other ends the same."""
    last = path.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other, _ in others) == 1 else path
