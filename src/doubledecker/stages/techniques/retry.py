"""Techniques that call again: retries after a backoff or the delay that a dependency asks for, and hedged calls."""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import ChainInvalid, Rejected
from doubledecker.stages.limits import MATCHES, On, OutcomeMatcher
from doubledecker.stages.stage import Stage

# The delay that a dependency asks for: `Retry-After`, wherever its exception or its response carries it.
#
# - `retry_after_s` or `retry_after`: seconds, or a timedelta;
# - a header `Retry-After` in its `headers`, or in those of its `response` (as the exceptions of aiohttp, httpx,
# requests
#   and urllib have them): seconds, or a date, which is compared with the header `Date` and else with our own clock.


def asked_delay_s(outcome: object) -> float | None:
    """Seconds to wait, or None when nothing is asked for, or nothing that can be read."""
    for name in ("retry_after_s", "retry_after"):
        found = _seconds(getattr(outcome, name, None))
        if found is not None:
            return found
    for owner in (outcome, getattr(outcome, "response", None)):
        found = _from_headers(getattr(owner, "headers", None))
        if found is not None:
            return found
    return None


def _seconds(asked: object) -> float | None:
    if isinstance(asked, timedelta):
        asked = asked.total_seconds()
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not math.isfinite(asked):
        return None
    return max(0.0, float(asked))


def _from_headers(headers: object) -> float | None:
    asked = _header(headers, "retry-after")
    if asked is None:
        return None
    try:
        return _seconds(float(asked))
    except ValueError:
        pass
    until = _moment(asked)
    return None if until is None else max(0.0, until - (_moment(_header(headers, "date")) or time.time()))


def _header(headers: object, name: str) -> str | None:
    """A header by its name in small letters, whatever kind of mapping or list of pairs they are."""
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    if not isinstance(pairs, Iterable):
        return None
    for pair in pairs:
        if isinstance(pair, tuple) and len(pair) == 2 and _text(pair[0]).lower() == name:  # noqa: PLR2004 - a pair
            return _text(pair[1]).strip()
    return None


def _text(word: object) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def _moment(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


# Retry: ask again when asking failed.
#
# Most failures are short: a lost packet, a restarted process. Asking again hides them. But retries multiply traffic
# just when the dependency can bear it least, so three things hold them back:
#
# - backoff with full jitter: each delay is a random part of a span that doubles, so that callers who failed together do
#   not come back together;
# - a budget: retries are at most a share of all calls. With 0.2, a dead dependency gets 1.2 times the traffic, not 3;
# - a delay that the dependency asks for (`Retry-After` on the exception or the response) is kept at
#   least, up to `retry_after_s_max`.
#
# A rejection by a stage inside (an open circuit, a full bulkhead) is not retried: it was made to keep traffic away. A
# retry that could not begin before the event's deadline is not tried. The last exception, or the last result that `on`
# holds for, passes unchanged.


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
        asked_s = asked_delay_s(outcome)
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


# Hedge: when the answer is late, ask a second time, and take whichever comes first.
#
# The slowest one in a hundred often waits for bad luck (a pause, a lost packet), not for hard work; a second question
# has better luck. Asked only after `delay_s`, about the time that 95 % of the answers need, it adds 5 % of traffic and
# cuts off the tail. The others are cancelled when one has succeeded. Only for questions that may be asked twice.


@dataclass
class Hedge(Stage):
    """Up to `attempts` at the same time, one more each `delay_s`; when all have failed, raises the first failure."""

    delay_s: float = 0.1
    attempts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, delay_s=limits.FINITE_ZERO_OR_MORE, attempts=limits.ONE_OR_MORE)

    async def work(self, event: Event) -> object:
        asked: list[asyncio.Task[object]] = []
        try:
            while True:
                if len(asked) < self.attempts:
                    if asked:
                        self.notify("hedged", event)
                    asked.append(self.ask(event.again()))
                winner = await self._first_success(asked)
                if winner is not None:
                    return winner.result()
                if len(asked) == self.attempts and all(task.done() for task in asked):
                    return asked[0].result()
        finally:
            await self._call_off(asked)

    async def _first_success(self, asked: "list[asyncio.Task[object]]") -> "asyncio.Task[object] | None":
        """Wait until one succeeds, all have failed, or it is time for the next."""
        until = self.context.clock() + self.delay_s
        while running := [task for task in asked if not task.done()]:
            left_s = None if len(asked) == self.attempts else max(0.0, until - self.context.clock())
            done, _ = await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    return task
            if not done:
                return None
        return None

    async def _call_off(self, asked: "list[asyncio.Task[object]]") -> None:
        running = [task for task in asked if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
