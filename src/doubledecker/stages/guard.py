"""Guarded functions: a chain around a function, its signature kept."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from threading import Lock, get_ident
from types import MethodType
from typing import Generic, ParamSpec, TypeVar, cast

from doubledecker.stages.bound import Bound
from doubledecker.stages.event import NO_ATTRIBUTES, Event

P = ParamSpec("P")
R = TypeVar("R")


class Guarded(Generic[P, R]):
    """An async function inside a chain; the chain is bound anew in every event loop that calls it."""

    def __init__(
        self,
        bind: Callable[[], Bound],
        function: Callable[P, Awaitable[R]],
        *,
        key: Callable[..., str] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._bind = bind
        self._function = function
        self._key = key
        self._lock = Lock()
        self._bounds: dict[asyncio.AbstractEventLoop, Bound] = {}
        self._latest: _Latest[R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, R]:
        key = None if self._key is None else self._key(*args, **kwargs)
        event = Event(key, None, 0, NO_ATTRIBUTES, self._function, args, kwargs)
        latest = self._latest
        # The loop that runs in this thread can be no other: asking asyncio costs a system call in Python 3.11.
        if latest is None or latest.thread != get_ident() or not latest.is_running():
            return self._call_anew(event)
        return latest.run(event)

    def __get__(self, instance: object, owner: type) -> "Guarded[P, R] | MethodType":
        return self if instance is None else MethodType(self, instance)

    def bound(self) -> Bound:
        """The chain of the running loop: its stages and their snapshots."""
        return self._bounds.get(asyncio.get_running_loop()) or self._bind_here()

    async def _call_anew(self, event: Event) -> R:
        """Look up the chain when awaited, not when called: `asyncio.run(guarded())` calls before there is a loop."""
        loop, run = asyncio.get_running_loop(), self.bound().run
        self._latest = _Latest(get_ident(), loop.is_running, cast("_Run[R]", run))
        return await self._latest.run(event)

    def _bind_here(self) -> Bound:
        """Bind for the running loop; loops that have closed are forgotten."""
        bound = self._bind()
        with self._lock:
            self._bounds = {loop: one for loop, one in self._bounds.items() if not loop.is_closed()}
            return self._bounds.setdefault(asyncio.get_running_loop(), bound)


class Keyed:
    """A decorator that remembers how to make keys."""

    def __init__(self, bind: Callable[[], Bound], key: Callable[..., str]) -> None:
        self._bind = bind
        self._key = key

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Guarded[P, R]:
        return Guarded(self._bind, function, key=self._key)


_Run = Callable[[Event], Coroutine[object, object, R]]


class _Latest(Generic[R]):
    """The way into the chain of the loop that called last."""

    __slots__ = ("is_running", "run", "thread")

    def __init__(self, thread: int, is_running: Callable[[], bool], run: _Run[R]) -> None:
        self.thread = thread
        self.is_running = is_running
        self.run = run


def threaded(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """The same function, awaited while a thread runs it."""

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(function, *args, **kwargs)

    return run
