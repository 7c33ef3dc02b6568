"""An asyncio event loop in which waiting takes no time.

When nobody can run, the loop moves its clock to the next timer. An hour passes as fast as its events can be worked on,
and twice the same seed gives twice the same run. When nobody can run and there is no timer, everyone waits for ever:
`Deadlock`. Sockets, threads and processes live in real time, and are refused.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import NoReturn, Protocol, TypeVarTuple

from doubledecker.stages.errors import Deadlock, RealWorldRefused

# A pause in virtual time: timer, future and handle in one object.
#
# asyncio's sleep makes one of each, and a second handle to wake the sleeper; in a simulation that was most of the work.
# A pause is what the loop's heap holds, what the sleeper waits for, and what wakes it. To a task it is a future.

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
        """Called by the task that waits, and by code that observes it."""
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


Ts = TypeVarTuple("Ts")

_REFUSED = (
    "add_reader",
    "add_writer",
    "add_signal_handler",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "run_in_executor",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


class Timer(Protocol):
    """Something that happens at its moment, once: at once when nothing else does, or in its turn among others."""

    def ring(self) -> None: ...

    def ring_in_turn(self) -> None: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """Starts at time zero; `asyncio.Runner(loop_factory=VirtualLoop)`."""

    # asyncio's own: what runs next, and whether the loop was asked to stop.
    _ready: deque[asyncio.Handle | Pause]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's own, without its checks for debugging: half of all that the loop does is this."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of the same moment run in the order in which they were set."""
        handle = _TimerHandle(when, callback, args, self, context)
        self.set(when, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def set(self, when: float, timer: Timer) -> None:
        """Let the timer ring at that moment; without a handle, it cannot be taken back."""
        heappush(self._timers, (when, next(self._numbers), timer))

    def pause(self, delay: float) -> Awaitable[None]:
        """As asyncio's sleep, for half of its cost."""
        if delay <= 0.0:
            return asyncio.sleep(0)
        pause = Pause(self, self._ready)
        heappush(self._timers, (self.now + delay, next(self._numbers), pause))
        return pause

    def get_debug(self) -> bool:
        """Never: asked for with every handle."""
        return False

    def _run_once(self) -> None:
        """Run until asked to stop, and then what is ready by then; with nothing ready, move the clock to a timer."""
        ready = self._ready
        while not self._stopping:
            if not ready:
                self._advance()
            while ready and not self._stopping:
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001 - as asyncio's own loop does
                    handle._run()  # noqa: SLF001
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001

    def _advance(self) -> None:
        """Move the clock to the next timer, and let all timers of that moment ring."""
        timers = self._timers
        if not timers:
            raise Deadlock(sorted(task.get_name() for task in asyncio.all_tasks(self)))
        when, _, timer = heappop(timers)
        if when > self.now:  # noqa: PLR1730 - a call costs more than all else here
            self.now = when
        if not timers or timers[0][0] > when:
            timer.ring()
            return
        # Taken off before the first one rings: what it sets for the same moment comes after what it made ready.
        due = [timer]
        while timers and timers[0][0] <= when:
            due.append(heappop(timers)[2])
        for each in due:
            each.ring_in_turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio; a cancelled timer is skipped when its time comes."""

    def _write_to_self(self) -> None:
        """Called by asyncio to wake the selector; there is none."""


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def ring(self) -> None:
        if not self._cancelled:
            self._run()

    ring_in_turn = ring


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise RealWorldRefused(what)

    return refuse


for _name in _REFUSED:
    setattr(VirtualLoop, _name, _refusal(_name))
