"""A chart as SVG, written by hand: no dependency, small files, and the same bytes for the same chart.

It follows the reader's theme: dark lines on light, light lines on dark.
"""

from collections.abc import Iterator, Sequence
from html import escape

from doubledecker.stages.plots.chart import COLOURS, Chart, Line, Panel, bands, nice_ticks, number, runs

_WIDTH, _PANEL, _TOP, _LEFT, _RIGHT, _GAP, _BOTTOM = 760, 110, 34, 62, 14, 46, 34
_DASHES = ("", "6 4", "2 3")
_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 14px }
.faint { fill: #777 }
.axis { stroke: #999; stroke-width: 1; fill: none }
.grid { stroke: #999; stroke-opacity: .25; stroke-width: 1 }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.band { fill-opacity: .15; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .faint { fill: #999 } }
</style>"""

Point = tuple[float, float]


def draw(chart: Chart) -> str:
    """The whole drawing as text."""
    height = _TOP + len(chart.panels) * (_PANEL + _GAP) + _BOTTOM - 12
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    parts = [frame, f"<title>{escape(chart.title)}</title>", _STYLE]
    parts.append(f'<text class="title" x="{_LEFT}" y="18">{escape(chart.title)}</text>')
    for i, panel in enumerate(chart.panels):
        parts.extend(_Frame(chart, panel, _TOP + 22 + i * (_PANEL + _GAP)).draw())
    parts.append(f'<text class="faint" x="{_LEFT}" y="{height - 6}">{escape(chart.x_title)}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Frame:
    """One panel and its place on the page."""

    def __init__(self, chart: Chart, panel: Panel, top: float) -> None:
        self._chart = chart
        self._panel = panel
        self._top = top
        self._span = (chart.right - chart.left) or 1.0
        self._highest = panel.highest

    def draw(self) -> Iterator[str]:
        yield from self._legend()
        yield from self._axes()
        for line in self._panel.lines:
            colour = COLOURS[line.colour % len(COLOURS)]
            for outline in bands(self._chart.xs, line):
                yield f'<polygon class="band" fill="{colour}" points="{self._points(outline)}"/>'
        for line in self._panel.lines:
            yield from self._curve(line)

    def _legend(self) -> Iterator[str]:
        y = self._top - 8
        yield f'<text x="{_LEFT}" y="{y:g}">{escape(self._panel.title)}</text>'
        x = _LEFT + 8 + 6.6 * len(self._panel.title)
        for line in self._panel.lines:
            colour = COLOURS[line.colour % len(COLOURS)]
            stroke = f'class="line" stroke="{colour}"{_dashed(line)}'
            yield f'<path {stroke} d="M{x + 6:.0f} {y - 4:g}h18"/>'
            yield f'<text class="faint" x="{x + 28:.0f}" y="{y:g}">{escape(line.name)}</text>'
            x += 40 + 6.4 * len(line.name)

    def _axes(self) -> Iterator[str]:
        left, right, bottom = _LEFT, _WIDTH - _RIGHT, self._top + _PANEL
        for tick in nice_ticks(0.0, self._highest, 4):
            y = self._y(tick)
            yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
            yield f'<text class="faint" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick, word in self._chart.ticks():
            x = self._x(tick)
            yield f'<path class="axis" d="M{x:.1f} {bottom}v4"/>'
            yield f'<text class="faint" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(word)}</text>'
        yield f'<path class="axis" d="M{left} {self._top}V{bottom}H{right}"/>'

    def _curve(self, line: Line) -> Iterator[str]:
        colour = COLOURS[line.colour % len(COLOURS)]
        for run in runs(self._chart.xs, line.ys, is_step=line.is_step):
            if len(run) == 1:
                [(x, y)] = run
                yield f'<circle fill="{colour}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="2"/>'
            else:
                yield f'<polyline class="line" stroke="{colour}"{_dashed(line)} points="{self._points(run)}"/>'

    def _points(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)

    def _x(self, x: float) -> float:
        return _LEFT + (x - self._chart.left) / self._span * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, y: float) -> float:
        share = min(max(y / self._highest, 0.0), 1.0)
        return self._top + _PANEL * (1.0 - share)


def _dashed(line: Line) -> str:
    dash = _DASHES[line.style % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""
