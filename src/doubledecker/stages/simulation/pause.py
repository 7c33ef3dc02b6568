"""A pause in virtual time: timer, future and handle in one object.

asyncio's sleep makes one of each, and a second handle to wake the sleeper; in a simulation that was most of the work. A
pause is what the loop's heap holds, what the sleeper waits for, and what wakes it. To a task it is a future.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context

Wake = Callable[["Pause"], object]


class Pause:
    """Await it once; it is over when it rings."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_context",
        "_has_ended",
        "_is_given_up",
        "_loop",
        "_others",
        "_ready",
        "_wake",
    )

    # To the loop it is a handle, and one that is never taken back.
    _cancelled = False

    def __init__(self, loop: asyncio.AbstractEventLoop, ready: "deque[asyncio.Handle | Pause]") -> None:
        self._loop = loop
        self._ready = ready
        self._has_ended = False
        self._is_given_up = False
        self._wake: Wake | None = None
        # Not a future yet to those who ask: they wrap it, and await it once.
        self._asyncio_future_blocking: bool | None = None

    def __await__(self) -> "Generator[Pause, None, None]":
        self._asyncio_future_blocking = True
        yield self
        self.result()

    def ring(self) -> None:
        """The time is over: wake the sleeper, unless it was given up before."""
        if not self._has_ended:
            self._has_ended = True
            self._run()

    def ring_in_turn(self) -> None:
        """The same, but after all others of this moment have rung: one of them may be for this sleeper too."""
        if not self._has_ended:
            self._has_ended = True
            self._ready.append(self)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as a future's
        """Give it up: the sleeper wakes with a CancelledError."""
        if self._has_ended:
            return False
        self._is_given_up = True
        self.ring_in_turn()
        return True

    def _run(self) -> None:
        """Wake the sleeper; the loop calls it when it is this one's turn."""
        if self._wake is not None:
            self._context.run(self._wake, self)
            for wake, context in self._others:
                context.run(wake, self)

    def add_done_callback(self, wake: Wake, *, context: Context | None = None) -> None:
        """Called by the task that waits, and by whoever looks over its shoulder."""
        if self._wake is None:
            self._wake, self._context = wake, context or copy_context()
            self._others: tuple[tuple[Wake, Context], ...] = ()
        else:
            self._others += ((wake, context or copy_context()),)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def result(self) -> None:
        """Called by the task that wakes."""
        if self._is_given_up:
            raise asyncio.CancelledError
