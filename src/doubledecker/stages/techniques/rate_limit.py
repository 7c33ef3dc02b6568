"""Rate limit: at most so many a second, with some allowed at once.

Each event moves a mark by one interval (the generic cell rate algorithm): the mark says when the limit would be even
again. While the mark is less than a burst ahead of now, events pass; one number does the work of a bucket of tokens.
With `wait_s_max` an event that comes too early waits for its time instead of being turned away, if that is not longer.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.errors import KeyMissing, RateExceeded
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage

# Intervals added up differ from the clock in the last bits.
_ROUNDING_S = 1e-9


@dataclass
class RateLimit(Stage):
    """`rate_per_s` in the long run, up to `burst` at once; for all events, or for each key."""

    rate_per_s: float = 10.0
    burst: int = 1
    wait_s_max: float = 0.0
    per_key: bool = False
    keys_max: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            rate_per_s=limits.FINITE_ABOVE_ZERO,
            burst=limits.ONE_OR_MORE,
            wait_s_max=limits.ZERO_OR_MORE,
            keys_max=limits.ONE_OR_MORE,
        )

    def start(self) -> None:
        self._marks: OrderedDict[str | None, float] = OrderedDict()
        # By the event of one passage, which admit makes.
        self._due: dict[Event, float] = {}
        self._interval_s = 1.0 / self.rate_per_s
        if self.wait_s_max <= 0.0:
            self._does = self.inner  # nobody ever waits

    @property
    def needs_key(self) -> bool:
        return self.per_key

    @property
    def is_admission(self) -> bool:
        return True

    def admit(self, event: Event) -> Event | None:
        key = event.key if self.per_key else None
        if self.per_key and key is None:
            raise KeyMissing(self.name)
        now = self._clock()
        interval_s = self._interval_s
        mark = max(self._marks.get(key, now), now)
        wait_s = mark - now - (self.burst - 1) * interval_s
        if wait_s > self.wait_s_max + _ROUNDING_S:
            raise RateExceeded(self.name, retry_after_s=wait_s)
        self._marks[key] = mark + interval_s
        if self.per_key:
            self._marks.move_to_end(key)
            if len(self._marks) > self.keys_max:
                self._marks.popitem(last=False)
        if wait_s <= _ROUNDING_S:
            return None
        passage = event.again()
        self._due[passage] = now + wait_s
        return passage

    async def work(self, event: Event) -> object:
        due = self._due.pop(event, None)
        if due is not None:
            await self._until(due)
        return await self.inner(event)

    async def _until(self, due: float) -> None:
        # In a loop: uvloop's timers may ring up to a millisecond early.
        while (left_s := due - self.context.clock()) > _ROUNDING_S:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(left_s)

    def cancelled(self, event: Event) -> None:
        self._due.pop(event, None)
