"""What a binding gives to its stages: time, chance, a place for tasks, and whom to tell."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random

from doubledecker.stages.event import Event
from doubledecker.stages.simulation.loop import VirtualLoop


@dataclass(frozen=True)
class Notice:
    """Something that happened: `stage` did `what` at `at` on the binding's clock; `event` is whose step it was, if any.

    A listener hears what is worth a log line: a rejection, a retry, a change of state. A hook hears every step too:
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
