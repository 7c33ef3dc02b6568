"""Timeout and deadline: do not wait for ever.

A timeout is per attempt: inside a retry each attempt gets its own. A deadline is per event: it counts queueing, all
attempts and their delays, and the stages inside can see it and not begin what cannot end in time.

When the time is up, the work inside is cancelled, and `TimedOut` is raised. With `abandon=True` it is left running in
the background instead: for work that must not be cut in the middle, and for the original model, which knew no
cancelling.
"""

import asyncio
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.errors import DeadlinePassed, DeadlineReached, TimedOut
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage
from doubledecker.stages.timers import CallTimer, Timers


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
