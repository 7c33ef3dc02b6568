"""Many timeouts of one length, with one timer.

Timeouts of the same length end in the order in which they began. So a queue in that order is enough, with one timer
set for its head: a call costs an append instead of a timer of its own, which is most of what a timeout costs.

Cancelling the caller's own task is how work is cut short; the rules are those of `asyncio.timeout`. A cancellation that
came from outside passes through, even when it meets the timeout.
"""

import asyncio
from collections import deque
from collections.abc import Callable

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
