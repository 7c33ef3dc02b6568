"""A chain: stages one inside the other, outermost first.

A chain is a value. It holds no time, no chance and nothing of asyncio, so it can be made at import, compared, drawn
and shared. `bind` makes its state: once per event loop, as often as wanted.
"""

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import Any, ParamSpec, TypeVar, cast, overload

from doubledecker.stages import diagram
from doubledecker.stages.blocking import Blocking, BlockingBound, blocking
from doubledecker.stages.bound import Bound
from doubledecker.stages.context import Context, Notice, clock_here, sleep_here
from doubledecker.stages.errors import ChainInvalid, KeyMissing
from doubledecker.stages.guard import Guarded, Keyed, guarded, threaded
from doubledecker.stages.linking import named
from doubledecker.stages.stage import Stage

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Chain:
    """`Chain()` without stages passes every event straight on."""

    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        for stage in self.stages[:-1]:
            if stage.is_end:
                raise ChainInvalid(f"{type(stage).__name__} is a dependency: nothing can stand inside it")

    def __or__(self, inside: "Stage | Chain") -> "Chain":
        """Put another one inside."""
        more = inside.stages if isinstance(inside, Chain) else (inside,)
        return Chain(self.stages + more)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def change(self, name: str, **settings: object) -> "Chain":
        """The same chain with other settings of the stages of that name: `chain.change("retry", attempts=5)`."""
        if name not in map(named, self.stages):
            raise ChainInvalid(f"no stage named {name!r}; there are {', '.join(map(named, self.stages)) or 'none'}")
        return Chain(tuple(_changed(one, settings) if named(one) == name else one for one in self.stages))

    def bind(
        self,
        *,
        clock: Callable[[], float] | None = None,
        random: Random | None = None,
        listener: Callable[[Notice], None] | None = None,
        hook: Callable[[Notice], None] | None = None,
    ) -> Bound:
        """Make the state: counters, queues, circuits; `listener` hears of rejections and changes of state.

        `hook` hears of every step of every event, for tracing; without one that costs nothing.

        Bind in the loop that will use it, or name the clock: outside of one it cannot be known whether time is virtual.
        """
        chance = Random() if random is None else random  # noqa: S311 - jitter is no secret
        return Bound(self.stages, Context(clock or clock_here(), chance, listener, sleep_here(), hook))

    def bind_blocking(
        self,
        *,
        random: Random | None = None,
        listener: Callable[[Notice], None] | None = None,
        hook: Callable[[Notice], None] | None = None,
    ) -> BlockingBound:
        """Make the state for a sync program; the stages run in a thread, which calls listener and hook."""
        return BlockingBound(partial(self.bind, random=random, listener=listener, hook=hook))

    @property
    def keyed_by(self) -> str | None:
        """The first stage that goes by the events' keys, in branches too; None when there is none."""
        for stage in self.stages:
            if stage.needs_key:
                return named(stage)
            for branch in stage.branches.values():
                if branch.keyed_by is not None:
                    return branch.keyed_by
        return None

    def _check_keyless(self) -> None:
        stage = self.keyed_by
        if stage is not None:
            raise KeyMissing(stage)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Guarded[P, R]:
        """Guard an async function: `@chain`."""
        self._check_keyless()
        return guarded(self.bind, function)

    # One, two or three arguments are spelled out so that checkers know what the parameters of a lambda are.
    @overload
    def keyed(self, key: Callable[[Any], str]) -> Keyed: ...

    @overload
    def keyed(self, key: Callable[[Any, Any], str]) -> Keyed: ...

    @overload
    def keyed(self, key: Callable[[Any, Any, Any], str]) -> Keyed: ...

    @overload
    def keyed(self, key: Callable[..., str]) -> Keyed: ...  # type: ignore[overload-cannot-match]  # four arguments do

    def keyed(self, key: Callable[..., str]) -> Keyed:
        """Guard a function whose events have a key, made from its arguments: `@chain.keyed(lambda url: url)`.

        Sync functions too: `@chain.keyed(…).in_thread`, `@chain.keyed(…).blocking`.
        """
        return Keyed(self.bind, key)

    def in_thread(self, function: Callable[P, R]) -> Guarded[P, R]:
        """Guard a sync function, run in a thread, which goes on to its end even when the caller gives up."""
        self._check_keyless()
        return guarded(self.bind, threaded(function))

    def blocking(self, function: Callable[P, R]) -> Blocking[P, R]:
        """Guard a sync function of a sync program: the call waits, and the function runs in a thread."""
        self._check_keyless()
        return blocking(self.bind, function)

    def batched(self, function: Callable[[list[T]], Awaitable[Sequence[R]]]) -> Guarded[[T], R]:
        """Guard a function that answers many at once, to be called with one: for chains with a Batch."""
        self._check_keyless()
        return guarded(self.bind, cast("Callable[[T], Awaitable[R]]", function))

    def diagram(self) -> str:
        """The chain as text."""
        return diagram.text(self.stages)

    def diagram_svg(self) -> str:
        """The chain as a drawing."""
        return diagram.svg(self.stages)


def _changed(stage: Stage, settings: Mapping[str, object]) -> Stage:
    known = {field.name for field in fields(stage) if field.init}
    changed = copy.copy(stage)
    for name, setting in settings.items():
        if name not in known:
            raise ChainInvalid(f"{named(stage)} has no setting {name!r}; it has {', '.join(sorted(known))}")
        setattr(changed, name, setting)
    changed.__post_init__()
    return changed
