"""The latest measures, reported to the bus after each round: the last hour by minutes, the last two days by hours."""

import asyncio
from datetime import UTC, datetime, timedelta

from doubledecker.lake import snapshots
from doubledecker.model.position import Position
from doubledecker.model.summary import Summary
from doubledecker.pipeline.lake import versions
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.metrics import measures, summaries
from doubledecker.store import pipeline as telling
from doubledecker.store.journal import read_extent
from doubledecker.store.partitions import Partitions

# What a dashboard shows; and so the hash stays below a few hundred KiB whatever passes over the bus.
LATEST = {"minute": timedelta(minutes=60), "hour": timedelta(hours=48)}


def report(access: Access, root: str) -> None:
    """Sum up what the tables say now, and keep it in Redis."""
    asyncio.run(_tell(access, root))


async def _tell(access: Access, root: str) -> None:
    async with journal_reader.connected(access) as bus:
        # The time first, then how far the journals reach: so nothing earlier can come after.
        now_ms = min([await part.time_ms() for part in bus.all])
        complete_until = await complete(bus, ends(root, access.partitions), now_ms)
        latest = [_summary(root, span, now_ms, complete_until) for span in measures.SPANS]
        await telling.tell_measures(bus.home, *latest)


def ends(root: str, partitions: int) -> dict[str, dict[int, Position]]:
    """How far the measures have come, by journal and partition: as far as the table that has come least."""
    found: dict[str, dict[int, Position]] = {}
    for name, measure in measures.MEASURES.items():
        done = snapshots.landed(versions.of(measures.table_of(root, name), partitions=partitions), partitions)
        known = found.setdefault(measure.source, done)
        found[measure.source] = {index: min(end, known[index]) for index, end in done.items()}
    return found


async def complete(bus: Partitions, reached: dict[str, dict[int, Position]], now_ms: int) -> int:
    """The watermark: until when the measures are whole.

    A partition whose journal has no more than what is measured is whole until now; else until its last measured entry.
    """
    found = [now_ms]
    for journal, by_partition in reached.items():
        for part in bus.all:
            last = Position.parse((await read_extent(part, journal)).last)
            if last > by_partition[part.index]:
                found.append(by_partition[part.index].ms)
    return min(found)


def _summary(root: str, span: str, now_ms: int, complete_until: int) -> Summary:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    until = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    if span == "hour":
        until = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    return summaries.summarize(root, span=span, since=until - LATEST[span], until=until, complete_until=complete_until)
