"""A bound chain: the running stages of one event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, cast

from doubledecker.stages import limits
from doubledecker.stages.context import NO_ATTRIBUTES, Context, Event, check_async
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.limits import in_words
from doubledecker.stages.stage import Inner, Stage
from doubledecker.stages.statistics import Snapshot

# Linking: bound copies of stages, each with the next one inside it.


@dataclass(frozen=True)
class Linked:
    """The bound stages, outermost first, and the way in."""

    run: Inner
    stages: tuple[Stage, ...]

    def all(self) -> Iterable[Stage]:
        """Every bound stage, those of branches after the stage that branches."""
        for stage in self.stages:
            yield stage
            for branch in stage.linked_branches():
                yield from branch.all()


def link(stages: tuple[Stage, ...], inner: Inner, context: Context, *, prefix: str = "") -> Linked:
    """Bind each stage with the next one inside it; the last one calls `inner`."""
    names = [context.name(prefix + named(stage)) for stage in stages]
    bound: list[Stage] = []
    run = inner
    for stage, name in zip(reversed(stages), reversed(names), strict=True):
        one = _copied(stage)
        one.bind(run, context, name)
        run = one.run
        bound.append(one)
    return Linked(run, tuple(reversed(bound)))


def _copied(stage: Stage) -> Stage:
    """As `copy.copy`, which gives the copy a dictionary of its own: Python reads attributes faster without one."""
    one = object.__new__(type(stage))
    for name, value in vars(stage).items():
        setattr(one, name, value)
    return one


def named(stage: Stage) -> str:
    """Its own name, or that of its class in small letters: SingleFlight is `single_flight`."""
    return stage.name or in_words(type(stage))


# `async with`: the body of the block is the work.
#
# The stages run in a task of their own, whose innermost call says "let in" and then waits for the block to end. So the
# block sees the same stages as a guarded function does. It works for stages that call what is inside them exactly once
# and leave it alone; one that would cancel or repeat the block is refused.


class Admission:
    """One passage; enter it once."""

    def __init__(self, stages: Iterable[Stage], run: Inner, event: Event) -> None:
        for stage in stages:
            if not stage.is_admission:
                raise ChainInvalid(f"{stage.name} does more than let in: guard a function with it")
        self._run = run
        self._event = event

    async def __aenter__(self) -> Event:
        loop = asyncio.get_running_loop()
        self._is_in: asyncio.Future[None] = loop.create_future()
        self._is_out: asyncio.Future[None] = loop.create_future()
        event = self._event.again()
        event.function, event.args, event.kwargs = self._body, (), None
        self._passage = loop.create_task(self._pass(event))
        try:
            await asyncio.wait((self._is_in, self._passage), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._give_up()
            raise
        if not self._is_in.done():
            self._passage.result()
        return event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._is_out.set_result(None)
        elif isinstance(error, Exception):
            self._is_out.set_exception(error)
        else:
            await self._give_up()
            return
        # Shielded: the block has ended, and its outcome is to be counted whatever happens to the caller.
        await asyncio.shield(asyncio.wait((self._passage,)))
        if not self._passage.cancelled():
            self._passage.exception()

    async def _pass(self, event: Event) -> None:
        await self._run(event)

    async def _body(self) -> None:
        self._is_in.set_result(None)
        await self._is_out

    async def _give_up(self) -> None:
        self._passage.cancel()
        await asyncio.wait((self._passage,))


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Stage)


class Call:
    """A call with its options."""

    def __init__(self, run: Inner, event: Event) -> None:
        self._run = run
        self._event = event

    async def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through the stages."""
        check_async(function)
        event = self._event.again()
        event.function, event.args, event.kwargs = function, args, kwargs
        return cast("R", await self._run(event))


class Bound:
    """Use it in one event loop only; as a context manager it is closed at the end."""

    def __init__(self, stages: tuple[Stage, ...], context: Context) -> None:
        self.context = context
        linked = link(stages, Event.call, context)
        self.run = linked.run
        self._stages = {stage.name: stage for stage in linked.all()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __getitem__(self, name: str) -> Stage:
        """The running stage of that name, to look at or to resize."""
        return self._stages[name]

    def stage(self, kind: type[S], name: str | None = None) -> S:
        """The running stage of a class, and of that name if there are several: `bound.stage(Breaker).force_open()`."""
        found = [stage for stage in self._stages.values() if isinstance(stage, kind) and name in {None, stage.name}]
        if len(found) != 1:
            there = ", ".join(self._stages) or "none"
            wanted = f"a {kind.__name__}" + ("" if name is None else f" named {name!r}")
            raise ChainInvalid(f"{len(found)} stages are {wanted}, and one was asked for; there are {there}")
        return found[0]

    async def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through the stages."""
        check_async(function)
        event = Event(function=function, args=args, kwargs=kwargs)
        return cast("R", await self.run(event))

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        attributes: Mapping[str, object] = NO_ATTRIBUTES,
    ) -> "Call":
        """How the next call is sent: `await bound.options(priority=1, deadline_s=2.0).call(function, …)`.

        The deadline is so many seconds from now. Queues and retries keep it; a `Deadline` in the chain ends the work.
        """
        limits.check_argument("options", "deadline_s", deadline_s, limits.or_none(limits.ZERO_OR_MORE))
        deadline = None if deadline_s is None else self.context.clock() + deadline_s
        return Call(self.run, Event(key, deadline, priority, attributes))

    def admission(self, event: Event | None = None) -> Admission:
        """`async with bound.admission():` for chains that only let in, and do not touch the work."""
        return Admission(self._stages.values(), self.run, event or Event())

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Every stage, outermost first."""
        return tuple(stage.snapshot() for stage in self._stages.values())

    async def close(self) -> None:
        """End the work that goes on in the background."""
        await self.context.tasks.close()
