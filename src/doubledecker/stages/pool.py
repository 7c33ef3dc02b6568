"""Workers, and the handing over of events to them.

A worker is a permission to work: the caller's own task does the work, so that a stage costs no task and a cancelled
caller cancels its work. A free worker means that nobody waits; whatever changes either calls `_serve`.

A worker is handed over at the moment it becomes free, not when the waiter wakes: nobody can slip in between, and the
counters are right at every moment. A waiter cancelled between the two gives its worker back.
"""

import asyncio
import sys
from collections.abc import Callable

from doubledecker.stages.errors import DeadlinePassed, Overdue, QueueFull, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.queues import Queue, Waiter
from doubledecker.stages.statistics import Counters

UNLIMITED = sys.maxsize


class Pool:
    """`workers` at a time, the others in `queue`; without a queue they are turned away."""

    __slots__ = ("_clock", "_counters", "_stage", "busy", "queue", "workers")

    def __init__(
        self,
        *,
        stage: str,
        workers: int | None,
        queue: Queue | None,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self.workers = UNLIMITED if workers is None else workers
        self.queue = Queue(size_max=0) if queue is None else queue.fresh()
        self.busy = 0
        self._stage = stage
        self._clock = clock
        self._counters = counters

    async def wait(self, event: Event) -> None:
        """Return with a worker; raises Rejected without one."""
        queue = self.queue
        if queue.is_full:
            self._counters.rejected += 1
            raise QueueFull(self._stage)
        waiter = Waiter(event, asyncio.get_running_loop().create_future(), self._clock())
        queue.push(waiter)
        is_served = False
        try:
            await waiter.future
            is_served = True
        finally:
            if not is_served:
                self._quit(waiter)

    def release(self) -> None:
        """The worker is free: for the next who waits, or for the next who comes."""
        self.busy -= 1
        if self.queue:
            self._serve()

    def resize(self, workers: int) -> None:
        """More workers start at once; fewer means that the busy ones finish first."""
        self.workers = workers
        self._serve()

    def _serve(self) -> None:
        now = self._clock()
        while self.busy < self.workers and self.queue:
            waiter = self.queue.pop()
            waiter.has_left = True
            if waiter.future.cancelled():
                self._counters.quit += 1
            elif (refusal := self._refusal(waiter, now)) is None:
                self._hand_over(waiter, now)
            else:
                self._counters.rejected += 1
                waiter.future.set_exception(refusal)

    def _refusal(self, waiter: Waiter, now: float) -> Rejected | None:
        deadline = waiter.event.deadline
        if deadline is not None and now >= deadline:
            return DeadlinePassed(self._stage)
        return Overdue(self._stage) if self.queue.is_overdue(now - waiter.since, now) else None

    def _hand_over(self, waiter: Waiter, now: float) -> None:
        self.busy += 1
        self._counters.started += 1
        self._counters.queue_time.note(now - waiter.since)
        waiter.future.set_result(None)

    def _quit(self, waiter: Waiter) -> None:
        """Given up: still in the queue, or with a worker in hand, or already refused."""
        if not waiter.has_left:
            self.queue.discard(waiter)
            self._counters.quit += 1
        elif not waiter.future.cancelled() and waiter.future.exception() is None:
            self._counters.finished += 1
            self.release()
