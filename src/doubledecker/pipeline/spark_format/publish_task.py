"""Publishing in a Spark task: rows become events by the rules of `POST /events`, and go out in order, fenced."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice

import pyarrow as pa

from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.settings import Settings
from doubledecker.bus.exactly_once import ExactlyOnceWriter, PublishedRow
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.publish_rate import Pacer
from doubledecker.model.event import EventLimits
from doubledecker.model.uid import repeatable_event_ids
from doubledecker.pipeline.spark_format.encoder import RowMaker
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from doubledecker.store import write_offsets
from doubledecker.store.write_offsets import Write

# What rows may bring with them: why one is refused before it is offered, and where it is from.
NOTES = ("_why", "_row", "_file")


@dataclass(frozen=True)
class TaskWork:
    """Which rows these are, and who publishes them."""

    settings: Settings
    publisher: str
    query: str
    batch: int
    task: int

    @property
    def name(self) -> str:
        """What the fence calls this task, in whichever batch."""
        return blake2b(f"{self.query}\0{self.task}".encode(), digest_size=16).hexdigest()

    @property
    def write(self) -> Write:
        """What all tasks of this batch have in common."""
        return write_of(self.query, self.batch)


def write_of(query: str, batch: int) -> Write:
    """How the bus knows a batch of a query."""
    return Write(blake2b(query.encode(), digest_size=16).hexdigest(), batch)


@dataclass(frozen=True)
class Counts:
    """Rows that this attempt published, and rows that one before it had."""

    published: int
    repeated: int


async def publish_all(work: TaskWork, batches: Iterator[pa.RecordBatch], refused: RefusedRows) -> Counts:
    """Publish all rows, an Arrow batch at a time, to all partitions side by side."""
    seen = 0
    async with build.open_bus(work.settings) as bus, notifying(bus, work.settings) as notifiers:
        # A task without rows does not enter the write: it may have had none before either.
        filled = (arrow for arrow in batches if arrow.num_rows)
        first = next(filled, None)
        is_complete = first is not None and await write_offsets.enter(bus.partitions.home, work.write, task=work.task)
        publishers = _publishers(bus, work, notifiers, is_complete=is_complete)
        for arrow in chain([] if first is None else [first], filled):
            why = _said(arrow)
            parts = _sort_out(bus, work, arrow, why, first=seen)
            await asyncio.gather(*(publishers[index].publish(rows) for index, rows in parts.items()))
            for publisher in publishers:
                why |= publisher.tally.refused
                publisher.tally.refused = {}
            for at, reason in sorted(why.items()):
                [row] = arrow.slice(at, 1).to_pylist()
                notes = {name: row.pop(name) for name in NOTES if name in row}
                refused.add(row, reason, notes)
            seen += arrow.num_rows
        await asyncio.gather(*(publisher.finish() for publisher in publishers))
    tallies = [publisher.tally for publisher in publishers]
    return Counts(sum(each.published for each in tallies), sum(each.repeated for each in tallies))


def _said(arrow: pa.RecordBatch) -> dict[int, str]:
    """Which rows are refused already, and why."""
    reasons = arrow.column("_why").to_pylist() if "_why" in arrow.schema.names else []
    return {at: why for at, why in enumerate(reasons) if why}


@asynccontextmanager
async def notifying(bus: BusParts, settings: Settings) -> AsyncIterator[list[Notifier]]:
    """Notifies listeners of what is published; at the end all are notified, or a moment has passed.

    Memory is looked at meanwhile, as in every process that publishes.
    """
    notifiers = [Notifier(partition, Notify(settings.notify)) for partition in bus.partitions.all]
    endless = (bus.headroom.run(), *(notifier.run() for notifier in notifiers))
    running = [asyncio.create_task(part) for part in endless]
    try:
        yield notifiers
        await asyncio.gather(*(notifier.finish() for notifier in notifiers))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _publishers(
    bus: BusParts, work: TaskWork, notifiers: Sequence[Notifier], *, is_complete: bool = False
) -> list[ExactlyOnceWriter]:
    pacer = Pacer(bus.partitions, bus.registry)
    return [
        ExactlyOnceWriter(
            partition,
            bus.registry,
            bus.headroom,
            notifier,
            publisher=work.publisher,
            task=work.name,
            batch=work.batch,
            pacer=pacer,
            is_complete=is_complete,
        )
        for partition, notifier in zip(bus.partitions.all, notifiers, strict=True)
    ]


def _sort_out(
    bus: BusParts, work: TaskWork, arrow: pa.RecordBatch, refused: dict[int, str], *, first: int
) -> dict[int, list[PublishedRow]]:
    """The rows by partition, in order; those that cannot be events join the refused."""
    limits = EventLimits(work.settings.max_event_data_bytes)
    ids = repeatable_event_ids(work.query, str(work.batch), str(work.task), first=first)
    rows = RowMaker(clock.now_ms(), limits).make_all(arrow, list(islice(ids, arrow.num_rows)), refused)
    if len(bus.partitions.all) == 1:
        return {0: rows}
    parts: dict[int, list[PublishedRow]] = {}
    for row in rows:
        parts.setdefault(bus.partitions.of(row.kind, row.key).index, []).append(row)
    return parts
