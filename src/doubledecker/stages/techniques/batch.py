"""Batching: a worker takes several events at once.

Asking for ten things in one call is often as cheap as asking for one. The first event opens a batch and waits up to
`wait_s` for company; a full batch goes at once. What is inside is called once with the list of what each was called
with, and gives back a list in the same order. One failure fails the whole batch.

The worker is a task of its own, so that one caller who gives up does not take the answer from the others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import ChainInvalid, QueueFull, Rejected
from doubledecker.stages.pool import Fifo, Pool, Queue, Waiter, WorkerPool
from doubledecker.stages.stage import Stage


@dataclass
class Batch(Stage):
    """Up to `size_max` events a call, `workers` calls at a time."""

    size_max: int = 10
    wait_s: float = 0.0
    workers: int | WorkerPool | None = field(default=1, kw_only=True)
    queue: Queue | None = field(default_factory=Fifo, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, size_max=limits.ONE_OR_MORE, wait_s=limits.FINITE_ZERO_OR_MORE)

    def start(self) -> None:
        self._is_gathering = False
        self._full: asyncio.Future[None] | None = None
        if self._pool.own is not None:
            self._pool.own.changed = self._rouse

    async def run(self, event: Event) -> object:
        """Wait in the queue, and then for the batch: the workers do the rest."""
        self.counters.arrived += 1
        try:
            if self._ask is not None:
                event = self._ask(event) or event
        except Rejected:
            self._turn_away(event)
            raise
        waiter = self._enter(event)
        self._rouse()
        try:
            return await waiter.future
        finally:
            if not waiter.has_left:
                self._pool.discard(waiter)
                self.counters.quit += 1
                self.tell_step("cancelled", event)
                self.cancelled(event)

    @property
    def _pool(self) -> Pool:
        assert self.pool is not None
        return self.pool

    def _enter(self, event: Event) -> Waiter:
        if self._pool.is_full:
            self.counters.rejected += 1
            self.notify("rejected", event)
            self.cancelled(event)
            raise QueueFull(self.name)
        waiter = Waiter(event, asyncio.get_running_loop().create_future(), self.context.clock())
        self._pool.push(waiter)
        return waiter

    def _rouse(self) -> None:
        """One worker gathers at a time; the next begins when it has gone off with its batch."""
        pool = self._pool
        if self._full is not None and not self._full.done() and pool.waiting >= self.size_max:
            self._full.set_result(None)
        if pool.waiting and not self._is_gathering and pool.has_free():
            self._is_gathering = True
            pool.take()
            self.context.tasks.start(self._gather_and_ask()).add_done_callback(self._worker_ended)

    async def _gather_and_ask(self) -> None:
        await self._gather()
        batch = [self._leave() for _ in range(min(self.size_max, self._pool.waiting))]
        self._is_gathering = False
        self._rouse()
        if batch:
            await self._ask_together(batch)

    def _worker_ended(self, worker: "asyncio.Task[object]") -> None:
        """Free a place; in a callback, as a task that is cancelled before its first step runs nothing of its own."""
        self._pool.free()
        if worker.cancelled():
            self._is_gathering = False
            self._give_up()
        self._rouse()

    def _give_up(self) -> None:
        """The binding is closed: nobody will come for those who wait."""
        while self._pool.waiting:
            waiter = self._pool.pop()
            waiter.future.cancel()
            self.counters.quit += 1
            self.tell_step("cancelled", waiter.event)
            self.cancelled(waiter.event)

    async def _gather(self) -> None:
        if self.wait_s > 0.0 and self._pool.waiting < self.size_max:
            self._full = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait((self._full,), timeout=self.wait_s)
            finally:
                self._full = None

    def _leave(self) -> Waiter:
        waiter = self._pool.pop()
        self.counters.started += 1
        self.tell_step("started", waiter.event)
        self.counters.queue_time.note(self.context.clock() - waiter.since)
        return waiter

    async def _ask_together(self, batch: list[Waiter]) -> None:
        began_at = self.context.clock()
        task = self.ask(_together([waiter.event for waiter in batch]))
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            took_s = self.context.clock() - began_at
            for i, waiter in enumerate(batch):
                self._settle(waiter, i, task, took_s, len(batch))
            self.counters.fold()

    def _settle(self, waiter: Waiter, i: int, task: "asyncio.Future[object]", took_s: float, size: int) -> None:
        """Give one caller its result of the batch."""
        self.counters.work_time.note(took_s)
        if waiter.future.cancelled() or not task.done() or task.cancelled():
            self.counters.cancelled += 1
            self.tell_step("cancelled", waiter.event)
            waiter.future.cancel()
            self.cancelled(waiter.event)
            return
        error = task.exception() or _mismatch(task.result(), size)
        if isinstance(error, Exception):
            self.counters.failed += 1
            self.tell_step("failed", waiter.event)
            self.failed(waiter.event, error)
            waiter.future.set_exception(error)
            return
        result = _part(task.result(), i)
        self.counters.succeeded += 1
        if self._record is not None:
            self._record(waiter.event, result)
        waiter.future.set_result(result)


def _together(events: Sequence[Event]) -> Event:
    """One event that asks for all."""
    first = events[0]
    asked = [event.args[0] if event.args else event.key for event in events]
    deadlines = [event.deadline for event in events if event.deadline is not None]
    return Event(deadline=min(deadlines, default=None), function=first.function, args=(asked,))


def _part(result: object, i: int) -> object:
    return result[i] if isinstance(result, Sequence) else None


def _mismatch(result: object, size: int) -> ChainInvalid | None:
    """A call that gives nothing gives each nothing; else it must give as many as were asked for."""
    if result is None or (isinstance(result, Sequence) and len(result) == size):
        return None
    return ChainInvalid(f"a batch of {size} must give a list of {size}, not {type(result).__name__}")
