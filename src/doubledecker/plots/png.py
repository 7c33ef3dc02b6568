"""A chart as PNG, drawn with matplotlib, which comes with the extra `plots`."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from doubledecker.plots.chart import COLOURS, Chart, Curve, Panel, bands, runs
from doubledecker.stages.errors import ExtraMissing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ("-", "--", ":")
_WIDTH_IN, _PANEL_IN, _DOTS_PER_IN = 9.0, 1.7, 120


def check() -> None:
    """Raise ExtraMissing without matplotlib: better before a long simulation than after it."""
    if find_spec("matplotlib") is None:
        raise ExtraMissing("a PNG", "plots")


def save(chart: Chart, path: Path) -> None:
    """Write the file; raises ExtraMissing without matplotlib."""
    check()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    height_in = _PANEL_IN * len(chart.panels) + 0.6
    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DOTS_PER_IN, layout="constrained")
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=11)
    grid = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)
    for axes, panel in zip(grid[:, 0], chart.panels, strict=True):
        _draw(axes, chart, panel)
    last = grid[-1, 0]
    last.set_xlabel(chart.x_title, fontsize=9)
    if chart.x_words:
        last.set_xticks(chart.xs, chart.x_words)
    figure.savefig(path, format="png")


def _draw(axes: "Axes", chart: Chart, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.set_ylim(0.0, panel.highest * 1.03)
    axes.set_xlim(chart.left, chart.right if chart.right > chart.left else chart.left + 1.0)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=8)
    for line in panel.lines:
        _draw_line(axes, chart, line)
    axes.legend(fontsize=7, loc="upper right", ncols=3, framealpha=0.6)


def _draw_line(axes: "Axes", chart: Chart, line: Curve) -> None:
    colour, style = COLOURS[line.colour % len(COLOURS)], _STYLES[line.style % len(_STYLES)]
    for outline in bands(chart.xs, line):
        axes.fill([x for x, _ in outline], [y for _, y in outline], color=colour, alpha=0.15, linewidth=0)
    for i, run in enumerate(runs(chart.xs, line.ys, is_step=line.is_step)):
        xs, ys = [x for x, _ in run], [y for _, y in run]
        mark = "o" if len(run) == 1 else ""
        label = line.name if i == 0 else "_hidden"
        axes.plot(xs, ys, color=colour, linestyle=style, marker=mark, markersize=3, linewidth=1.2, label=label)
