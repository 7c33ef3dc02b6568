"""A chart in the terminal: every character is two dots wide and four high (Braille)."""

from collections.abc import Iterator
from itertools import groupby, pairwise

from rich.console import Console
from rich.text import Text

from doubledecker.plots.chart import Chart, Curve, Panel, number, runs

_ROWS = 6
_LABEL = 9
_WIDTH_MAX = 110
_DOTS_X, _DOTS_Y = 2, 4
# The bits of a Braille character, by column and row.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_EMPTY = 0x2800
_COLOURS = ("bright_blue", "dark_orange", "green3", "magenta", "yellow", "cyan", "grey62")


def show(chart: Chart, console: Console) -> None:
    """Print the chart, as wide as the terminal allows."""
    columns = max(20, min(console.width, _WIDTH_MAX) - _LABEL - 1)
    console.print(Text(chart.title, style="bold"))
    for panel in chart.panels:
        console.print(_heading(panel))
        for line in _Canvas(chart, panel, columns).lines():
            console.print(line, no_wrap=True, crop=True)
    console.print(_axis(chart, columns), no_wrap=True, crop=True)


def _heading(panel: Panel) -> Text:
    heading = Text(f"{'':{_LABEL}} {panel.title}  ")
    for line in panel.lines:
        heading.append(f"━ {line.name}  ", style=_colour(line))
    return heading


def _axis(chart: Chart, columns: int) -> Text:
    left, right = chart.ticks()[0][1], chart.ticks()[-1][1]
    if not chart.x_words:
        left, right = number(chart.left), number(chart.right)
    middle = chart.x_title.center(columns - len(left) - len(right))
    return Text(f"{'':{_LABEL}} {left}{middle}{right}", style="dim")


class _Canvas:
    """One panel's characters; where lines cross, the later one gives the colour."""

    def __init__(self, chart: Chart, panel: Panel, columns: int) -> None:
        self._chart = chart
        self._columns = columns
        self._highest = panel.highest
        self._bits = [[0] * columns for _ in range(_ROWS)]
        self._colours = [[""] * columns for _ in range(_ROWS)]
        for line in panel.lines:
            self._draw(line)

    def lines(self) -> Iterator[Text]:
        for row in range(_ROWS):
            label = number(self._highest) if row == 0 else "0" if row == _ROWS - 1 else ""
            text = Text()
            text.append(f"{label:>{_LABEL}}│", style="dim")
            cells = zip(self._colours[row], self._bits[row], strict=True)
            for colour, same in groupby(cells, key=lambda cell: cell[0]):
                text.append("".join(chr(_EMPTY + bits) for _, bits in same), style=colour)
            yield text

    def _draw(self, line: Curve) -> None:
        for run in runs(self._chart.xs, line.ys, is_step=line.is_step):
            dots = [(self._x(x), self._y(y)) for x, y in run]
            self._dot(*dots[0], line)
            for (x0, y0), (x1, y1) in pairwise(dots):
                steps = max(abs(x1 - x0), abs(y1 - y0), 1)
                for i in range(1, steps + 1):
                    self._dot(x0 + round((x1 - x0) * i / steps), y0 + round((y1 - y0) * i / steps), line)

    def _dot(self, x: int, y: int, line: Curve) -> None:
        row, column = y // _DOTS_Y, x // _DOTS_X
        self._bits[row][column] |= _BITS[x % _DOTS_X][y % _DOTS_Y]
        self._colours[row][column] = _colour(line)

    def _x(self, x: float) -> int:
        span = (self._chart.right - self._chart.left) or 1.0
        return round((x - self._chart.left) / span * (self._columns * _DOTS_X - 1))

    def _y(self, y: float) -> int:
        share = min(max(y / self._highest, 0.0), 1.0)
        return round((1.0 - share) * (_ROWS * _DOTS_Y - 1))


def _colour(line: Curve) -> str:
    return _COLOURS[line.colour % len(_COLOURS)]
