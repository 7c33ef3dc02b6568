"""Workers, and the handing over of events to them.

A worker is a permission to work: the caller's own task does the work, so that a stage costs no task and a cancelled
caller cancels its work. A free worker means that nobody waits; whatever changes either calls `serve`.

A worker is handed over at the moment it becomes free, not when the waiter wakes: nobody can slip in between, and the
counters are right at every moment. A waiter cancelled between the two gives its worker back.
"""

import asyncio
import sys
from asyncio import Future
from collections.abc import Callable

from doubledecker.stages.errors import DeadlinePassed, Overdue, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.queues import Queue, Waiter
from doubledecker.stages.statistics import Counters

UNLIMITED = sys.maxsize


class Pool:
    """`workers` at a time, the others in `queue`; without a queue they are turned away."""

    __slots__ = ("_clock", "_counters", "_judges", "_loop", "_places", "_stage", "busy", "line", "queue", "workers")

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
        self.line = self.queue.line
        self._places = UNLIMITED if self.queue.size_max is None else self.queue.size_max
        # Most queues never find the waiting in vain, and are not asked.
        self._judges = type(self.queue).is_overdue is not Queue.is_overdue
        self._stage = stage
        self._clock = clock
        self._counters = counters
        # Found at the first waiting and kept: in Python 3.11 asking for the running loop costs a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    def join(self, event: Event) -> Waiter | None:
        """Wait for a worker: it is there when the future has a result; `quit` otherwise. None if there is no place."""
        if len(self.line) >= self._places:
            self._counters.rejected += 1
            return None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiter = Waiter(event, Future(loop=self._loop), self._clock())
        self.queue.push(waiter)
        return waiter

    def quit(self, waiter: Waiter) -> None:
        """Given up: still in the queue, or with a worker in hand, or already refused."""
        if not waiter.has_left:
            self.queue.discard(waiter)
            self._counters.quit += 1
        elif not waiter.future.cancelled() and waiter.future.exception() is None:
            self._counters.cancelled += 1
            self.busy -= 1
            self.serve()

    def resize(self, workers: int) -> None:
        """More workers start at once; fewer means that the busy ones finish first."""
        self.workers = workers
        self.serve()

    def serve(self) -> None:
        """Give free workers to those who wait."""
        now = self._clock()
        counters = self._counters
        while self.busy < self.workers and self.line:
            waiter = self.queue.pop()
            waiter.has_left = True
            future = waiter.future
            if future.cancelled():
                counters.quit += 1
            elif (self._judges or waiter.event.deadline is not None) and (refusal := self._refusal(waiter, now)):
                counters.rejected += 1
                future.set_exception(refusal)
            else:
                self.busy += 1
                counters.started += 1
                counters.note_wait(now - waiter.since)
                future.set_result(None)

    def _refusal(self, waiter: Waiter, now: float) -> Rejected | None:
        deadline = waiter.event.deadline
        if deadline is not None and now >= deadline:
            return DeadlinePassed(self._stage)
        return Overdue(self._stage) if self.queue.is_overdue(now - waiter.since, now) else None
