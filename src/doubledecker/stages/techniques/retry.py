"""Retry: ask again when asking failed.

Most failures are short: a lost packet, a restarted process. Asking again hides them. But retries multiply traffic just
when the dependency can bear it least, so three things hold them back:

- backoff with full jitter: each delay is a random part of a span that doubles, so that callers who failed together do
  not come back together;
- a budget: retries are at most a share of all calls. With 0.2, a dead dependency gets 1.2 times the traffic, not 3;
- a delay that the dependency names (`retry_after_s` on the exception) is kept at least.

A rejection by a stage inside (an open circuit, a full bulkhead) is not retried: it was made to keep traffic away. A
retry that could not begin before the event's deadline is not tried. The last exception passes unchanged.
"""

from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.errors import Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


@dataclass(frozen=True)
class Backoff:
    """The span of the first delay, and the longest; zero means at once."""

    first_s: float = 0.1
    cap_s: float = 5.0

    def __post_init__(self) -> None:
        limits.check(self, first_s=limits.FINITE_ZERO_OR_MORE, cap_s=limits.FINITE_ZERO_OR_MORE)

    def delay_s(self, attempt: int, chance: float) -> float:
        """`attempt` counts those made; `chance` is a random number from 0 to 1."""
        # Doubling beyond 2^30 would only overflow what the cap cuts off anyway.
        return chance * min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))


AT_ONCE = Backoff(0.0, 0.0)


@dataclass(frozen=True)
class Budget:
    """Retries per call in the long run, and how many may be saved up."""

    share: float = 0.2
    saved_max: float = 10.0

    def __post_init__(self) -> None:
        limits.check(self, share=limits.FINITE_ZERO_OR_MORE, saved_max=limits.FINITE_ZERO_OR_MORE)


@dataclass
class Retry(Stage):
    """At most `attempts` in all, for exceptions of the kinds `on`, except those of the kinds `never`."""

    attempts: int = 2
    backoff: Backoff = AT_ONCE
    budget: Budget | None = None
    on: tuple[type[Exception], ...] = (Exception,)
    never: tuple[type[Exception], ...] = (Rejected,)
    retry_after_s_max: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            attempts=limits.ONE_OR_MORE,
            backoff=limits.a(Backoff),
            budget=limits.or_none(limits.a(Budget)),
            on=limits.EXCEPTIONS,
            never=limits.EXCEPTIONS,
            retry_after_s_max=limits.ZERO_OR_MORE,
        )

    def start(self) -> None:
        self._savings = self.budget.saved_max if self.budget else 0.0

    async def work(self, event: Event) -> object:
        if self.budget is not None:
            self._savings = min(self.budget.saved_max, self._savings + self.budget.share)
        attempt = 1
        while True:
            try:
                return await self.inner(event)
            except self.on as error:
                if isinstance(error, self.never):
                    raise
                delay_s = self._delay_s(attempt, error)
                if attempt >= self.attempts or not self._is_in_time(event, delay_s) or not self._pay():
                    raise
            self.notify("retried", event)
            if delay_s > 0.0:
                await self.context.sleep(delay_s)
            attempt += 1

    def _delay_s(self, attempt: int, error: Exception) -> float:
        delay_s = self.backoff.delay_s(attempt, self.context.random.random())
        asked_s = getattr(error, "retry_after_s", None)
        if isinstance(asked_s, int | float):
            delay_s = max(delay_s, min(asked_s, self.retry_after_s_max))
        return delay_s

    def _is_in_time(self, event: Event, delay_s: float) -> bool:
        return event.deadline is None or self.context.clock() + delay_s < event.deadline

    def _pay(self) -> bool:
        if self.budget is None:
            return True
        if self._savings < 1.0:
            return False
        self._savings -= 1.0
        return True
