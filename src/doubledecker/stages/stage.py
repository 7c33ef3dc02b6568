"""A stage: a queue, a worker pool and four methods. Every technique is one.

    1. `admit`      before the event enters the queue; raises a `Rejected` to turn it away, or returns another event
    2. `work`       when it has left the queue with a worker; hands it to the stage inside, or not
    3. `succeeded`  when the work is done
    4. `failed`     when the work raised

An admitted event ends in exactly one of `succeeded`, `failed` and `cancelled`: cancelled when the caller gave up, or
when the queue turned the event away after all. Only `work` may wait. The others decide and record, so there is no
moment at which a cancellation could leave them half done.

One event may be inside a stage twice: sent again by a retry while an abandoned call goes on, or by a stage of your own.
So what a stage knows of a passage is in the local variables of `work`, or belongs to an event that `admit` made for
this passage alone; nothing is kept by an event that came from outside.

A stage in a chain is a setting and never runs. Binding runs a copy of it, with time, chance and the stage inside.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from doubledecker.stages import limits
from doubledecker.stages.context import Context, Event, Notice, may_be_awaited
from doubledecker.stages.errors import ChainInvalid, QueueFull, Rejected
from doubledecker.stages.pool import Pool, Queue, Waiter, WorkerPool
from doubledecker.stages.statistics import FOLD_EVERY, Counters, Snapshot

if TYPE_CHECKING:
    from doubledecker.stages.bound import Linked
    from doubledecker.stages.chain import Chain

Inner = Callable[[Event], Awaitable[object]]
_WORKERS = limits.Limit(
    limits.ONE_OR_MORE.words, lambda seen: isinstance(seen, WorkerPool) or limits.ONE_OR_MORE.holds(seen)
)


@dataclass
class Stage:
    """Without workers and queue every event is worked on at once: the same as no bound on either."""

    name: str = field(default="", kw_only=True)
    workers: int | WorkerPool | None = field(default=None, kw_only=True)
    queue: Queue | None = field(default=None, kw_only=True)

    # Set by binding, on the copy.
    inner: Inner = field(init=False, repr=False, compare=False)
    context: Context = field(init=False, repr=False, compare=False)
    counters: Counters = field(init=False, repr=False, compare=False)
    pool: Pool | None = field(init=False, repr=False, compare=False)
    # The methods that the class really has: an empty one is not called.
    _ask: Callable[[Event], Event | None] | None = field(init=False, repr=False, compare=False)
    _does: Inner = field(init=False, repr=False, compare=False)
    _record: Callable[[Event, object], None] | None = field(init=False, repr=False, compare=False)
    _clock: Callable[[], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the settings; a technique with settings of its own adds to it."""
        limits.check(self, workers=limits.or_none(_WORKERS), queue=limits.or_none(limits.a(Queue)))

    def start(self) -> None:
        """Make the state of one binding; called once on each copy, when `context` and `inner` are there."""

    def admit(self, event: Event) -> Event | None:
        """Raise a Rejected to turn the event away; an event that is returned goes on in its place."""

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
    def working(self) -> int:
        """Events at work now."""
        return self.counters.working

    @property
    def queued(self) -> int:
        """Events that wait for a worker."""
        return self.pool.waiting if self.pool else 0

    @property
    def branches(self) -> Mapping[str, "Chain"]:
        """Chains inside this stage, by name, for binding and drawing."""
        return {}

    @property
    def is_end(self) -> bool:
        """Nothing is inside: the stage is the dependency itself."""
        return False

    @property
    def needs_key(self) -> bool:
        """It goes by the event's key: a function that it guards is guarded with `chain.keyed`."""
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
        _check_methods(kind, name)
        self._ask = None if kind.admit is Stage.admit else self.admit
        self._does = inner if kind.work is Stage.work else self.work
        self._record = None if kind.succeeded is Stage.succeeded else self.succeeded
        self._clock = context.clock
        self.start()
        if context.hook is not None:
            self._hook_up()

    def _hook_up(self) -> None:
        """Call the hook with the steps that run takes often; with the others it is called where they happen."""
        does = self._does

        def ask(event: Event) -> Event:
            # Called with the event that goes on, so that all steps of a passage name the same one.
            passage = event
            try:
                passage = self.admit(event) or event
            finally:
                self.tell_step("arrived", passage)
            return passage

        def do(event: Event) -> Awaitable[object]:
            self.tell_step("started", event)
            return does(event)

        def record(event: Event, result: object) -> None:
            self.tell_step("succeeded", event)
            self.succeeded(event, result)

        self._ask, self._does, self._record = ask, do, record

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

    async def run(self, event: Event) -> object:  # noqa: C901, PLR0912 - in one piece: all calls come here
        counters = self.counters
        counters.arrived += 1
        if self._ask is not None:
            try:
                event = self._ask(event) or event
            except BaseException:
                self._turn_away(event)
                raise
        pool = self.pool
        if pool is not None and pool.busy >= pool.workers:
            waiter = self._join(pool, event)
            try:
                await waiter.future
            except BaseException as error:
                self._quit(pool, waiter, error)
                raise
        else:
            counters.started += 1
            if pool is not None:
                pool.busy += 1
        started_at = self._clock()
        try:
            result = await self._does(event)
        except BaseException as error:
            self._end_badly(event, error)
            raise
        else:
            counters.succeeded += 1
            if not counters.succeeded % FOLD_EVERY:
                counters.fold()
            if self._record is not None:
                self._record(event, result)
            return result
        finally:
            counters.note_work(self._clock() - started_at)
            if pool is not None:
                pool.busy -= 1
                if pool.waiting or pool.own is not None:
                    pool.go_on()

    def _end_badly(self, event: Event, error: BaseException) -> None:
        self.counters.fold_when_long()
        if isinstance(error, Exception):
            self.counters.failed += 1
            self.tell_step("failed", event)
            self.failed(event, error)
        else:
            self.counters.cancelled += 1
            self.tell_step("cancelled", event)
            self.cancelled(event)

    def _turn_away(self, event: Event) -> None:
        self.counters.rejected += 1
        self.notify("rejected", event)

    def _join(self, pool: Pool, event: Event) -> Waiter:
        """Queue for a worker; where there is no place, the event is rejected after all."""
        waiter = pool.join(event)
        if waiter is None:
            self.notify("rejected", event)
            self.cancelled(event)
            raise QueueFull(self.name)
        return waiter

    def _quit(self, pool: Pool, waiter: Waiter, error: BaseException) -> None:
        """Turned away by the queue, or given up."""
        pool.quit(waiter)
        if isinstance(error, Rejected):
            self.notify("rejected", waiter.event)
        else:
            self.tell_step("cancelled", waiter.event)
        self.cancelled(waiter.event)

    def ask(self, event: Event) -> "asyncio.Task[object]":
        """Pass the event on in a task of its own, which the binding ends when it is closed."""
        return self.context.tasks.start(self._pass_on(event))

    async def _pass_on(self, event: Event) -> object:
        return await self.inner(event)

    def notify(self, what: str, event: Event | None = None) -> None:
        """Call the binding's listener, if it has one."""
        listener = self.context.listener
        if listener is not None:
            listener(self._notice(what, event))
        self.tell_step(what, event)

    def tell_step(self, what: str, event: Event | None = None) -> None:
        """Call the binding's hook, if it has one."""
        if self.context.hook is not None:
            self.context.hook(self._notice(what, event))

    def _notice(self, what: str, event: Event | None) -> Notice:
        return Notice(self.name, what, self.context.clock(), event.key if event else None, event)

    def resize(self, workers: int) -> None:
        """Change the number of workers while events flow; none is a pause."""
        if self.pool is None:
            raise ChainInvalid(f"{self.name} has no workers to change")
        if self.pool.own is not None:
            raise ChainInvalid(f"{self.name} has a worker pool of its own: change that")
        limits.check_argument(self.name, "workers", workers, limits.WHOLE_ZERO_OR_MORE)
        self.pool.resize(workers)

    def snapshot(self) -> Snapshot:
        """What was counted so far."""
        counters, pool = self.counters, self.pool
        return Snapshot(
            stage=self.name,
            arrived=counters.arrived,
            rejected=counters.rejected,
            queued=self.queued,
            cancelled_in_queue=counters.quit,
            started=counters.started,
            working=self.working,
            succeeded=counters.succeeded,
            failed=counters.failed,
            cancelled=counters.cancelled,
            workers=pool.size if pool else None,
            queue_time=counters.queue_time.freeze(),
            work_time=counters.work_time.freeze(),
            state=self.state,
        )


def _check_methods(kind: type[Stage], name: str) -> None:
    """Only `work` may wait: the others are called at moments at which nothing else may happen."""
    for method in ("start", "admit", "succeeded", "failed", "cancelled"):
        if inspect.iscoroutinefunction(getattr(kind, method)):
            raise ChainInvalid(
                f"{name}: `{method}` is declared with `async def`, but has to decide at once: declare it with `def`, "
                "and await in `work`; what blocks belongs into a function guarded with `in_thread`"
            )
    if not may_be_awaited(kind.work):
        raise ChainInvalid(
            f"{name}: `work` is a sync function; declare it with `async def`. To guard sync code use `in_thread`"
        )
