"""A simulated dependency: the innermost stage of a rehearsal.

It takes as long as `latency` says and succeeds as often as `availability` says. Real dependencies get slower as more
is asked of them at once: `saturation` maps the number of events at work to a factor on the latency. With `workers`
and a `queue` it is a queueing system of the textbooks. In an outage (seconds since binding) every event fails, after
`outage_latency_s`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doubledecker.stages.distributions import Constant, Distribution
from doubledecker.stages.errors import DependencyFailed
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


@dataclass(frozen=True)
class Outage:
    """From `start_s` to before `end_s`."""

    start_s: float
    end_s: float


@dataclass
class Simulated(Stage):
    """Gives the event's key back; `failure_latency` is that of failures, where it differs."""

    latency: Distribution = Constant(0.0)  # noqa: RUF009 - a frozen value
    availability: float = 1.0
    failure_latency: Distribution | None = None
    saturation: Callable[[int], float] | None = None
    outages: Sequence[Outage] = ()
    outage_latency_s: float = 0.0

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
