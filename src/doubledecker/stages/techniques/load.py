"""Techniques that bound the load on a dependency: bulkhead, adaptive limit, rate limit, load shedding."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from doubledecker.stages import errors, limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import KeyMissing, RateExceeded, Rejected
from doubledecker.stages.pool import Queue, WorkerPool
from doubledecker.stages.stage import Stage

# Bulkhead: so many at a time, some waiting, the rest turned away.
#
# A ship's bulkheads keep one leak from flooding the whole. A slow dependency floods its callers with waiting work; a
# bound on what may be inside it leaves the rest of the process its memory, its connections and its time.


@dataclass
class Bulkhead(Stage):
    """`workers` at a time; the others wait in `queue`, or are rejected when there is none or it is full."""

    workers: int | WorkerPool | None = 16
    queue: Queue | None = None


# Adaptive concurrency: find out how many at a time the dependency can bear.
#
# A fixed bulkhead is right for one day. This one changes its number of workers as TCP changes its window: while answers
# come in time and the workers are in use, it adds one worker per round of answers; when one fails or is slow, it takes
# away a tenth, at most once in `target_s`, because the slow answers of one moment have one cause. (AIMD: additive
# increase, multiplicative decrease; it finds a fair share without knowing its neighbours.)


@dataclass
class Adaptive(Stage):
    """Between `workers_min` and `workers_max`, starting with `workers`; an answer slower than `target_s` is slow."""

    workers: int | WorkerPool | None = field(default=10, kw_only=True)
    queue: Queue | None = field(default=None, kw_only=True)
    target_s: float = 0.5
    workers_min: int = 1
    workers_max: int = 1_000
    decrease: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            workers=limits.or_none(limits.ONE_OR_MORE),
            target_s=limits.ABOVE_ZERO,
            workers_min=limits.ONE_OR_MORE,
            workers_max=limits.ONE_OR_MORE,
            decrease=limits.SHARE_ABOVE_ZERO,
        )
        limits.check_order(self, "workers_min", "workers", "workers_max")

    def start(self) -> None:
        self._limit = float(self.workers if isinstance(self.workers, int) else self.workers_min)
        self._calm_until = self.context.clock()

    @property
    def state(self) -> str:
        return f"limit {int(self._limit)}"

    @property
    def is_admission(self) -> bool:
        return True

    async def work(self, event: Event) -> object:
        began_at = self._clock()
        result = await self.inner(event)
        if self._clock() - began_at > self.target_s:
            self._shrink()
        elif self.pool is not None and self.pool.busy * 2 >= self._limit:
            self._set(self._limit + 1.0 / self._limit)
        return result

    def failed(self, event: Event, error: Exception) -> None:  # noqa: ARG002 - all alike
        if not isinstance(error, Rejected):
            self._shrink()

    def _shrink(self) -> None:
        now = self.context.clock()
        if now >= self._calm_until:
            self._calm_until = now + self.target_s
            self._set(self._limit * self.decrease)

    def _set(self, limit: float) -> None:
        before = int(self._limit)
        self._limit = min(max(limit, float(self.workers_min)), float(self.workers_max))
        if int(self._limit) != before:
            self.resize(int(self._limit))
            self.notify(self.state)


# Rate limit: at most so many a second, with some allowed at once.
#
# Each event moves a mark by one interval (the generic cell rate algorithm): the mark says when the limit would be even
# again. While the mark is less than a burst ahead of now, events pass; one number does the work of a bucket of tokens.
# With `wait_s_max` an event that comes too early waits for its time instead of being turned away, if that is not
# longer.

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


# Load shedding: turn some away early, so that the others are served well.
#
# Near its limit a service that takes everything serves nobody in time. Shedding starts softly: above `soft` events at
# work the chance to be turned away grows, until at `hard` nobody is let in. So the load levels off before the cliff,
# and callers are not all turned away at the same moment, to come back at the same moment. Important events (`priority`
# at least `spare`) are let in until `hard`.


@dataclass
class Shed(Stage):
    """Between `soft` and `hard` events at work or waiting, ever more are turned away."""

    soft: int = 50
    hard: int = 100
    spare: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, soft=limits.WHOLE_ZERO_OR_MORE, hard=limits.ONE_OR_MORE)
        limits.check_order(self, "soft", "hard")

    def start(self) -> None:
        self._inside = 0

    def admit(self, event: Event) -> None:
        if self._inside >= self.hard or (self._inside > self.soft and self._draws(event)):
            raise errors.Shed(self.name)
        self._inside += 1

    def succeeded(self, event: Event, result: object) -> None:  # noqa: ARG002
        self._inside -= 1

    def failed(self, event: Event, error: Exception) -> None:  # noqa: ARG002
        self._inside -= 1

    def cancelled(self, event: Event) -> None:  # noqa: ARG002
        self._inside -= 1

    def _draws(self, event: Event) -> bool:
        if self.spare is not None and event.priority >= self.spare:
            return False
        return self.context.random.random() < (self._inside - self.soft) / (self.hard - self.soft)
