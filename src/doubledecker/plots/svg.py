"""A chart as SVG, written by hand: no dependency, small files, and the same bytes for the same chart.

It follows the reader's theme: dark lines on light, light lines on dark.
"""

from collections.abc import Iterator, Sequence
from html import escape

from doubledecker.plots.chart import COLOURS, Chart, Curve, Panel, bands, nice_ticks, number, runs

_WIDTH, _PANEL, _TOP, _LEFT, _RIGHT, _GAP, _BOTTOM = 760, 110, 26, 62, 14, 24, 14
_DASHES = ("", "6 4", "2 3")
STYLE = """<style>
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
    parts: list[str] = []
    top = float(_TOP)
    for panel in chart.panels:
        frame = _Frame(chart, panel, top)
        parts.extend(frame.draw())
        top = frame.bottom + _GAP
    height = top + _BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">',
            f"<title>{escape(chart.title)}</title>",
            STYLE,
            f'<text class="title" x="{_LEFT}" y="18">{escape(chart.title)}</text>',
            *parts,
            f'<text class="faint" x="{_LEFT}" y="{height - 6:g}">{escape(chart.x_title)}</text>',
            "</svg>",
            "",
        ]
    )


class _Frame:
    """One panel and its place on the page: its legend, in as many rows as it needs, and the curves below."""

    def __init__(self, chart: Chart, panel: Panel, top: float) -> None:
        self._chart = chart
        self._panel = panel
        self._span = (chart.right - chart.left) or 1.0
        self._highest = panel.highest
        self._legend = list(self._legend_from(top + 14))
        self._top = max(y for _, _, y in self._legend) + 8
        self.bottom = self._top + _PANEL

    def draw(self) -> Iterator[str]:
        yield f'<text x="{_LEFT}" y="{self._legend[0][2]:g}">{escape(self._panel.title)}</text>'
        for line, x, y in self._legend:
            yield f'<path class="line" stroke="{_colour(line)}"{_dashed(line)} d="M{x + 6:.0f} {y - 4:g}h18"/>'
            yield f'<text class="faint" x="{x + 28:.0f}" y="{y:g}">{escape(line.name)}</text>'
        yield from self._axes()
        for line in self._panel.lines:
            for outline in bands(self._chart.xs, line):
                yield f'<polygon class="band" fill="{_colour(line)}" points="{self._points(outline)}"/>'
        for line in self._panel.lines:
            yield from self._curve(line)

    def _legend_from(self, y: float) -> Iterator[tuple[Curve, float, float]]:
        """Where each line's name stands; the widths are guessed, since fonts differ."""
        first = x = _LEFT + 8 + 6.6 * len(self._panel.title)
        for line in self._panel.lines:
            wide = 40 + 6.4 * len(line.name)
            if x + wide > _WIDTH and x > first:
                x, y = first, y + 16
            yield line, x, y
            x += wide

    def _axes(self) -> Iterator[str]:
        left, right, bottom = _LEFT, _WIDTH - _RIGHT, self.bottom
        for tick in nice_ticks(0.0, self._highest, 4):
            y = self._y(tick)
            yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
            yield f'<text class="faint" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick, word in self._chart.ticks():
            x = self._x(tick)
            yield f'<path class="axis" d="M{x:.1f} {bottom:g}v4"/>'
            yield f'<text class="faint" x="{x:.1f}" y="{bottom + 16:g}" text-anchor="middle">{escape(word)}</text>'
        yield f'<path class="axis" d="M{left} {self._top:g}V{bottom:g}H{right}"/>'

    def _curve(self, line: Curve) -> Iterator[str]:
        colour = _colour(line)
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


def _colour(line: Curve) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _dashed(line: Curve) -> str:
    dash = _DASHES[line.style % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""
