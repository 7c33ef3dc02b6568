"""The live view of `up` and `top`: one calm screen that fits a terminal of 80 by 24, drawn anew each second."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from doubledecker import client, clock
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.bus import overview
from doubledecker.bus.overview import Overview, SubscriberView
from doubledecker.cli import status, words
from doubledecker.cli.serve.keep import Kept, KeptState
from doubledecker.cli.status import Trail
from doubledecker.errors import DoubledeckerError
from doubledecker.queues import view as queue_view
from doubledecker.queues.view import FacetShare, QueueOverview
from doubledecker.store import pipeline, processes
from doubledecker.store.pipeline import PipelineState

# The board: what is known of a bus at this moment, and the task that keeps it fresh.

LOOK_S = 1.0
PIPELINE = "pipeline"
# The bus is ready when all of these are; the others may come later, or not at all.
_AWAITED = frozenset({"web", "worker"})
# Until it is first ready somebody is waiting for it; afterwards a glance is enough.
_STARTING_GLANCE_S, _GLANCE_S = 0.1, 1.0
_MESSAGES_KEPT = 3
# More would be looked at each second for nobody.
_QUEUES_MAX, _TENANTS_OF, _TENANTS_SHOWN = 500, 3, 3
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to find what listens everywhere


@dataclass(frozen=True)
class QueueLine:
    """A queue, and the tenants that have the most in it; of queues further down these are not looked up."""

    view: QueueOverview
    tenants: Sequence[FacetShare] = ()


@dataclass
class Board:
    """Shown by the live view; `kept` are the processes of `up`, `alive` those that report to the bus, by kind."""

    url: str
    began_at: int | None = None
    queues: Sequence[QueueLine] = ()
    queue_count: int = 0
    alive: Mapping[str, int] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=_MESSAGES_KEPT))
    hint: str = ""
    is_ready: bool = False
    is_stopping: bool = False
    away: str = ""


def url_of(settings: Settings) -> str:
    """Where to find the bus of these settings from this machine."""
    host = _ANY.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


async def follow(board: Board, settings: Settings) -> None:
    """Look at the bus once a second, for ever; a server that is away is shown as such, and tried again."""
    while True:
        try:
            async with build.open_bus(settings, patience_s=0) as bus:
                await _follow(board, bus)
        except DoubledeckerError as error:
            board.away = str(error)
        await asyncio.sleep(LOOK_S)


async def _follow(board: Board, bus: build.BusParts) -> None:
    while True:
        await look(board, bus)
        await asyncio.sleep(LOOK_S)


async def look(board: Board, bus: build.BusParts) -> None:
    """Look at the bus once; raises BusAway."""
    await bus.registry.refresh()
    known, rules = bus.registry.snapshot.pushed_to, bus.headroom.rules
    board.queues = await _look_at_queues(board, bus)
    board.alive = Counter(
        each.kind for each in await processes.reports(bus.partitions.home, silent_ms_max=overview.ALIVE_MS)
    )
    state = await pipeline.read(bus.partitions.home)
    if state.run is not None and state.run.is_alive(clock.now_ms()):
        board.alive = {**board.alive, PIPELINE: 1}
    _note_pipeline(board, state)
    board.trail.add(await overview.look(bus.partitions, known, now_ms=clock.now_ms(), rules=rules))
    board.away = ""


async def _look_at_queues(board: Board, bus: build.BusParts) -> list[QueueLine]:
    """Those with the most waiting first."""
    known = bus.registry.snapshot.queues
    board.queue_count = len(known)
    some = [known[name] for name in sorted(known)[:_QUEUES_MAX]]
    seen = sorted(await queue_view.look_all(bus.partitions, some), key=lambda each: -each.waiting)
    asked = [queue_view.look_at_facets(bus.partitions, each.queue, most=_TENANTS_SHOWN) for each in seen[:_TENANTS_OF]]
    tenants = await asyncio.gather(*asked)
    return [QueueLine(each, tenants[n] if n < len(tenants) else ()) for n, each in enumerate(seen)]


def _note_pipeline(board: Board, state: PipelineState) -> None:
    """Its process runs long before its Spark does; until that runs too it is starting."""
    is_up = state.run is not None and state.run.state == "running" and state.run.is_alive(clock.now_ms())
    for kept in board.kept:
        if kept.name == PIPELINE and kept.state in {KeptState.STARTING, KeptState.RUNNING}:
            kept.state = KeptState.RUNNING if is_up else KeptState.STARTING


async def follow_readiness(board: Board, on_first: Callable[[], Awaitable[None]]) -> None:
    """Ask the bus whether it is ready, for ever; shows the first yes.

    Its web processes share an address, and only one of them answers: the others report to their supervisor.
    """
    was_ready = False
    # Anyone may ask that.
    async with client.AsyncBus(board.url, "") as bus:
        while True:
            are_running = all(each.state is KeptState.RUNNING for each in board.kept if each.kind in _AWAITED)
            board.is_ready = are_running and await bus.is_ready()
            if board.is_ready and not was_ready:
                was_ready = True
                await on_first()
            await asyncio.sleep(_GLANCE_S if was_ready else _STARTING_GLANCE_S)


# What is left of a line after a label and a number.
_BESIDE_SPARK = 24
_SPARK_MAX = status.KEPT_S
# All lines but the rows of subscribers, processes and messages: head, numbers, two headings, gaps, foot.
_FIXED_LINES = 13
_ROWS_MIN = 2
# With less, subscribers need the room; a heading and a gap.
_QUEUE_SPACE_MIN, _BESIDE_QUEUES = 9, 2
_COLOURS = {
    "healthy": "green",
    "recovering": "yellow",
    "refusing": "yellow",
    "failing": "red",
    "paused": "yellow",
    "disabled": "red",
}
_NEEDY_FIRST = (KeptState.RESTARTING, KeptState.STARTING, KeptState.STOPPING, KeptState.RUNNING, KeptState.STOPPED)
_STATE_COLOURS = {KeptState.RUNNING: "green", KeptState.RESTARTING: "red"}


def render(board: Board, *, width: int, height: int, now_ms: int, foot: str) -> RenderableType:
    """The whole screen."""
    space = height - _FIXED_LINES - len(_by_kind(board.kept) or board.alive) - len(board.messages)
    queues_max = space // 3 if space >= _QUEUE_SPACE_MIN else 0
    queue_lines = min(queues_max, len(board.queues)) + _BESIDE_QUEUES if board.queues and queues_max else 0
    rows_max = max(_ROWS_MIN, space - queue_lines)
    gap = Text("")
    parts: list[RenderableType] = [_head(board, width, now_ms), gap]
    if board.trail.last is None:
        parts.append(Text(" waiting for the first look at the bus", style="dim"))
    else:
        parts += [_numbers(board, board.trail.last, width), gap]
        parts += [_subscribers(board, board.trail.last, rows_max)]
    if queue_lines:
        parts += [gap, _queues(board, queues_max)]
    parts += [gap, _processes(board.kept) if board.kept else _alive(board.alive), gap]
    parts += [Text(f" {message}", style="yellow", overflow="ellipsis", no_wrap=True) for message in board.messages]
    parts += [Text(f" {line}", style="dim", overflow="ellipsis", no_wrap=True) for line in (board.hint, foot) if line]
    return Group(*parts)


def _head(board: Board, width: int, now_ms: int) -> Text:
    if board.is_stopping:
        state, style = "stopping", "yellow"
    elif board.away:
        state, style = "Redis is away", "bold red"
    elif board.is_ready and board.trail.last is not None and board.trail.last.memory_state != "ok":
        state, style = f"memory is {board.trail.last.memory_state}", "bold red"
    elif board.is_ready:
        state, style = "ready", "green"
    elif not board.kept and board.trail.last is not None:
        # Of a bus that is not ours to start, processes that report are all there is to see.
        fit = {"web", "worker"} <= board.alive.keys()
        state, style = ("running", "green") if fit else ("without web or worker", "yellow")
    else:
        state, style = "starting" if board.trail.last is None else "not ready", "yellow"
    since = "" if board.began_at is None else f"  up {words.age(now_ms - board.began_at)}"
    right = Text.assemble((state, style), (f"{since} ", "dim"))
    left = Text.assemble(" ", ("Doubledecker", "bold"), "  ", (board.url, "cyan"))
    return Text.assemble(left, " " * max(2, width - left.cell_len - right.cell_len), right, no_wrap=True)


def _numbers(board: Board, last: Overview, width: int) -> RenderableType:
    spark = min(_SPARK_MAX, width - _BESIDE_SPARK)
    kept = board.trail
    table = Table.grid(padding=(0, 1))
    table.add_column(width=10)
    table.add_column(width=10, justify="right")
    table.add_column(no_wrap=True)
    for label, number, values, colour in (
        ("published", f"{words.rate(kept.rate(status.published))}/s", kept.rates(status.published), "cyan"),
        ("delivered", f"{words.rate(kept.rate(status.delivered))}/s", kept.rates(status.delivered), "green"),
        ("waiting", f"{last.events_waiting:,}", kept.levels(status.waiting), "yellow"),
    ):
        table.add_row(
            f" {label}", Text(number, style="bold"), Text(status.sparkline(values, width=spark), style=colour)
        )
    # Not a row of the grid: on a narrow terminal it is cut, where a row would squeeze the labels.
    oldest = Text.assemble(
        " oldest    ", (f"{_oldest(last):>10}", "bold"), f" latency  {_latencies(board)}", no_wrap=True
    )
    return Group(table, oldest)


def _oldest(last: Overview) -> str:
    return words.age(None if last.oldest_at is None else max(0, last.at - last.oldest_at))


def _latencies(board: Board) -> str:
    return "  ".join(f"p{share} {words.age(board.trail.latency_ms(share / 100))}" for share in (50, 95, 99))


def _subscribers(board: Board, last: Overview, rows_max: int) -> RenderableType:
    table = _table("subscriber", "health", "waiting", "in flight", "failures", "sent/s")
    names = words.names([view.subscriber.token for view in last.subscribers])
    # Those in need first; the others keep the order of their names, so that rows do not jump about.
    shown = last.subscribers
    if len(shown) > rows_max:
        shown = tuple(sorted(shown, key=_need)[: rows_max - 1])
    for view in shown:
        sent = board.trail.rate(status.sent_to(view.subscriber.token))
        table.add_row(*_subscriber(view, names[view.subscriber.token], sent))
    if len(shown) < len(last.subscribers):
        table.add_row(Text(f" and {len(last.subscribers) - len(shown)} healthier ones", style="dim"))
    if not last.subscribers:
        table.add_row(Text(" none yet", style="dim"))
    return table


def _need(view: SubscriberView) -> tuple[bool, bool, int]:
    """Those that fail now come first, then those that refuse, then those with the fewest points."""
    return view.condition.failures == 0, view.condition.refusals == 0, view.condition.health


def _subscriber(view: SubscriberView, name: str, sent: float) -> list[str | Text]:
    condition = view.condition
    halt = view.subscriber.halt
    word = words.health(condition.health, failures=condition.failures, refusals=condition.refusals, halt=halt)
    health = Text(f"{word} {condition.health:3}", style=_COLOURS[word])
    failures = Text(str(condition.failures), style="red" if condition.failures else "")
    return [f" {name}", health, f"{view.events:,}", str(condition.calls), failures, words.rate(sent)]


def _queues(board: Board, rows_max: int) -> RenderableType:
    table = _table("queue", "waiting", "in flight", "dead")
    table.add_column(" tenants", no_wrap=True, overflow="ellipsis")
    for each in board.queues[:rows_max]:
        seen = each.view
        tenants = ", ".join(f"{tenant.tenant} {tenant.waiting:,}" for tenant in each.tenants if tenant.waiting)
        numbers = [f"{number:,}" for number in (seen.waiting, seen.in_flight, seen.dead)]
        table.add_row(f" {seen.queue.name}", *numbers, Text(f" {words.printable(tenants)}", style="dim"))
    return table


def _alive(alive: Mapping[str, int]) -> RenderableType:
    table = _table("process", "running")
    for kind, count in sorted(alive.items()):
        table.add_row(f" {kind}", Text(str(count), style="green"))
    if not alive:
        table.add_row(Text(" none reports", style="yellow"))
    return table


def _processes(kept: list[Kept]) -> RenderableType:
    table = _table("process", "state", "restarts")
    for kind, alike in _by_kind(kept).items():
        states = {each.state for each in alike}
        # Of several, the one that needs attention is shown.
        state = next(each for each in _NEEDY_FIRST if each in states)
        shown = state.value if len(states) == 1 else f"{sum(each.state is state for each in alike)} {state.value}"
        restarts = sum(each.restarts for each in alike)
        name = kind if len(alike) == 1 else f"{len(alike)} {kind}"
        table.add_row(
            f" {name}",
            Text(shown, style=_STATE_COLOURS.get(state, "yellow")),
            Text(str(restarts), style="yellow" if restarts else ""),
        )
    return table


def _by_kind(kept: list[Kept]) -> dict[str, list[Kept]]:
    found: dict[str, list[Kept]] = {}
    for each in kept:
        found.setdefault(each.kind, []).append(each)
    return found


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(f" {first}", width=20, no_wrap=True, overflow="ellipsis")
    for title in others:
        table.add_column(title, width=14 if title in {"health", "state"} else 10, justify="right", no_wrap=True)
    return table
