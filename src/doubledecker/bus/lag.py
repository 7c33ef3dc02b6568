"""Lag: how far the lake is behind a journal of the bus."""

from dataclasses import dataclass

from doubledecker.model.position import EntryId
from doubledecker.store import journal
from doubledecker.store.partitions import Partition, Partitions


@dataclass(frozen=True)
class Lag:
    """The age of the oldest entry that has not landed, and which share of what there was to land has."""

    age_ms: int
    share: float


async def read(partitions: Partitions, name: str, *, from_ms: int) -> Lag:
    """The lag of a journal: that of the partition that is furthest behind; the share is of all since `from_ms`.

    It is an age by the server's own clock, so it grows for as long as nothing lands.
    """
    found = [await _read(partition, name, from_ms=from_ms) for partition in partitions.all]
    return max(found, key=lambda lag: lag.age_ms)


async def _read(partition: Partition, name: str, *, from_ms: int) -> Lag:
    confirmed = (await journal.state(partition)).get(f"{name}_confirmed", "0-0")
    extent = await journal.read_extent(partition, name, after=confirmed)
    oldest, last = EntryId.parse(extent.first), EntryId.parse(extent.last)
    if not extent.entries or last <= EntryId.parse(confirmed):
        return Lag(0, 1.0)
    # At least a millisecond, so that what has not landed is never no lag at all.
    age_ms = max(1, await partition.time_ms() - oldest.ms)
    left_ms, span_ms = last.ms - oldest.ms + 1, last.ms - (from_ms or oldest.ms)
    return Lag(age_ms, max(0.0, 1 - left_ms / span_ms) if span_ms > 0 else 0.0)
