"""Traffic: when events arrive, and for which keys."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

from doubledecker.stages import limits


class Arrival(NamedTuple):
    """An event at `at` seconds; the key is None where traffic leaves it to the simulation's keys."""

    at: float
    key: str | None = None


def _are_in_order(seen: object) -> bool:
    return isinstance(seen, Sequence) and all(before.at <= after.at for before, after in pairwise(seen))


_IN_ORDER = limits.Limit("a list of arrivals in order of time", _are_in_order)


class Traffic(Protocol):
    """Arrivals in order of time, all before `duration`."""

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]: ...


@dataclass(frozen=True)
class Poisson:
    """Independent callers: `rate_per_s` on average, at any moment as likely."""

    rate_per_s: float

    def __post_init__(self) -> None:
        limits.check(self, rate_per_s=limits.FINITE_ABOVE_ZERO)

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:
        draw, log, rate_per_s = random.random, math.log, self.rate_per_s
        at = 0.0
        # As `random.expovariate` does, without the call.
        while (at := at - log(1.0 - draw()) / rate_per_s) < duration:
            yield Arrival(at)


@dataclass(frozen=True)
class Even:
    """Evenly spaced."""

    rate_per_s: float

    def __post_init__(self) -> None:
        limits.check(self, rate_per_s=limits.FINITE_ABOVE_ZERO)

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:  # noqa: ARG002 - no chance in it
        for number in range(math.ceil(duration * self.rate_per_s)):
            yield Arrival(number / self.rate_per_s)


@dataclass(frozen=True)
class Bursty:
    """Quiet for `quiet_s`, then `burst_s` of more; Poisson within each."""

    quiet_per_s: float
    burst_per_s: float
    quiet_s: float = 9.0
    burst_s: float = 1.0

    def __post_init__(self) -> None:
        limits.check(
            self,
            quiet_per_s=limits.FINITE_ZERO_OR_MORE,
            burst_per_s=limits.FINITE_ABOVE_ZERO,
            quiet_s=limits.FINITE_ZERO_OR_MORE,
            burst_s=limits.FINITE_ABOVE_ZERO,
        )

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:
        return _thinned(self, max(self.quiet_per_s, self.burst_per_s), duration, random)

    def rate_at(self, at: float, duration: float) -> float:  # noqa: ARG002 - a ramp needs both
        is_quiet = at % (self.quiet_s + self.burst_s) < self.quiet_s
        return self.quiet_per_s if is_quiet else self.burst_per_s


@dataclass(frozen=True)
class Ramp:
    """Poisson, from one rate at the beginning to another at the end."""

    from_per_s: float
    to_per_s: float

    def __post_init__(self) -> None:
        limits.check(self, from_per_s=limits.FINITE_ZERO_OR_MORE, to_per_s=limits.FINITE_ZERO_OR_MORE)

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:
        return _thinned(self, max(self.from_per_s, self.to_per_s), duration, random)

    def rate_at(self, at: float, duration: float) -> float:
        return self.from_per_s + (self.to_per_s - self.from_per_s) * at / duration


@dataclass(frozen=True)
class Recorded:
    """What was seen: times since the beginning of the record, in order, with keys where they are known."""

    seen: Sequence[Arrival]

    def __post_init__(self) -> None:
        limits.check(self, seen=_IN_ORDER)

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:  # noqa: ARG002 - no chance in it
        for arrival in self.seen:
            if arrival.at < duration:
                yield arrival


class _Varying(Protocol):
    def rate_at(self, at: float, duration: float) -> float: ...


def _thinned(traffic: _Varying, rate_max: float, duration: float, random: Random) -> Iterator[Arrival]:
    """Poisson at the highest rate, of which each is kept with the chance that its moment's rate has."""
    for arrival in Poisson(rate_max).arrivals(duration, random):
        if random.random() * rate_max < traffic.rate_at(arrival.at, duration):
            yield arrival


class Keys(Protocol):
    """Which key an event asks for."""

    def draw(self, random: Random) -> str: ...


@dataclass(frozen=True)
class UniformKeys:
    """One of `count` keys, each as likely."""

    count: int

    def __post_init__(self) -> None:
        limits.check(self, count=limits.ONE_OR_MORE)

    def draw(self, random: Random) -> str:
        return str(random.randrange(self.count))


@dataclass(frozen=True)
class NormalKeys:
    """Whole numbers of a bell: few keys are hot, many are rare."""

    mean: float = 1_000
    deviation: float = 50

    def __post_init__(self) -> None:
        limits.check(self, deviation=limits.FINITE_ZERO_OR_MORE)

    def draw(self, random: Random) -> str:
        return str(math.floor(random.gauss(self.mean, self.deviation)))
