"""The original Quartermaster by name, so that its published examples can be written down one to one.

Time is in whole ticks. Differences from the techniques here: a timeout abandons its work, it does not cancel it; the
breaker judges only when an event arrives, and half-open lets everyone in until its ring is full again; every look at
an aside cache asks the dependency, and what it keeps has no bound; a retry is at once, whatever failed.

Of the original's stages one is missing: its adaptive breaker changes how many workers the queue of another stage has,
and here a stage does not reach into others. `Adaptive` bounds its own calls by how they fare.

    cache = lru_cache(ttl=30_000, capacity=500) | timed_dependency(mean=150, deviation=20, availability=0.995)
    report = run(cache, events=20_000, events_per_1000_ticks=40, keyspace_mean=999, keyspace_deviation=90)
"""

import math
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from doubledecker.stages import limits
from doubledecker.stages.chain import Chain
from doubledecker.stages.context import Event
from doubledecker.stages.distributions import Constant, Ticks
from doubledecker.stages.errors import CircuitOpen
from doubledecker.stages.pool import Fifo, Lifo
from doubledecker.stages.simulation.report import Report
from doubledecker.stages.simulation.simulate import simulate
from doubledecker.stages.simulation.traffic import Arrival, NormalKeys
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.cache import AsideCache, Cache
from doubledecker.stages.techniques.load import Bulkhead
from doubledecker.stages.techniques.retry import Retry
from doubledecker.stages.techniques.simulated import Simulated
from doubledecker.stages.techniques.timeout import Timeout


def retry(attempts: int = 2) -> Retry:
    """At once, whatever went wrong."""
    return Retry(attempts, never=(), name="retry")


def timeout(limit: float = 300) -> Timeout:
    """The caller stops waiting; the work goes on."""
    return Timeout(limit, abandon=True, name="timeout")


def cache() -> Cache:
    """Every answer, for ever."""
    return Cache(sys.maxsize, ttl_s=math.inf, name="cache")


def lru_cache(capacity: int = 1_000, ttl: float = 10_000) -> Cache:
    """The answer that was looked at longest ago goes first; one older than `ttl` is asked for anew."""
    return Cache(capacity, ttl_s=ttl, name="lru_cache")


def aside_cache(capacity: int = sys.maxsize) -> AsideCache:
    """What is there, or a failure; every look fetches it anew in the background."""
    return AsideCache(capacity, shares=False, name="aside_cache")


def fifo_queue(capacity: int, workers: int) -> Bulkhead:
    """In order; what finds it full is turned away."""
    return Bulkhead(workers=workers, queue=Fifo(capacity), name="fifo_queue")


def lifo_queue(capacity: int, workers: int) -> Bulkhead:
    """Newest first; what finds it full is turned away."""
    return Bulkhead(workers=workers, queue=Lifo(capacity), name="lifo_queue")


def timed_dependency(
    mean: float = 150,
    deviation: float = 25,
    availability: float = 0.9995,
    *,
    error_mean: float = 150,
    error_deviation: float = 25,
) -> Simulated:
    """Normal latencies in whole ticks; those of failures are apart."""
    failure_latency = Ticks(error_mean, error_deviation)
    return Simulated(Ticks(mean, deviation), availability, failure_latency, name="timed_dependency")


def available_dependency(availability: float = 0.7) -> Simulated:
    """Answers within the tick."""
    return Simulated(Constant(0.0), availability, name="available_dependency")


@dataclass
class ArrivalBreaker(Stage):
    """The original's breaker; `circuit_breaker` to its users."""

    capacity: int = 10
    error_threshold: float = 0.3
    time_in_open_state: float = 3_000

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            capacity=limits.ONE_OR_MORE,
            error_threshold=limits.SHARE,
            time_in_open_state=limits.ABOVE_ZERO,
        )

    def start(self) -> None:
        self._now_is = "closed"
        self._opened_at = 0.0
        self._ring: deque[bool] = deque(maxlen=self.capacity)

    @property
    def state(self) -> str:
        return self._now_is

    def admit(self, event: Event) -> None:  # noqa: ARG002 - all alike
        self._judge()
        if self._now_is == "open":
            raise CircuitOpen(self.name)

    def succeeded(self, event: Event, result: object) -> None:  # noqa: ARG002 - any result is a success
        self._ring.append(False)

    def failed(self, event: Event, error: Exception) -> None:  # noqa: ARG002 - any exception is a failure
        self._ring.append(True)

    def _judge(self) -> None:
        if self._now_is == "open" and self.context.clock() - self._opened_at > self.time_in_open_state:
            self._change("half-open")
        if self._now_is != "open" and len(self._ring) >= self.capacity:
            if sum(self._ring) / self.capacity > self.error_threshold:
                self._opened_at = self.context.clock()
                self._change("open")
            elif self._now_is == "half-open":
                self._change("closed")

    def _change(self, state: str) -> None:
        self._now_is = state
        self._ring.clear()
        self.notify(state)


def circuit_breaker(
    capacity: int = 10, error_threshold: float = 0.3, time_in_open_state: float = 3_000
) -> ArrivalBreaker:
    """A ring of the last outcomes, judged when an event arrives."""
    return ArrivalBreaker(capacity, error_threshold, time_in_open_state, name="circuit_breaker")


@dataclass(frozen=True)
class EvenTicks:
    """Evenly spaced, each at the first whole tick that is not too early; `events` in all."""

    events_per_1000_ticks: float = 50
    events: int = 1_000

    def __post_init__(self) -> None:
        limits.check(self, events_per_1000_ticks=limits.FINITE_ABOVE_ZERO, events=limits.ONE_OR_MORE)

    @property
    def duration(self) -> float:
        return math.ceil(self.events * 1_000 / self.events_per_1000_ticks) + 1

    def arrivals(self, duration: float, random: Random) -> Iterator[Arrival]:  # noqa: ARG002 - no chance in it
        for number in range(self.events):
            at = math.ceil(number * 1_000 / self.events_per_1000_ticks)
            if at < duration:
                yield Arrival(float(at))


def run(
    chain: Chain | Stage,
    events: int,
    *,
    events_per_1000_ticks: float = 50,
    keyspace_mean: float = 1_000,
    keyspace_deviation: float = 50,
    seed: int = 0,
    replications: int = 1,
) -> Report:
    """Send so many events, as the original's `simulation.run` does."""
    traffic = EvenTicks(events_per_1000_ticks, events)
    keys = NormalKeys(keyspace_mean, keyspace_deviation)
    return simulate(
        chain if isinstance(chain, Chain) else Chain((chain,)),
        traffic=traffic,
        duration=traffic.duration,
        seed=seed,
        replications=replications,
        keys=keys,
    )
