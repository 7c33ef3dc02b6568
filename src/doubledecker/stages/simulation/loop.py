"""An asyncio event loop in which waiting takes no time.

When nobody can run, the loop moves its clock to the next timer. An hour passes as fast as its events can be worked on,
and twice the same seed gives twice the same run. When nobody can run and there is no timer, everyone waits for ever:
`Deadlock`. Sockets, threads and processes live in real time, and are refused.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from itertools import count
from typing import NoReturn, TypeVarTuple

from doubledecker.stages.errors import Deadlock, RealWorldRefused

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


class VirtualLoop(asyncio.BaseEventLoop):
    """Starts at time zero; `asyncio.Runner(loop_factory=VirtualLoop)`."""

    # asyncio's own: what runs next, and whether the loop was told to stop.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle | asyncio.Future[None]]] = []
        self._numbers = count()

    def time(self) -> float:
        return self._now

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
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + delay, callback, args, self, context)
        heapq.heappush(self._timers, (handle.when(), next(self._numbers), handle))
        return handle

    def pause(self, delay: float) -> Awaitable[None]:
        """As asyncio's sleep, for a third of its cost: the timer is the future itself."""
        if delay <= 0.0:
            return asyncio.sleep(0)
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), future))
        return future

    def get_debug(self) -> bool:
        """Never: asked for with every handle."""
        return False

    def _run_once(self) -> None:
        """Run what is ready, turn by turn, until told to stop; with nothing ready, move the clock to the next timer."""
        ready = self._ready
        while True:
            if not ready and not self._stopping:
                self._advance()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            if self._stopping:
                return

    def _advance(self) -> None:
        """Move the clock to the next timer, and let all timers of that moment ring."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(sorted(task.get_name() for task in asyncio.all_tasks(self)))
        when, _, timer = heapq.heappop(timers)
        if when > self._now:
            self._now = when
        if not timers or timers[0][0] > when:
            _ring(timer)
            return
        # Taken off before the first one rings: what it sets for the same moment comes after what it made ready.
        due = [timer]
        while timers and timers[0][0] <= self._now:
            due.append(heapq.heappop(timers)[2])
        for each in due:
            _ring(each)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio; a cancelled timer is skipped when its time comes."""

    def _write_to_self(self) -> None:
        """Called by asyncio to wake the selector; there is none."""


def _ring(timer: "asyncio.TimerHandle | asyncio.Future[None]") -> None:
    if timer.cancelled():
        return
    if isinstance(timer, asyncio.Future):
        timer.set_result(None)
    else:
        timer._run()  # noqa: SLF001 - as asyncio's own loop does


def _refusal(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise RealWorldRefused(what)

    return refuse


for _name in _REFUSED:
    setattr(VirtualLoop, _name, _refusal(_name))
