"""Reading ranges of a journal, on the driver to plan and in tasks to read.

A task runs the store's own async code, a page at a time, on a loop of its own. A bus that is away is asked again for a
while: reading changes nothing, so it may be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from doubledecker.assembly.settings import Settings
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import BusAway
from doubledecker.lake import journals
from doubledecker.model.position import START, Position
from doubledecker.store import journal, memory, partitions
from doubledecker.store import journal as ranges
from doubledecker.store.journal import Extent, JournalEntry
from doubledecker.store.partitions import Partition, Partitions

# A restart of the server takes a few seconds; a task that fails is started again by Spark as well.
PATIENCE_S = 15.0
_PAUSE_S = 0.2

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Access:
    """Where the bus is; goes along to the executors."""

    url: str
    namespace: str
    partitions: int

    @classmethod
    def by(cls, settings: Settings) -> "Access":
        """Access by the settings."""
        return cls(settings.redis_url, settings.namespace, settings.partitions)


@dataclass(frozen=True)
class JournalSlice:
    """A range of one partition's journal: entries after `after`, up to and with `upto`."""

    partition: int
    after: Position
    upto: Position

    def cut(self, parts: int, *, first: Position) -> list["JournalSlice"]:
        """Split by time into at most so many; `first` is where the journal begins to hold something."""
        begin = max(self.after.ms, first.ms)
        span = max(0, self.upto.ms - begin)
        parts = max(1, min(parts, span))
        inner = [Position(begin + span * i // parts, 0) for i in range(1, parts)]
        bounds = [self.after, *(each for each in inner if self.after < each < self.upto), self.upto]
        return [JournalSlice(self.partition, after, upto) for after, upto in pairwise(bounds)]


@dataclass(frozen=True)
class JournalFill:
    """About how many bytes wait to land, as a reader gets them, and how full the journals of the fullest server are."""

    bytes: int
    share: float


@asynccontextmanager
async def connected(access: Access, *, patience_s: float = PATIENCE_S) -> AsyncIterator[Partitions]:
    """The bus's partitions, for as long as the block runs."""
    found = await partitions.wait_for(
        access.url, namespace=access.namespace, count=access.partitions, patience_s=patience_s
    )
    try:
        yield found
    finally:
        await found.close()


async def fill(access: Access, name: str, rules: MemoryRules) -> JournalFill:
    """How much of a journal lies after what the archive has confirmed, and how full the journals are."""
    size, share = 0, 0.0
    async with connected(access) as bus:
        for parts in bus.by_server():
            states = [await journal.state(part) for part in parts]
            for part, state in zip(parts, states, strict=True):
                size += (await ranges.read_extent(part, name, after=state.get(f"{name}_confirmed", str(START)))).bytes
            together = sum(int(state.get(f"{each}_bytes", 0)) for state in states for each in journal.NAMES)
            most = rules.journals_max(rules.limit_of((await memory.usage(parts[0])).bytes_max))
            share = max(share, together / max(1, most))
    return JournalFill(size, share)


async def extents(access: Access, name: str, after: Mapping[int, Position] | None = None) -> dict[int, Extent]:
    """The extent of a journal, by partition; the first entry is the one after what `after` names."""
    found = {}
    async with connected(access) as bus:
        for part in bus.all:
            place = str((after or {}).get(part.index, START))
            found[part.index] = await patiently(partial(ranges.read_extent, part, name, after=place))
    return found


def pages(access: Access, name: str, part: JournalSlice, *, fails_on_loss: bool) -> Iterator[Sequence[JournalEntry]]:
    """The entries of a slice, in order, a bounded number of bytes at a time."""
    with asyncio.Runner() as runner:
        bus = runner.run(
            partitions.wait_for(access.url, namespace=access.namespace, count=access.partitions, patience_s=PATIENCE_S)
        )
        try:
            walk = _walk(bus.all[part.partition], name, part, fails_on_loss=fails_on_loss)
            while entries := runner.run(_next(walk)):
                yield entries
        finally:
            runner.run(bus.close())


def _walk(
    partition: Partition, name: str, part: JournalSlice, *, fails_on_loss: bool
) -> AsyncIterator[Sequence[JournalEntry]]:
    return journals.walk(partition, name, after=part.after, upto=part.upto, fails_on_loss=fails_on_loss, asks=patiently)


async def _next(walk: AsyncIterator[Sequence[JournalEntry]]) -> Sequence[JournalEntry]:
    async for entries in walk:
        return entries
    return ()


async def reach(
    access: Access, name: str, start: dict[int, Position], end: dict[int, Position], *, rows: int
) -> dict[int, Position]:
    """How far so many rows go from a start, in whole entries and at least one of each partition that has any.

    It costs a walk through those entries: the journal knows how many entries it has, not how many rows.
    """
    share = max(1, rows // max(1, len(start)))
    async with connected(access) as bus:
        parts = [JournalSlice(index, after, end[index]) for index, after in start.items()]
        ends = await asyncio.gather(*(_reach(bus.all[part.partition], name, part, rows=share) for part in parts))
    return {part.partition: upto for part, upto in zip(parts, ends, strict=True)}


async def _reach(partition: Partition, name: str, part: JournalSlice, *, rows: int) -> Position:
    seen, reached = 0, part.after
    async for entries in _walk(partition, name, part, fails_on_loss=False):
        for entry in entries:
            seen += sum(value.count(b"\n") + 1 for _, value in entry.fields)
            if seen > rows and reached > part.after:
                return reached
            reached = Position.parse(entry.id)
    return max(reached, part.upto)


async def patiently(ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """What is asked, again and again while the bus is away; only for what may be repeated."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            return await ask()
        except BusAway:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
