"""Worker pools, the queues in front of them, and how events wait for a worker."""

import asyncio
import copy
import sys
from asyncio import Future
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Self

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import DeadlinePassed, Overdue, Rejected
from doubledecker.stages.statistics import Counters


class WorkerPool:
    """As many workers as `has_free` allows; `busy` counts those at work.

    A worker pool of your own: how many events a stage works on at a time, when that is no fixed number.

        class Nightly(WorkerPool):          # two workers by day, twenty by night
            def has_free(self):
                return self.busy < (20 if is_night() else 2)

        Bulkhead(workers=Nightly(), queue=Fifo(1_000))

    A worker is a permission to work: the stage asks whether one is free, takes it for an event, and frees it when the
    event is finished. A pool that gets more workers by itself, as time passes, says so with `self.changed()`.
    """

    busy: int = 0
    # Lets the stage look whether more can be worked on; set by binding.
    changed: Callable[[], None] = staticmethod(lambda: None)

    def fresh(self) -> Self:
        """The pool of one binding: a copy; a pool that several stages share returns itself."""
        return copy.deepcopy(self)

    @property
    def size(self) -> int | None:
        """How many workers there are now, for reports, where that is known."""
        return None

    def has_free(self) -> bool:
        """Whether a worker is free."""
        raise NotImplementedError

    def take(self) -> None:
        """A worker becomes busy."""
        self.busy += 1

    def free(self) -> None:
        """A worker is done."""
        self.busy -= 1


class Waiter:
    """An event in a queue, and the future that ends its waiting; a cancelled one may stay until it wakes.

    One event may wait twice: a queue keeps waiters, never events. `priority` is the event's when it came.
    """

    __slots__ = ("event", "future", "has_left", "priority", "since")

    def __init__(self, event: Event, future: "asyncio.Future[object]", since: float) -> None:
        self.event = event
        self.priority = event.priority
        self.future = future
        self.since = since
        self.has_left = False


@dataclass
class Queue:
    """In order of arrival, at most `size_max` of them; `Fifo` to its users.

    Where events wait for a worker: in order, newest first, by priority, or with a bound on useful waiting.

    A queue in a chain is a setting; `fresh` gives the empty one that a binding fills. Every queue drops a given waiter
    in constant time, because callers that give up are most of the traffic of an overloaded stage.

    A queue of your own derives from `Queue` and has `push`, `pop` and `discard` on a store of its own:

        class ByAge(Queue):
            def __init__(self, size_max=None):
                super().__init__(size_max)
                self._waiters = []
            def push(self, waiter): self._waiters.append(waiter)
            def pop(self): return self._waiters.pop(oldest_of(self._waiters))
            def discard(self, waiter): self._waiters.remove(waiter)
    """

    size_max: int | None = None
    # All who wait; in whatever order they leave.
    line: OrderedDict[Waiter, None] = field(default_factory=OrderedDict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limits.check(self, size_max=limits.or_none(limits.WHOLE_ZERO_OR_MORE))

    def fresh(self) -> Self:
        """The same settings, nobody waiting; a copy, as nobody ever waits in the queue of a chain."""
        return copy.deepcopy(self)

    def __len__(self) -> int:
        return len(self.line)

    def push(self, waiter: Waiter) -> None:
        self.line[waiter] = None

    def pop(self) -> Waiter:
        return self.line.popitem(last=False)[0]

    def discard(self, waiter: Waiter) -> None:
        """Take out one that no longer waits."""
        del self.line[waiter]

    def is_overdue(self, waited_s: float, now: float) -> bool:  # noqa: ARG002 - CoDel needs both
        """Asked when a waiter's turn has come: has it been cancelled or run out of time?"""
        return False


@dataclass
class Fifo(Queue):
    """First come, first served: fair, and a shock absorber when bounded."""


@dataclass
class Lifo(Queue):
    """Newest first: under overload some callers are served in time instead of all too late."""

    def pop(self) -> Waiter:
        return self.line.popitem(last=True)[0]


@dataclass
class Priority(Queue):
    """Highest `event.priority` first, in order of arrival within one priority."""

    _lines: dict[int, OrderedDict[Waiter, None]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _levels: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    def push(self, waiter: Waiter) -> None:
        super().push(waiter)
        level = waiter.priority
        if level not in self._lines:
            self._lines[level] = OrderedDict()
            insort(self._levels, level)
        self._lines[level][waiter] = None

    def pop(self) -> Waiter:
        waiter = next(iter(self._lines[self._levels[-1]]))
        self.discard(waiter)
        return waiter

    def discard(self, waiter: Waiter) -> None:
        super().discard(waiter)
        level = waiter.priority
        of_level = self._lines[level]
        del of_level[waiter]
        if not of_level:
            del self._lines[level]
            self._levels.remove(level)


@dataclass
class CoDel(Queue):
    """In order, but a standing queue is thinned (Nichols and Jacobson, "Controlling Queue Delay").

    A short queue that empties again is good: it absorbs bursts. When every waiter of a whole interval had waited
    longer than the target, the queue stands; then waiters are dropped, at first one an interval, ever faster until
    the waiting falls below the target again.
    """

    target_s: float = 0.005
    interval_s: float = 0.1
    _above_until: float | None = field(default=None, init=False, repr=False, compare=False)
    _is_dropping: bool = field(default=False, init=False, repr=False, compare=False)
    _drop_at: float = field(default=0.0, init=False, repr=False, compare=False)
    _drops: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, target_s=limits.ABOVE_ZERO, interval_s=limits.ABOVE_ZERO)

    def is_overdue(self, waited_s: float, now: float) -> bool:
        if not self._is_standing(waited_s, now):
            self._is_dropping = False
            return False
        if not self._is_dropping:
            self._is_dropping = True
            self._drops = 0
            self._drop_at = now
        if now < self._drop_at:
            return False
        self._drops += 1
        self._drop_at += self.interval_s / sqrt(self._drops)
        return True

    def _is_standing(self, waited_s: float, now: float) -> bool:
        if waited_s < self.target_s or not self.line:
            self._above_until = None
            return False
        if self._above_until is None:
            self._above_until = now + self.interval_s
        return now >= self._above_until


# Workers, and the handing over of events to them.
#
# A worker is a permission to work: the caller's own task does the work, so that a stage costs no task and a cancelled
# caller cancels its work. A free worker means that nobody waits; whatever changes either calls `serve`.
#
# A worker is handed over at the moment it becomes free, not when the waiter wakes: nobody can slip in between, and the
# counters are right at every moment. A waiter cancelled between the two gives its worker back.
#
# The pool counts those who wait by itself, and calls nothing of the queue but `push`, `pop`, `discard` and
# `is_overdue`: a queue may keep them wherever it likes. A `WorkerPool` of the user's own is asked for every event;
# without one the stage compares two numbers.

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
        # Most queues never give a waiter up, and are not asked.
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
