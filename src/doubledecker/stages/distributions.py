"""Distributions of durations, for simulated dependencies and injected delays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from doubledecker.stages import limits


class Distribution(Protocol):
    """Something to draw durations from."""

    def draw(self, random: Random) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    value_s: float

    def __post_init__(self) -> None:
        limits.check(self, value_s=limits.FINITE_ZERO_OR_MORE)

    def draw(self, random: Random) -> float:  # noqa: ARG002 - no chance in it
        return self.value_s


@dataclass(frozen=True)
class Exponential:
    """Memoryless, as queueing theory likes it."""

    mean_s: float

    def __post_init__(self) -> None:
        limits.check(self, mean_s=limits.FINITE_ABOVE_ZERO)

    def draw(self, random: Random) -> float:
        return -math.log(1.0 - random.random()) * self.mean_s


@dataclass(frozen=True)
class Normal:
    """A bell, cut off at zero."""

    mean_s: float
    deviation_s: float

    def __post_init__(self) -> None:
        limits.check(self, mean_s=limits.FINITE_ZERO_OR_MORE, deviation_s=limits.FINITE_ZERO_OR_MORE)

    def draw(self, random: Random) -> float:
        return max(0.0, random.gauss(self.mean_s, self.deviation_s))


@dataclass(frozen=True)
class Ticks:
    """A bell rounded down to whole ticks: the original's latencies."""

    mean: float = 150
    deviation: float = 25

    def __post_init__(self) -> None:
        limits.check(self, mean=limits.FINITE_ZERO_OR_MORE, deviation=limits.FINITE_ZERO_OR_MORE)

    def draw(self, random: Random) -> float:
        return float(max(0, math.floor(random.gauss(self.mean, self.deviation))))


@dataclass(frozen=True)
class LogNormal:
    """Long tail to the right, as most latencies have; half stay under the median."""

    median_s: float
    sigma: float = 0.4

    def __post_init__(self) -> None:
        limits.check(self, median_s=limits.FINITE_ABOVE_ZERO, sigma=limits.FINITE_ZERO_OR_MORE)

    def draw(self, random: Random) -> float:
        return self.median_s * math.exp(random.gauss(0.0, self.sigma))


@dataclass(frozen=True)
class Observed:
    """One of the durations that were seen, each as likely."""

    durations_s: Sequence[float]

    def __post_init__(self) -> None:
        limits.check(self, durations_s=limits.DURATIONS)

    def draw(self, random: Random) -> float:
        return random.choice(self.durations_s)
