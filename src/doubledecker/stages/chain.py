"""A chain: stages one inside the other, outermost first.

A chain is a value. It holds no time, no chance and nothing of asyncio, so it can be made at import, compared, drawn
and shared. `bind` makes its state: once per event loop, as often as wanted.
"""

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from html import escape
from random import Random
from threading import Lock, get_ident
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from doubledecker.stages.blocking import Blocking, BlockingBound, blocking
from doubledecker.stages.bound import Bound, named
from doubledecker.stages.context import (
    NO_ATTRIBUTES,
    Context,
    Event,
    Notice,
    check_async,
    check_sync,
    clock_here,
    sleep_here,
)
from doubledecker.stages.errors import ChainInvalid, KeyMissing
from doubledecker.stages.stage import Stage

# Drawings of a chain: every stage stands inside the one above it.
#
#     event
#     ▼ retry          attempts=3
#     ▼ bulkhead       workers=32, queue=Fifo(size_max=100)
#     ▼ timeout        limit_s=2.0
#     ● the function
#
# A branch is indented below the stage that it belongs to.

_ROW_PX = 44
_INDENT_PX = 36
_WIDTH_PX = 640
_STYLE = "font-family:ui-monospace,monospace;font-size:13px"


@dataclass(frozen=True)
class DrawnRow:
    """One line of a drawing: how deep in branches, what stands there, and how it is set."""

    depth: int
    mark: str
    name: str
    settings: str = ""


def text(stages: Sequence[Stage]) -> str:
    """One line a stage; branches are indented."""
    rows = _rows(stages)
    width = max(len(row.name) + 2 * row.depth for row in rows) + 2
    lines = [f"{'  ' * row.depth}{row.mark} {row.name:{width - 2 * row.depth}}{row.settings}".rstrip() for row in rows]
    return "\n".join(["event", *lines])


def svg(stages: Sequence[Stage]) -> str:
    """A box a stage, arrows inwards; branches are indented."""
    rows = _rows(stages)
    height_px = _ROW_PX * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height_px}" style="{_STYLE}">',
        *(_box(row, number) for number, row in enumerate(rows)),
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(stages: Sequence[Stage]) -> list[DrawnRow]:
    rows = list(_inside(stages, 0))
    if not (stages and stages[-1].is_end):
        rows.append(DrawnRow(0, "●", "the function"))
    return rows


def _inside(stages: Sequence[Stage], depth: int) -> Iterator[DrawnRow]:
    for stage in stages:
        yield DrawnRow(depth, "●" if stage.is_end else "▼", named(stage), _settings(stage))
        for name, branch in stage.branches.items():
            yield DrawnRow(depth + 1, "├", name)
            yield from _inside(branch.stages, depth + 2)


def _settings(stage: Stage) -> str:
    """What differs from the defaults."""
    shown = {
        field.name: getattr(stage, field.name)
        for field in fields(stage)
        if field.init and field.name != "name" and getattr(stage, field.name) != _default(field)
    }
    hidden = set(stage.branches) | {"chain", "routes", "otherwise"}
    return ", ".join(f"{name}={_short(value)}" for name, value in shown.items() if name not in hidden)


def _default(field: "Field[object]") -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _short(value: object) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return "(" + ", ".join(_short(item) for item in value) + ")"
    return getattr(value, "__name__", None) or repr(value)


def _box(row: DrawnRow, number: int) -> str:
    x, y = 10 + _INDENT_PX * row.depth, 10 + _ROW_PX * number
    label = f'<tspan font-weight="bold">{escape(row.name)}</tspan> {escape(row.settings)}'
    words = f'<text x="{x + 12}" y="{y + 20}">{label}</text>'
    if row.mark == "├":
        return words
    box = f'<rect x="{x}" y="{y}" width="{_WIDTH_PX - x - 10}" height="30" rx="6" fill="none" stroke="currentColor"/>'
    arrow = f'<path d="M{x + 20} {y - 12}v10m-4-4l4 4l4-4" fill="none" stroke="currentColor"/>' if number else ""
    return box + arrow + words


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Guarded(Protocol[P, R_co]):
    """An async function inside a chain; the chain is bound anew in every event loop that calls it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Guarded[P, R_co]": ...

    @overload
    def __get__(
        self: "Guarded[Concatenate[Any, Q], R_co]", instance: object, owner: type | None = None, /
    ) -> "Guarded[Q, R_co]": ...

    def bound(self) -> Bound:
        """The chain of the running loop: its stages and their snapshots."""
        ...


def guarded(
    bind: Callable[[], Bound], function: Callable[P, Awaitable[R]], *, key: Callable[..., str] | None = None
) -> Guarded[P, R]:
    """The function inside a chain. It is a function itself: Python calls those faster than objects."""
    check_async(function)
    bindings = _Bindings(bind)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[object, object, object]:
        named = None if key is None else key(*args, **kwargs)
        event = Event(named, None, 0, NO_ATTRIBUTES, function, args, kwargs)
        latest = bindings.latest
        # The loop that runs in this thread can be no other: asking asyncio costs a system call in Python 3.11.
        if latest is None or latest.thread != get_ident() or not latest.is_running():
            return bindings.call(event)
        return latest.run(event)

    call.bound = bindings.here  # type: ignore[attr-defined]  # a function may have attributes
    return cast("Guarded[P, R]", call)


class Keyed:
    """A decorator that remembers how to make keys: `@chain.keyed(lambda url: url)`."""

    def __init__(self, bind: Callable[[], Bound], key: Callable[..., str]) -> None:
        self._bind = bind
        self._key = key

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Guarded[P, R]:
        return guarded(self._bind, function, key=self._key)

    def in_thread(self, function: Callable[P, R]) -> Guarded[P, R]:
        """Guard a sync function, run in a thread and awaited."""
        return guarded(self._bind, threaded(function), key=self._key)

    def blocking(self, function: Callable[P, R]) -> Blocking[P, R]:
        """Guard a sync function of a sync program."""
        return blocking(self._bind, function, key=self._key)

    def batched(self, function: Callable[[list[T]], Awaitable[Sequence[R]]]) -> Guarded[[T], R]:
        """Guard a function that answers many at once; the key is made from what one call asks for."""
        return guarded(self._bind, cast("Callable[[T], Awaitable[R]]", function), key=self._key)


_Run = Callable[[Event], Coroutine[object, object, object]]


class _Bindings:
    """The chain of one function, bound in each loop that has called it."""

    def __init__(self, bind: Callable[[], Bound]) -> None:
        self._bind = bind
        self._lock = Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Bound] = {}
        self.latest: _Latest | None = None

    def here(self) -> Bound:
        """The one of the running loop."""
        return self._by_loop.get(asyncio.get_running_loop()) or self._bind_here()

    async def call(self, event: Event) -> object:
        """Look up the chain when awaited, not when called: `asyncio.run(guarded())` calls before there is a loop."""
        loop, run = asyncio.get_running_loop(), self.here().run
        latest = self.latest = _Latest(get_ident(), loop.is_running, cast("_Run", run))
        return await latest.run(event)

    def _bind_here(self) -> Bound:
        """Bind for the running loop; loops that have closed are forgotten."""
        bound = self._bind()
        with self._lock:
            self._by_loop = {loop: one for loop, one in self._by_loop.items() if not loop.is_closed()}
            return self._by_loop.setdefault(asyncio.get_running_loop(), bound)


class _Latest:
    """The way into the chain of the loop that called last."""

    __slots__ = ("is_running", "run", "thread")

    def __init__(self, thread: int, is_running: Callable[[], bool], run: _Run) -> None:
        self.thread = thread
        self.is_running = is_running
        self.run = run


def threaded(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """The same function, awaited while a thread runs it."""
    check_sync(function, guard="in_thread")

    @functools.wraps(function)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(function, *args, **kwargs)

    return run


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
        """Make the state: counters, queues, circuits; `listener` is called with rejections and changes of state.

        `hook` is called with every step of every event, for tracing; without one that costs nothing.

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
        return text(self.stages)

    def diagram_svg(self) -> str:
        """The chain as a drawing."""
        return svg(self.stages)


def _changed(stage: Stage, settings: Mapping[str, object]) -> Stage:
    known = {field.name for field in fields(stage) if field.init}
    changed = copy.copy(stage)
    for name, setting in settings.items():
        if name not in known:
            raise ChainInvalid(f"{named(stage)} has no setting {name!r}; it has {', '.join(sorted(known))}")
        setattr(changed, name, setting)
    changed.__post_init__()
    return changed
