"""Workers, and the handing over of events to them.

A worker is a permission to work: the caller's own task does the work, so that a stage costs no task and a cancelled
caller cancels its work. A free worker means that nobody waits; whatever changes either calls `serve`.

A worker is handed over at the moment it becomes free, not when the waiter wakes: nobody can slip in between, and the
counters are right at every moment. A waiter cancelled between the two gives its worker back.

The pool counts those who wait by itself, and calls nothing of the queue but `push`, `pop`, `discard` and `is_overdue`:
a queue may keep them wherever it likes. A `WorkerPool` of the user's own is asked for every event; without one the
stage compares two numbers.
"""

import asyncio
import sys
from asyncio import Future
from collections.abc import Callable

from doubledecker.stages.errors import DeadlinePassed, Overdue, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.queues import Queue, Waiter
from doubledecker.stages.statistics import Counters
from doubledecker.stages.workers import WorkerPool

UNLIMITED = sys.maxsize


class Pool:
    """`workers` at a time, the others in `queue`; without a queue they are turned away."""

    __slots__ = (
        "_clock",
        "_counters",
        "_judges",
        "_loop",
        "_places",
        "_stage",
        "busy",
        "own",
        "queue",
        "waiting",
        "workers",
    )

    def __init__(
        self,
        *,
        stage: str,
        workers: int | WorkerPool | None,
        queue: Queue | None,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self.own = workers.fresh() if isinstance(workers, WorkerPool) else None
        if self.own is not None:
            self.own.changed = self.serve
        # With a pool of its own no number is low enough: every event asks it.
        self.workers = UNLIMITED if workers is None else workers if isinstance(workers, int) else 0
        self.queue = Queue(size_max=0) if queue is None else queue.fresh()
        self.busy = 0
        self.waiting = 0
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
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiter = Waiter(event, Future(loop=self._loop), self._clock())
        if self.own is not None and not self.waiting and self.own.has_free():
            waiter.has_left = True
            self._hand_over(waiter)
            return waiter
        if self.waiting >= self._places:
            self._counters.rejected += 1
            return None
        self.push(waiter)
        return waiter

    def push(self, waiter: Waiter) -> None:
        self.queue.push(waiter)
        self.waiting += 1

    def pop(self) -> Waiter:
        """The next one; it has left the queue."""
        waiter = self.queue.pop()
        waiter.has_left = True
        self.waiting -= 1
        return waiter

    def discard(self, waiter: Waiter) -> None:
        """Take out one that no longer waits."""
        self.queue.discard(waiter)
        self.waiting -= 1

    @property
    def is_full(self) -> bool:
        """Whether there is no place to wait."""
        return self.waiting >= self._places

    def has_free(self) -> bool:
        return self.busy < self.workers if self.own is None else self.own.has_free()

    def take(self) -> None:
        """A worker becomes busy."""
        self.busy += 1
        if self.own is not None:
            self.own.take()

    def free(self) -> None:
        """A worker is done."""
        self.busy -= 1
        if self.own is not None:
            self.own.free()

    @property
    def size(self) -> int | None:
        """How many workers there are, where that is a number."""
        if self.own is not None:
            return self.own.size
        return None if self.workers == UNLIMITED else self.workers

    def quit(self, waiter: Waiter) -> None:
        """Given up: still in the queue, or with a worker in hand, or already refused."""
        if not waiter.has_left:
            self.discard(waiter)
            self._counters.quit += 1
        elif not waiter.future.cancelled() and waiter.future.exception() is None:
            self._counters.cancelled += 1
            self.free()
            self.serve()

    def resize(self, workers: int) -> None:
        """More workers start at once; fewer means that the busy ones finish first."""
        self.workers = workers
        self.serve()

    def go_on(self) -> None:
        """A worker that `busy` no longer counts is done."""
        if self.own is not None:
            self.own.free()
        self.serve()

    def serve(self) -> None:
        """Give free workers to those who wait."""
        now = self._clock()
        counters = self._counters
        while self.waiting and self.has_free():
            waiter = self.pop()
            future = waiter.future
            if future.cancelled():
                counters.quit += 1
            elif (self._judges or waiter.event.deadline is not None) and (refusal := self._refusal(waiter, now)):
                counters.rejected += 1
                future.set_exception(refusal)
            else:
                counters.note_wait(now - waiter.since)
                self._hand_over(waiter)

    def _hand_over(self, waiter: Waiter) -> None:
        self.take()
        self._counters.started += 1
        waiter.future.set_result(None)

    def _refusal(self, waiter: Waiter, now: float) -> Rejected | None:
        deadline = waiter.event.deadline
        if deadline is not None and now >= deadline:
            return DeadlinePassed(self._stage)
        return Overdue(self._stage) if self.queue.is_overdue(now - waiter.since, now) else None
