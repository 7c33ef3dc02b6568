"""Guarded functions: a chain around a function, its signature kept."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from threading import Lock, get_ident
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from doubledecker.stages.blocking import Blocking, blocking
from doubledecker.stages.bound import Bound
from doubledecker.stages.callables import check_async, check_sync
from doubledecker.stages.event import NO_ATTRIBUTES, Event

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Guarded(Protocol[P, R_co]):
    """An async function inside a chain; the chain is bound anew in every event loop that calls it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Guarded[P, R_co]": ...

    @overload
    def __get__(
        self: "Guarded[Concatenate[Any, Q], R_co]", instance: object, owner: type | None = None, /
    ) -> "Guarded[Q, R_co]": ...

    def bound(self) -> Bound:
        """The chain of the running loop: its stages and their snapshots."""
        ...


def guarded(
    bind: Callable[[], Bound], function: Callable[P, Awaitable[R]], *, key: Callable[..., str] | None = None
) -> Guarded[P, R]:
    """The function inside a chain. It is a function itself: Python calls those faster than objects."""
    check_async(function)
    bindings = _Bindings(bind)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, object]:
        named = None if key is None else key(*args, **kwargs)
        event = Event(named, None, 0, NO_ATTRIBUTES, function, args, kwargs)
        latest = bindings.latest
        # The loop that runs in this thread can be no other: asking asyncio costs a system call in Python 3.11.
        if latest is None or latest.thread != get_ident() or not latest.is_running():
            return bindings.call(event)
        return latest.run(event)

    call.bound = bindings.here  # type: ignore[attr-defined]  # a function may have attributes
    return cast("Guarded[P, R]", call)


class Keyed:
    """A decorator that remembers how to make keys: `@chain.keyed(lambda url: url)`."""

    def __init__(self, bind: Callable[[], Bound], key: Callable[..., str]) -> None:
        self._bind = bind
        self._key = key

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Guarded[P, R]:
        return guarded(self._bind, function, key=self._key)

    def in_thread(self, function: Callable[P, R]) -> Guarded[P, R]:
        """Guard a sync function, run in a thread and awaited."""
        return guarded(self._bind, threaded(function), key=self._key)

    def blocking(self, function: Callable[P, R]) -> Blocking[P, R]:
        """Guard a sync function of a sync program."""
        return blocking(self._bind, function, key=self._key)

    def batched(self, function: Callable[[list[T]], Awaitable[Sequence[R]]]) -> Guarded[[T], R]:
        """Guard a function that answers many at once; the key is made from what one call asks for."""
        return guarded(self._bind, cast("Callable[[T], Awaitable[R]]", function), key=self._key)


_Run = Callable[[Event], Coroutine[object, object, object]]


class _Bindings:
    """The chain of one function, bound in each loop that has called it."""

    def __init__(self, bind: Callable[[], Bound]) -> None:
        self._bind = bind
        self._lock = Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Bound] = {}
        self.latest: _Latest | None = None

    def here(self) -> Bound:
        """The one of the running loop."""
        return self._by_loop.get(asyncio.get_running_loop()) or self._bind_here()

    async def call(self, event: Event) -> object:
        """Look up the chain when awaited, not when called: `asyncio.run(guarded())` calls before there is a loop."""
        loop, run = asyncio.get_running_loop(), self.here().run
        latest = self.latest = _Latest(get_ident(), loop.is_running, cast("_Run", run))
        return await latest.run(event)

    def _bind_here(self) -> Bound:
        """Bind for the running loop; loops that have closed are forgotten."""
        bound = self._bind()
        with self._lock:
            self._by_loop = {loop: one for loop, one in self._by_loop.items() if not loop.is_closed()}
            return self._by_loop.setdefault(asyncio.get_running_loop(), bound)


class _Latest:
    """The way into the chain of the loop that called last."""

    __slots__ = ("is_running", "run", "thread")

    def __init__(self, thread: int, is_running: Callable[[], bool], run: _Run) -> None:
        self.thread = thread
        self.is_running = is_running
        self.run = run


def threaded(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """The same function, awaited while a thread runs it."""
    check_sync(function, guard="in_thread")

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(function, *args, **kwargs)

    return run
