"""What passes through a chain, and what a binding gives its stages: time, chance, background tasks, a listener."""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import get_origin

import msgspec

from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.simulation.loop import VirtualLoop

# An event: what is asked of a dependency, on its way through the stages.
#
# Equal keys ask for the same data; that is what caches, single-flight and per-key breakers go by. An event carries the
# function it will call, so that one chain can guard many functions.

NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})


async def _nothing() -> None:
    """What an event calls that carries no function: only the way through the stages counts."""


class Event(msgspec.Struct, eq=False):
    """A key, a deadline on the binding's clock, a priority (higher goes first), and attributes for whom it concerns.

    Events are equal only to themselves: two with the same key are still two. (A struct, because one is made for every
    call, and a class in Python takes twice as long to make one.)
    """

    key: str | None = None
    deadline: float | None = None
    priority: int = 0
    attributes: Mapping[str, object] = NO_ATTRIBUTES
    function: Callable[..., Awaitable[object]] = _nothing
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] | None = None

    def __repr__(self) -> str:
        return f"Event(key={self.key!r}, deadline={self.deadline!r}, priority={self.priority})"

    def call(self) -> Awaitable[object]:
        """Ask the dependency."""
        if self.kwargs:
            return self.function(*self.args, **self.kwargs)
        return self.function(*self.args)

    def again(self) -> "Event":
        """A new event that asks the same; for stages that ask more than once at a time."""
        return Event(self.key, self.deadline, self.priority, self.attributes, self.function, self.args, self.kwargs)


# Which functions can be guarded how: found out when they are given, not when they are first called.

# Nobody stacks as many decorators.
_LEVELS_MAX = 100
_AWAITABLES = ("Awaitable", "Coroutine", "Future", "Task")


def check_async(function: object) -> None:
    """Raise ChainInvalid for a function that cannot be awaited."""
    code = getattr(function, "__code__", None)
    # Asked on every `bound.call`: most functions are seen to be async at once.
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return
    if not may_be_awaited(function):
        raise ChainInvalid(
            f"{_named(function)} is a sync function, and this guards async ones: declare it with `async def`, guard it "
            "with `@chain.in_thread` to await it while a thread runs it, or with `@chain.blocking` in a sync program"
        )


def check_sync(function: object, *, guard: str) -> None:
    """Raise ChainInvalid for an async function where a plain one is called."""
    found = function.func if isinstance(function, functools.partial) else function
    if inspect.iscoroutinefunction(found):
        raise ChainInvalid(f"{_named(function)} is async, and `{guard}` guards sync functions: guard it with `@chain`")


def may_be_awaited(function: object) -> bool:
    """Whether calling it may give something to await: it is async, says so, or cannot be known before it is called."""
    return any(map(_gives_awaitable, _levels(function)))


def _levels(function: object) -> Iterator[object]:
    """The function, and what its decorators and partials lead to; a proxy may claim that it wraps one for ever."""
    for _ in range(_LEVELS_MAX):
        if function is None:
            return
        yield function
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)


def _gives_awaitable(function: object) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    found = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(found, FunctionType | BuiltinFunctionType | type | functools.partial):
        found = getattr(type(found), "__call__", None)  # noqa: B004 - an object may have an async __call__
    if isinstance(found, type):
        return issubclass(found, Awaitable)
    if isinstance(found, BuiltinFunctionType | functools.partial):
        return False
    if not isinstance(found, FunctionType) or inspect.iscoroutinefunction(found):
        return True  # what is no function even then cannot be known
    return found.__name__ == "<lambda>" or _says_awaitable(found.__annotations__.get("return"))


def _says_awaitable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return any(word in annotation for word in _AWAITABLES)
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Awaitable)


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


# What a binding gives to its stages: time, chance, a place for tasks, and whom to notify.


@dataclass(frozen=True)
class Notice:
    """Something that happened: `stage` did `what` at `at` on the binding's clock; `event` is whose step it was, if any.

    A listener gets what is worth a log line: a rejection, a retry, a change of state. A hook gets every step too:
    arrived, rejected, started, succeeded, failed, cancelled.
    """

    stage: str
    what: str
    at: float
    key: str | None = None
    event: Event | None = field(default=None, repr=False, compare=False)


class Tasks:
    """Work that goes on behind the callers' backs, until it ends or the binding is closed."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, object]) -> "asyncio.Task[object]":
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        while self._running:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        # Looked at, so that asyncio does not report as unheard what the stage has chosen not to wait for.
        if not task.cancelled():
            task.exception()


@dataclass(frozen=True)
class Context:
    """One per binding, shared by its stages."""

    clock: Callable[[], float]
    random: Random
    listener: Callable[[Notice], None] | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    hook: Callable[[Notice], None] | None = None
    tasks: Tasks = field(default_factory=Tasks)
    _names: set[str] = field(default_factory=set)

    def name(self, wanted: str) -> str:
        """A name that no other stage of this binding has: `retry`, `retry-2`."""
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}-{number}"
        self._names.add(name)
        return name


def clock_here() -> Callable[[], float]:
    """The loop's time in virtual time, else the monotonic clock: uvloop's own time moves in steps of a millisecond."""
    loop = _virtual_loop()
    return time.monotonic if loop is None else loop.time


def sleep_here() -> Callable[[float], Awaitable[None]]:
    """How to wait in the running loop."""
    loop = _virtual_loop()
    return asyncio.sleep if loop is None else loop.pause


def _virtual_loop() -> VirtualLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, VirtualLoop) else None


# A listener for logs: it logs when a breaker opens and when it has closed, and is silent of the probes between.


class Transitions:
    """Calls `opened` and `closed` in turn; for a chain with one breaker: `chain.bind(listener=Transitions(…))`."""

    def __init__(self, *, opened: Callable[[], None], closed: Callable[[], None]) -> None:
        self._opened = opened
        self._closed = closed
        self._is_open = False

    def __call__(self, notice: Notice) -> None:
        if notice.what in {"open", "forced open"} and not self._is_open:
            self._is_open = True
            self._opened()
        elif notice.what in {"closed", "forced closed"} and self._is_open:
            self._is_open = False
            self._closed()
