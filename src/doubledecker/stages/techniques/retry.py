"""Retry: ask again when asking failed.

Most failures are short: a lost packet, a restarted process. Asking again hides them. But retries multiply traffic just
when the dependency can bear it least, so three things hold them back:

- backoff with full jitter: each delay is a random part of a span that doubles, so that callers who failed together do
  not come back together;
- a budget: retries are at most a share of all calls. With 0.2, a dead dependency gets 1.2 times the traffic, not 3;
- a delay that the dependency asks for (`Retry-After` on the exception or the response: asked_delay.py) is kept at
  least, up to `retry_after_s_max`.

A rejection by a stage inside (an open circuit, a full bulkhead) is not retried: it was made to keep traffic away. A
retry that could not begin before the event's deadline is not tried. The last exception, or the last result that `on`
holds for, passes unchanged.
"""

from dataclasses import dataclass

from doubledecker.stages import asked_delay, limits
from doubledecker.stages.errors import ChainInvalid, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.matching import MATCHES, On, OutcomeMatcher
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
    """At most `attempts` in all, for what `on` holds for, except what `never` holds for."""

    attempts: int = 2
    backoff: Backoff = AT_ONCE
    budget: Budget | None = None
    on: On = (Exception,)
    never: On = (Rejected, ChainInvalid)
    retry_after_s_max: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            attempts=limits.ONE_OR_MORE,
            backoff=limits.a(Backoff),
            budget=limits.or_none(limits.a(Budget)),
            on=MATCHES,
            never=MATCHES,
            retry_after_s_max=limits.ZERO_OR_MORE,
        )

    def start(self) -> None:
        self._savings = self.budget.saved_max if self.budget else 0.0
        self._on, self._never = OutcomeMatcher(self.on), OutcomeMatcher(self.never)
        self._asks_results = self._on.asks_results

    async def work(self, event: Event) -> object:
        if self.budget is not None:
            self._savings = min(self.budget.saved_max, self._savings + self.budget.share)
        attempt = 1
        while True:
            try:
                result = await self.inner(event)
            except self._on.caught as error:
                delay_s = self._delay_s(event, attempt, error) if self._is_retried(error) else None
                if delay_s is None:
                    raise
            else:
                if not self._asks_results or not self._on.holds_for_result(result):
                    return result
                delay_s = self._delay_s(event, attempt, result)
                if delay_s is None:
                    return result
            self.notify("retried", event)
            if delay_s > 0.0:
                await self.context.sleep(delay_s)
            attempt += 1

    def _is_retried(self, error: Exception) -> bool:
        return self._on.holds_for_error(error) and not self._never.holds_for_error(error)

    def _delay_s(self, event: Event, attempt: int, outcome: object) -> float | None:
        """How long to wait before the next attempt; None when there is none."""
        delay_s = self.backoff.delay_s(attempt, self.context.random.random())
        if attempt >= self.attempts:
            return None
        asked_s = asked_delay.delay_s(outcome)
        if asked_s is not None:
            delay_s = max(delay_s, min(asked_s, self.retry_after_s_max))
        return delay_s if self._is_in_time(event, delay_s) and self._pay() else None

    def _is_in_time(self, event: Event, delay_s: float) -> bool:
        return event.deadline is None or self.context.clock() + delay_s < event.deadline

    def _pay(self) -> bool:
        if self.budget is None:
            return True
        if self._savings < 1.0:
            return False
        self._savings -= 1.0
        return True
