"""Adaptive concurrency: find out how many at a time the dependency can bear.

A fixed bulkhead is right for one day. This one changes its number of workers as TCP changes its window: while answers
come in time and the workers are in use, it adds one worker per round of answers; when one fails or is slow, it takes
away a tenth, at most once in `target_s`, because the slow answers of one moment have one cause. (AIMD: additive
increase, multiplicative decrease; it finds a fair share without knowing its neighbours.)
"""

from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.errors import Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.queues import Queue
from doubledecker.stages.stage import Stage
from doubledecker.stages.workers import WorkerPool


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
