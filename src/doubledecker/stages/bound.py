"""A bound chain: the running stages of one event loop."""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, Self, TypeVar, cast

from doubledecker.stages.admission import Admission
from doubledecker.stages.context import Context
from doubledecker.stages.event import Event
from doubledecker.stages.linking import link
from doubledecker.stages.stage import Stage
from doubledecker.stages.statistics import Snapshot

P = ParamSpec("P")
R = TypeVar("R")


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

    async def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through the stages."""
        event = Event(function=function, args=args, kwargs=kwargs)
        return cast("R", await self.run(event))

    def admission(self, event: Event | None = None) -> Admission:
        """`async with bound.admission():` for chains that only let in, and do not touch the work."""
        return Admission(self._stages.values(), self.run, event or Event())

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Every stage, outermost first."""
        return tuple(stage.snapshot() for stage in self._stages.values())

    async def close(self) -> None:
        """End the work that goes on in the background."""
        await self.context.tasks.close()
