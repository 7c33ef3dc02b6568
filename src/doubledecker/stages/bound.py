"""A bound chain: the running stages of one event loop."""

from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, Self, TypeVar, cast

from doubledecker.stages import limits
from doubledecker.stages.admission import Admission
from doubledecker.stages.callables import check_async
from doubledecker.stages.context import Context
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.event import NO_ATTRIBUTES, Event
from doubledecker.stages.linking import link
from doubledecker.stages.stage import Inner, Stage
from doubledecker.stages.statistics import Snapshot

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
