"""The board: what `doubledecker up` knows about its bus at this moment, and the task that keeps it fresh."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from doubledecker import client, clock
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.bus import overview
from doubledecker.cli.serve.keep import Kept, KeptState
from doubledecker.cli.trail import Trail
from doubledecker.errors import DoubledeckerError
from doubledecker.store import pipeline
from doubledecker.store.pipeline import PipelineState

LOOK_S = 1.0
PIPELINE = "pipeline"
# The bus is ready when all of these are; the others may come later, or not at all.
_AWAITED = frozenset({"web", "worker"})
# Until it is first ready somebody is waiting for it; afterwards a glance is enough.
_STARTING_GLANCE_S, _GLANCE_S = 0.1, 1.0
_MESSAGES_KEPT = 3
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to find what listens everywhere


@dataclass
class Board:
    """Shown by the live view and by the plain lines."""

    url: str
    began_at: int
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
    """Look at the bus once a second, for ever; a server that is away is said to be, and tried again."""
    while True:
        try:
            async with build.open_bus(settings, patience_s=0) as bus:
                await _follow(board, bus)
        except DoubledeckerError as error:
            board.away = str(error)
        await asyncio.sleep(LOOK_S)


async def _follow(board: Board, bus: build.BusParts) -> None:
    while True:
        await bus.registry.refresh()
        known = bus.registry.snapshot.pushed_to
        board.trail.add(await overview.look(bus.partitions, known, now_ms=clock.now_ms(), rules=bus.headroom.rules))
        _note_pipeline(board, await pipeline.read(bus.partitions.home))
        board.away = ""
        await asyncio.sleep(LOOK_S)


def _note_pipeline(board: Board, said: PipelineState) -> None:
    """Its process runs long before its Spark does; until that runs too it is starting."""
    is_up = said.run is not None and said.run.state == "running" and said.run.is_alive(clock.now_ms())
    for kept in board.kept:
        if kept.name == PIPELINE and kept.state in {KeptState.STARTING, KeptState.RUNNING}:
            kept.state = KeptState.RUNNING if is_up else KeptState.STARTING


async def follow_readiness(board: Board, on_first: Callable[[], None]) -> None:
    """Ask the bus whether it is ready, for ever; the first yes is told.

    Its web processes share an address, and only one of them answers: the others tell their supervisor.
    """
    was_ready = False
    # Anyone may ask that.
    async with client.AsyncBus(board.url, "") as bus:
        while True:
            are_running = all(each.state is KeptState.RUNNING for each in board.kept if each.kind in _AWAITED)
            board.is_ready = are_running and await bus.is_ready()
            if board.is_ready and not was_ready:
                was_ready = True
                on_first()
            await asyncio.sleep(_GLANCE_S if was_ready else _STARTING_GLANCE_S)
