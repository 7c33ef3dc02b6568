"""A stage: a queue, a worker pool and four methods. Every technique is one.

    1. `admit`      before the event enters the queue; raises a `Rejected` to turn it away
    2. `work`       when it has left the queue with a worker; hands it to the stage inside, or not
    3. `succeeded`  when the work is done
    4. `failed`     when the work raised

An admitted event ends in exactly one of `succeeded`, `failed` and `cancelled`: cancelled when the caller gave up, or
when the queue turned the event away after all. Only `work` may wait. The others decide and record, so there is no
moment at which a cancellation could leave them half done.

A stage in a chain is a setting and never runs. Binding runs a copy of it, with time, chance and the stage inside.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from doubledecker.stages import limits
from doubledecker.stages.context import Context, Notice
from doubledecker.stages.errors import ChainInvalid, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.pool import UNLIMITED, Pool
from doubledecker.stages.queues import Queue
from doubledecker.stages.statistics import FOLD_EVERY, Counters, Snapshot

if TYPE_CHECKING:
    from doubledecker.stages.chain import Chain
    from doubledecker.stages.linking import Linked

Inner = Callable[[Event], Awaitable[object]]


@dataclass
class Stage:
    """Without workers and queue every event is worked on at once: the same as no bound on either."""

    name: str = field(default="", kw_only=True)
    workers: int | None = field(default=None, kw_only=True)
    queue: Queue | None = field(default=None, kw_only=True)

    # Set by binding, on the copy.
    inner: Inner = field(init=False, repr=False, compare=False)
    context: Context = field(init=False, repr=False, compare=False)
    counters: Counters = field(init=False, repr=False, compare=False)
    pool: Pool | None = field(init=False, repr=False, compare=False)
    # The methods that the class really has: an empty one is not called.
    _asks: bool = field(init=False, repr=False, compare=False)
    _does: Inner = field(init=False, repr=False, compare=False)
    _records: bool = field(init=False, repr=False, compare=False)
    _clock: Callable[[], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the settings; a technique with settings of its own adds to it."""
        limits.check(self, workers=limits.or_none(limits.ONE_OR_MORE), queue=limits.or_none(limits.a(Queue)))

    def start(self) -> None:
        """Make the state of one binding; called once on each copy, when `context` and `inner` are there."""

    def admit(self, event: Event) -> None:
        """Raise a Rejected to turn the event away."""

    async def work(self, event: Event) -> object:
        """Pass the event on and give back what comes."""
        return await self.inner(event)

    def succeeded(self, event: Event, result: object) -> None:
        """The work gave a result."""

    def failed(self, event: Event, error: Exception) -> None:
        """The work raised."""

    def cancelled(self, event: Event) -> None:
        """Admitted, but given up before the work ended."""

    @property
    def state(self) -> str:
        """One word for reports, where the technique has states."""
        return ""

    @property
    def branches(self) -> Mapping[str, "Chain"]:
        """Chains inside this stage, by name, for binding and drawing."""
        return {}

    @property
    def is_end(self) -> bool:
        """Nothing is inside: the stage is the dependency itself."""
        return False

    @property
    def is_admission(self) -> bool:
        """It only lets in: what is inside is called once and left alone."""
        return type(self).work is Stage.work

    def linked_branches(self) -> "Iterable[Linked]":
        """The branches of a bound stage."""
        return ()

    def __or__(self, inside: "Stage | Chain") -> "Chain":
        from doubledecker.stages.chain import Chain  # noqa: PLC0415 - a chain is made of stages

        return Chain((self,)) | inside

    def bind(self, inner: Inner, context: Context, name: str) -> None:
        """Make this stage run; called once, on a copy of the one in the chain."""
        self.name = name
        self.inner = inner
        self.context = context
        self.counters = Counters()
        self.pool = self._make_pool()
        kind = type(self)
        self._asks = kind.admit is not Stage.admit
        self._does = inner if kind.work is Stage.work else self.work
        self._records = kind.succeeded is not Stage.succeeded
        self._clock = context.clock
        self.start()

    def _make_pool(self) -> Pool | None:
        if self.workers is None and self.queue is None:
            return None
        return Pool(
            stage=self.name,
            workers=self.workers,
            queue=self.queue,
            clock=self.context.clock,
            counters=self.counters,
        )

    async def run(self, event: Event) -> object:
        """Lead an event through the stage."""
        counters = self.counters
        counters.arrived += 1
        if self._asks:
            self._let_in(event)
        pool = self.pool
        if pool is None:
            counters.started += 1
        elif pool.busy < pool.workers:
            pool.busy += 1
            counters.started += 1
        else:
            await self._wait(pool, event)
        clock = self._clock
        started_at = clock()
        is_settled = False
        try:
            result = await self._does(event)
        except Exception as error:
            is_settled = True
            counters.failed += 1
            self.failed(event, error)
            raise
        else:
            is_settled = True
            counters.succeeded += 1
            if self._records:
                self.succeeded(event, result)
            return result
        finally:
            counters.finished += 1
            counters.note_work(clock() - started_at)
            if not counters.finished % FOLD_EVERY:
                counters.fold()
            if not is_settled:
                self.cancelled(event)
            if pool is not None:
                pool.release()

    def _let_in(self, event: Event) -> None:
        is_admitted = False
        try:
            self.admit(event)
            is_admitted = True
        finally:
            if not is_admitted:
                self.counters.rejected += 1
                self.notify("rejected", event)

    async def _wait(self, pool: Pool, event: Event) -> None:
        has_worker = False
        try:
            await pool.wait(event)
            has_worker = True
        except Rejected:
            self.notify("rejected", event)
            raise
        finally:
            if not has_worker:
                self.cancelled(event)

    def ask(self, event: Event) -> "asyncio.Task[object]":
        """Pass the event on in a task of its own, which the binding ends when it is closed."""
        return self.context.tasks.start(self._pass_on(event))

    async def _pass_on(self, event: Event) -> object:
        return await self.inner(event)

    def notify(self, what: str, event: Event | None = None) -> None:
        """Tell the binding's listener, if it has one."""
        listener = self.context.listener
        if listener is not None:
            listener(Notice(self.name, what, self.context.clock(), event.key if event else None))

    def resize(self, workers: int) -> None:
        """Change the number of workers while events flow; none is a pause."""
        if self.pool is None:
            raise ChainInvalid(f"{self.name} has no workers to change")
        limits.check_argument(self.name, "workers", workers, limits.WHOLE_ZERO_OR_MORE)
        self.pool.resize(workers)

    def snapshot(self) -> Snapshot:
        """What was counted so far."""
        counters, pool = self.counters, self.pool
        return Snapshot(
            stage=self.name,
            arrived=counters.arrived,
            rejected=counters.rejected,
            queued=len(pool.queue) if pool else 0,
            cancelled_in_queue=counters.quit,
            started=counters.started,
            working=counters.started - counters.finished,
            succeeded=counters.succeeded,
            failed=counters.failed,
            cancelled=counters.finished - counters.succeeded - counters.failed,
            workers=pool.workers if pool and pool.workers != UNLIMITED else None,
            queue_time=counters.queue_time.freeze(),
            work_time=counters.work_time.freeze(),
            state=self.state,
        )
