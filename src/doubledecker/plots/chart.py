"""A chart as a value: panels one below the other over the same horizontal axis, each with some lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Y = float | None
# Chosen to be distinguished by eyes that see no red or green (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")


@dataclass(frozen=True)
class Curve:
    """One curve. None is a gap. `low` and `high` bound it, where it is an estimate; `style` 0 is solid."""

    name: str
    ys: tuple[Y, ...]
    low: tuple[Y, ...] = ()
    high: tuple[Y, ...] = ()
    colour: int = 0
    style: int = 0
    is_step: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines that share a vertical axis from zero to `top`, or to their highest."""

    title: str
    lines: tuple[Curve, ...]
    top: float | None = None

    @property
    def highest(self) -> float:
        """The upper end of the vertical axis."""
        if self.top is not None:
            return self.top
        # Not from the bounds: few replications have wide ones, which would press the lines flat.
        values = [y for line in self.lines for y in line.ys if y is not None and math.isfinite(y)]
        return nice_ceiling(max(values, default=0.0))


@dataclass(frozen=True)
class Chart:
    """All panels over the same `xs`; `x_words` name them where they are no numbers (an empty word marks nothing)."""

    title: str
    x_title: str
    xs: tuple[float, ...]
    panels: tuple[Panel, ...]
    x_words: tuple[str, ...] = ()

    @property
    def left(self) -> float:
        """The left end of the horizontal axis: time begins at zero, settings at their least."""
        return min(self.xs) if self.x_words else min(0.0, *self.xs)

    @property
    def right(self) -> float:
        return max(self.xs)

    def ticks(self) -> list[tuple[float, str]]:
        """Where the horizontal axis is marked, and how."""
        if self.x_words:
            return [(x, word) for x, word in zip(self.xs, self.x_words, strict=True) if word]
        return [(tick, number(tick)) for tick in nice_ticks(self.left, self.right, 6)]


def nice_ceiling(value: float) -> float:
    """The next higher of 1, 1.5, 2, 3, 5, 7.5 times a power of ten; 1 for nothing."""
    if value <= 0.0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 3, 5, 7.5, 10) if value <= step * unit * (1 + 1e-9))


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many round numbers between two, evenly apart."""
    span = high - low
    if span <= 0.0:
        return [low]
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * unit for step in (1, 2, 5, 10) if span / (step * unit) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Short, without needless zeros."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"  # noqa: PLR2004 - from there commas read better


def runs(xs: Sequence[float], ys: Sequence[Y], *, is_step: bool = False) -> list[list[tuple[float, float]]]:
    """A line's points, cut where it has gaps; a step holds from one point to the next."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if y is None or not math.isfinite(y):
            found.append([])
            continue
        if is_step and found[-1]:
            found[-1].append((x, found[-1][-1][1]))
        found[-1].append((x, y))
    return [run for run in found if run]


def bands(xs: Sequence[float], line: Curve) -> list[list[tuple[float, float]]]:
    """The areas between a line's bounds, each as the points of its outline."""
    outlines = []
    bounded = [
        (x, low, high)
        for x, low, high in zip(xs, line.low, line.high, strict=False)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    if any(high > low for _, low, high in bounded) and len(bounded) > 1:
        back = [(x, low) for x, low, _ in reversed(bounded)]
        outlines.append([(x, high) for x, _, high in bounded] + back)
    return outlines


def is_flat(line: Curve) -> bool:
    """Nothing ever happens on it."""
    known = [y for y in line.ys if y is not None]
    return all(former == latter for former, latter in pairwise(known)) and not any(known)
