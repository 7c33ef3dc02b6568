"""Plots and bars as SVG without a size of their own: the style sheet stretches them, and text stands beside them.

A path is in whole numbers: a unit to the right for each step, and a thousand from the bottom to the top. Each number
but the first is the way from the one before, so that a plot of three hundred steps takes a kilobyte a line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from markupsafe import Markup

from doubledecker.plots.chart import nice_ceiling, nice_ticks, number

Y = float | None
_HIGH = 1_000
_TICKS = 4


@dataclass(frozen=True)
class Line:
    """One line of a plot: what it is called, its values, what it has come to, and its class in the style sheet."""

    name: str
    ys: Sequence[Y]
    now: str
    style: str


@dataclass(frozen=True)
class Plot:
    """Lines over the same time; the area by which the first is above the second is filled, if it should be."""

    lines: Sequence[Line]
    span_title: str
    seconds: int
    end_s: int
    unit: str = ""
    write: Callable[[float], object] = number
    fills_gap: bool = False

    @property
    def has_values(self) -> bool:
        return any(y is not None for line in self.lines for y in line.ys)

    @cached_property
    def ticks(self) -> list[float]:
        """Round numbers, evenly apart, from zero to one that is not below the highest value."""
        known = (y for line in self.lines for y in line.ys if y is not None and y != float("inf"))
        highest = max(known, default=0.0)
        ticks = nice_ticks(0.0, nice_ceiling(highest), _TICKS)
        while ticks[-1] < highest:
            ticks.append(ticks[-1] + ticks[1])
        return ticks

    @property
    def marks(self) -> list[str]:
        """What stands beside the vertical axis, from the top down."""
        return [str(self.write(tick)) for tick in reversed(self.ticks)]

    @property
    def svg(self) -> Markup:
        """The drawing alone."""
        width = max(1, len(self.lines[0].ys) - 1)
        rows = len(self.ticks) - 1
        grid = "".join(f"M0 {round(_HIGH * row / rows)}H{width}" for row in range(rows + 1))
        top = self.ticks[-1]
        parts = [f'<path class="grid" d="{grid}"/>']
        if self.fills_gap:
            parts.append(f'<path class="behind" d="{_between(self.lines[0].ys, self.lines[1].ys, top)}"/>')
        parts += [f'<path class="line {line.style}" d="{path(line.ys, top)}"/>' for line in self.lines]
        return _svg("area", width, "".join(parts))


def sparkline(ys: Sequence[Y]) -> Markup:
    """A line without axes over a filled ground; from zero to its highest."""
    highest = max((y for y in ys if y is not None and y != float("inf")), default=0.0)
    top = (highest or 1.0) * 1.15
    runs = "".join(f"{_run(first, some, top)}V{_HIGH}H{first}z" for first, some in _runs(ys) if len(some) > 1)
    width = max(1, len(ys) - 1)
    return _svg("spark", width, f'<path class="ground" d="{runs}"/><path class="line" d="{path(ys, top)}"/>')


def bar(share: float, mark: float | None = None) -> Markup:
    """A bar as long as a share of its ground, and a mark where another share would end."""
    parts = [f'<rect class="ground" width="{_HIGH}" height="10"/>']
    parts.append(f'<rect class="full" width="{_share(share)}" height="10"/>')
    svg = f'<svg class="bar" viewBox="0 0 {_HIGH} 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}'
    if mark is not None:
        svg += f'<path class="mark" d="M{_share(mark)} 0V10"/>'
    return Markup(svg + "</svg>")  # noqa: S704 - numbers of ours alone


def path(ys: Sequence[Y], top: float) -> str:
    """A line through all values that are known."""
    return "".join(_run(first, some, top) for first, some in _runs(ys))


def _runs(ys: Sequence[Y]) -> Iterator[tuple[int, list[float]]]:
    """Where known values begin, and those that follow one another from there."""
    some: list[float] = []
    for place, y in enumerate([*ys, None]):
        if y is not None:
            some.append(y)
        elif some:
            yield place - len(some), some
            some = []


def _run(first: int, ys: Sequence[float], top: float) -> str:
    heights = [_height(y, top) for y in ys]
    if len(heights) == 1:
        return f"M{first} {heights[0]}h0"
    steps = "".join(f" 1 {after - before}" for before, after in pairwise(heights))
    return f"M{first} {heights[0]}l{steps.lstrip()}"


def _between(uppers: Sequence[Y], lowers: Sequence[Y], top: float) -> str:
    """The area by which the first line is above the second."""
    both = [None if u is None or low is None else (max(u, low), low) for u, low in zip(uppers, lowers, strict=True)]
    found = []
    for first, some in _runs([None if pair is None else float(place) for place, pair in enumerate(both)]):
        pairs = [pair for pair in both[first : first + len(some)] if pair is not None]
        # A gap of less than a pixel is none.
        if len(pairs) > 1 and any(high - low > top / 200 for high, low in pairs):
            back = [low for _, low in reversed(pairs)]
            end = first + len(pairs) - 1
            heights = [_height(y, top) for y in back]
            steps = "".join(f" -1 {after - before}" for before, after in pairwise(heights))
            found.append(f"{_run(first, [high for high, _ in pairs], top)}L{end} {heights[0]}l{steps.lstrip()}z")
    return "".join(found)


def _height(y: float, top: float) -> int:
    return round(_HIGH * (1 - min(y / top, 1.0)))


def _share(share: float) -> int:
    return round(_HIGH * min(max(share, 0.0), 1.0))


def _svg(style: str, width: int, inside: str) -> Markup:
    view = f'viewBox="0 0 {width} {_HIGH}" preserveAspectRatio="none" aria-hidden="true"'
    return Markup(f'<svg class="{style}" {view}>{inside}</svg>')  # noqa: S704 - numbers and styles of ours alone
