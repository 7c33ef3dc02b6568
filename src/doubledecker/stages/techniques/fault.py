"""Fault injection: fail or delay some events on purpose, to see what the rest does while nothing is at stake."""

from collections.abc import Callable
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.distributions import Distribution
from doubledecker.stages.errors import FaultInjected
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


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
