"""Timeout and deadline: do not wait for ever.

A timeout is per attempt: inside a retry each attempt gets its own. A deadline is per event: it counts queueing, all
attempts and their delays, and the stages inside can see it and not begin what cannot end in time.

When the time is up, the work inside is cancelled, and `TimedOut` is raised. With `abandon=True` it is left running in
the background instead: for work that must not be cut in the middle, and for the original model, which knew no
cancelling.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import DeadlinePassed, DeadlineReached, TimedOut
from doubledecker.stages.stage import Stage

# Many timeouts of one length, with one timer.
#
# Timeouts of the same length end in the order in which they began. So a queue in that order is enough, with one timer
# set for its head: a call costs an append instead of a timer of its own, which is most of what a timeout costs.
#
# Cancelling the caller's own task is how work is cut short; the rules are those of `asyncio.timeout`. A cancellation
# that came from outside passes through, even when it meets the timeout.

# Adding a length to a time and taking it off again may differ in the last bit; no clock is this fine.
_ROUNDING_S = 1e-9


class CallTimer:
    """One running call: its task, when its time is up, and whether it was cut short."""

    __slots__ = ("at", "is_cut", "requests", "task")

    def __init__(self, task: "asyncio.Task[object]", at: float) -> None:
        # None when the call has ended: the watch has nothing to do any more.
        self.task: asyncio.Task[object] | None = task
        self.at = at
        self.is_cut = False
        self.requests = task.cancelling()

    def cut(self) -> None:
        if self.task is not None:
            self.is_cut = True
            self.task.cancel()

    def end(self) -> bool:
        """The call was cancelled: was it this watch, and nobody else, that cut it short?"""
        task, self.task = self.task, None
        return self.is_cut and task is not None and task.uncancel() <= self.requests


class Timers:
    """All running calls of one stage."""

    def __init__(self, length_s: float, clock: Callable[[], float]) -> None:
        self._length_s = length_s
        self._clock = clock
        self._watches: deque[CallTimer] = deque()
        self._is_set = False
        # Found at the first call and kept: in Python 3.11 asking for the running loop costs a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self) -> CallTimer:
        """Watch the running task from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None
        watches = self._watches
        while watches and watches[0].task is None:
            watches.popleft()
        watch = CallTimer(task, self._clock() + self._length_s)
        watches.append(watch)
        if not self._is_set:
            self._set(self._length_s)
        return watch

    def _set(self, delay_s: float) -> None:
        assert self._loop is not None
        self._is_set = True
        self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._is_set = False
        now = self._clock()
        watches = self._watches
        while watches and (watches[0].task is None or watches[0].at <= now + _ROUNDING_S):
            watches.popleft().cut()
        if watches:
            self._set(watches[0].at - now)


@dataclass
class Timeout(Stage):
    """At most `limit_s` for what is inside."""

    limit_s: float = 1.0
    abandon: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, limit_s=limits.FINITE_ABOVE_ZERO)

    def start(self) -> None:
        self._timers = Timers(self.limit_s, self.context.clock)

    async def work(self, event: Event) -> object:
        if self.abandon:
            return await self._race(event)
        watch = self._timers.watch()
        try:
            result = await self.inner(event)
        except asyncio.CancelledError as error:
            if watch.end():
                self.notify("timed out", event)
                raise TimedOut(self.name, self.limit_s) from error
            raise
        finally:
            if watch.is_cut:
                watch.end()
            else:
                watch.task = None
        return result

    async def _race(self, event: Event) -> object:
        task = self.ask(event)
        done, _ = await asyncio.wait((task,), timeout=self.limit_s)
        if done:
            return task.result()
        self.notify("timed out", event)
        raise TimedOut(self.name, self.limit_s)


@dataclass
class Deadline(Stage):
    """Gives each event a deadline `limit_s` from now, or keeps an earlier one, and ends its work when it comes."""

    limit_s: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, limit_s=limits.FINITE_ABOVE_ZERO)

    def start(self) -> None:
        self._timers = Timers(self.limit_s, self.context.clock)

    def admit(self, event: Event) -> None:
        now = self.context.clock()
        if event.deadline is not None and event.deadline <= now:
            raise DeadlinePassed(self.name)

    async def work(self, event: Event) -> object:
        now = self.context.clock()
        latest = now + self.limit_s
        if event.deadline is None or event.deadline >= latest:
            # Another event: the caller may send the one it has once more, and each passage has a deadline of its own.
            passage = event.again()
            passage.deadline = latest
            return await self._within(passage, self._timers.watch(), None)
        return await self._until_its_own(event, event.deadline - now)

    async def _until_its_own(self, event: Event, left_s: float) -> object:
        """A deadline from outside is in no order with the others: it gets a timer of its own."""
        task = asyncio.current_task()
        assert task is not None
        watch = CallTimer(task, self.context.clock() + left_s)
        timer = asyncio.get_running_loop().call_later(left_s, watch.cut)
        return await self._within(event, watch, timer)

    async def _within(self, event: Event, watch: CallTimer, timer: asyncio.TimerHandle | None) -> object:
        try:
            return await self.inner(event)
        except asyncio.CancelledError as error:
            if watch.end():
                self.notify("deadline reached", event)
                raise DeadlineReached(self.name, self.limit_s) from error
            raise
        finally:
            watch.end()
            if timer is not None:
                timer.cancel()
