"""Simulated dependencies, and faults injected into real ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.distributions import Constant, Distribution
from doubledecker.stages.errors import DependencyFailed, FaultInjected
from doubledecker.stages.stage import Stage

# A simulated dependency: the innermost stage of a rehearsal.
#
# It takes as long as `latency` says and succeeds as often as `availability` says. Real dependencies get slower as more
# is asked of them at once: `saturation` maps the number of events at work to a factor on the latency. With `workers`
# and a `queue` it is a queueing system of the textbooks. In an outage (seconds since binding) every event fails, after
# `outage_latency_s`.


@dataclass(frozen=True)
class Outage:
    """A time without answers, from `start_s` to before `end_s`."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        limits.check(self, start_s=limits.FINITE_ZERO_OR_MORE, end_s=limits.ABOVE_ZERO)
        limits.check_order(self, "start_s", "end_s")


@dataclass(frozen=True)
class Saturation:
    """A factor on the latency by the number at work: straight lines between points (working, factor), flat beyond."""

    points: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        limits.check(self, points=_CURVE)

    def __call__(self, working: int) -> float:
        points = self.points
        if working <= points[0][0]:
            return points[0][1]
        for (low, former), (high, latter) in pairwise(points):
            if working <= high:
                return former + (latter - former) * (working - low) / (high - low)
        return points[-1][1]


def _is_curve(points: object) -> bool:
    if not isinstance(points, Sequence) or not points:
        return False
    numbers = [number for point in points for number in point]
    is_rising = all(low < high for (low, _), (high, _) in pairwise(points))
    return is_rising and all(limits.FINITE_ZERO_OR_MORE.holds(number) for number in numbers)


_CURVE = limits.Limit("pairs of (working, factor), none below 0, by growing numbers at work", _is_curve)


@dataclass
class Simulated(Stage):
    """Gives the event's key back; `failure_latency` is that of failures, where it differs."""

    latency: Distribution = Constant(0.0)  # noqa: RUF009 - a frozen value
    availability: float = 1.0
    failure_latency: Distribution | None = None
    saturation: Callable[[int], float] | None = None
    outages: Sequence[Outage] = ()
    outage_latency_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            latency=limits.DISTRIBUTION,
            availability=limits.SHARE,
            failure_latency=limits.or_none(limits.DISTRIBUTION),
            outage_latency_s=limits.FINITE_ZERO_OR_MORE,
        )

    def start(self) -> None:
        self._born_at = self.context.clock()
        self._random = self.context.random
        self._sleep = self.context.sleep

    @property
    def is_end(self) -> bool:
        return True

    async def work(self, event: Event) -> object:
        if self.outages and self._is_out():
            await self._sleep(self.outage_latency_s)
            raise DependencyFailed(f"{self.name}: an outage")
        random = self._random
        succeeds = self.availability >= 1.0 or random.random() < self.availability
        latency = self.latency if succeeds else self.failure_latency or self.latency
        latency_s = latency.draw(random)
        if self.saturation is not None:
            latency_s *= self.saturation(self.working)
        await self._sleep(latency_s)
        if not succeeds:
            raise DependencyFailed(f"{self.name}: failed by chance")
        return event.key

    def _is_out(self) -> bool:
        age_s = self.context.clock() - self._born_at
        return any(outage.start_s <= age_s < outage.end_s for outage in self.outages)


# Fault injection: fail or delay some events on purpose, to see what the rest does while nothing is at stake.


def _injected() -> Exception:
    return FaultInjected("a failure made on purpose")


@dataclass
class Fault(Stage):
    """Fails a `rate` of the events with `error()`; delays a `delay_rate` of them by `delay`."""

    rate: float = 0.0
    error: Callable[[], Exception] = _injected
    delay_rate: float = 0.0
    delay: Distribution | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, rate=limits.SHARE, delay_rate=limits.SHARE, delay=limits.or_none(limits.DISTRIBUTION))

    async def work(self, event: Event) -> object:
        random = self.context.random
        if self.delay is not None and random.random() < self.delay_rate:
            await self.context.sleep(self.delay.draw(random))
        if random.random() < self.rate:
            raise self.error()
        return await self.inner(event)
