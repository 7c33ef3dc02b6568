"""Where events wait for a worker: in order, newest first, by priority, or with a bound on useful waiting.

A queue in a chain is a setting; `fresh` gives the empty one that a binding fills. Every queue drops a given waiter in
constant time, because callers that give up are most of the traffic of an overloaded stage.

A queue of your own derives from `Queue` and has `push`, `pop` and `discard` on a store of its own:

    class ByAge(Queue):
        def __init__(self, size_max=None):
            super().__init__(size_max)
            self._waiters = []
        def push(self, waiter): self._waiters.append(waiter)
        def pop(self): return self._waiters.pop(oldest_of(self._waiters))
        def discard(self, waiter): self._waiters.remove(waiter)
"""

import asyncio
import copy
from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, field
from math import sqrt
from typing import Self

from doubledecker.stages import limits
from doubledecker.stages.event import Event


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
    """In order of arrival, at most `size_max` of them; `Fifo` to its users."""

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
        """Asked when a waiter's turn has come: was the waiting in vain?"""
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
