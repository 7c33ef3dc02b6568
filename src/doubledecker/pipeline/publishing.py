"""Publishing in a Spark task: rows become events by the rules of `POST /events`, and go out in order, fenced."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.assembly.build import Bus
from doubledecker.assembly.settings import Settings
from doubledecker.bus.commit import Draft, JournalBound
from doubledecker.bus.fenced import FencedPublisher, Row
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.errors import BadRequest, Refused
from doubledecker.model import event as parsing
from doubledecker.model.event import EventLimits, Offered
from doubledecker.model.uid import repeatable_event_ids
from doubledecker.pipeline.refusals import RefusedRows

COLUMNS = ("topic", "type", "url", "tenant", "key", "id", "timestamp", "data", "traceparent")
# What whoever made the rows may say about them: why one is refused before it is offered, and where it is from.
NOTES = ("_why", "_row", "_file")

_NONE = Raw(b"")
_check_json = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode


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


@dataclass(frozen=True)
class Counts:
    """Rows that this attempt published, and rows that one before it had."""

    published: int
    repeated: int


async def publish_all(work: TaskWork, batches: Iterator[pa.RecordBatch], refused: RefusedRows) -> Counts:
    """Publish all rows, an Arrow batch at a time, to all partitions side by side."""
    seen = 0
    async with build.open_bus(work.settings) as bus, notifying(bus, work.settings) as notifiers:
        publishers = _publishers(bus, work, notifiers)
        for arrow in batches:
            noted = _only(arrow, NOTES)
            why = {at: note["_why"] for at, note in enumerate(noted) if note.get("_why")}
            parts = _sort_out(bus, work, arrow, why, first=seen)
            await asyncio.gather(*(publishers[index].publish(rows) for index, rows in parts.items()))
            for publisher in publishers:
                why |= publisher.tally.refused
                publisher.tally.refused = {}
            for at, reason in sorted(why.items()):
                [item] = _only(arrow.slice(at, 1), COLUMNS)
                refused.add(item, reason, noted[at])
            seen += arrow.num_rows
    tallies = [publisher.tally for publisher in publishers]
    return Counts(sum(each.published for each in tallies), sum(each.repeated for each in tallies))


def _only(arrow: pa.RecordBatch, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows as dictionaries, of these columns as far as they are there."""
    names = [name for name in arrow.schema.names if name in columns]
    return arrow.select(names).to_pylist() if names else [{}] * arrow.num_rows


@asynccontextmanager
async def notifying(bus: Bus, settings: Settings) -> AsyncIterator[list[Notifier]]:
    """Those who tell listeners of what is published; at the end all is told, or a moment has passed."""
    notifiers = [Notifier(partition, Notify(settings.notify)) for partition in bus.partitions.all]
    running = [asyncio.create_task(notifier.run()) for notifier in notifiers]
    try:
        yield notifiers
        await asyncio.gather(*(notifier.finish() for notifier in notifiers))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _publishers(bus: Bus, work: TaskWork, notifiers: Sequence[Notifier]) -> list[FencedPublisher]:
    settings = work.settings
    bound = JournalBound(settings.journal_bytes_max, is_refusing=settings.journal_full == "refuse")
    return [
        FencedPublisher(partition, bus.registry, bound, notifier, task=work.name, batch=work.batch)
        for partition, notifier in zip(bus.partitions.all, notifiers, strict=True)
    ]


def _sort_out(
    bus: Bus, work: TaskWork, arrow: pa.RecordBatch, refused: dict[int, str], *, first: int
) -> dict[int, list[Row]]:
    """The rows by partition, in order; those that cannot be events join the refused."""
    limits = EventLimits(work.settings.max_event_data_bytes, work.settings.event_depth_max)
    maker = RowMaker(work.publisher, clock.now_ms(), limits)
    parts: dict[int, list[Row]] = {}
    ids = repeatable_event_ids(work.query, str(work.batch), str(work.task), first=first)
    for at, (id_, values) in enumerate(zip(ids, _values(arrow), strict=False)):
        if at in refused:
            continue
        try:
            row = maker.make(at, id_, *values)
        except Refused as refusal:
            refused[at] = refusal.detail
        else:
            parts.setdefault(bus.partitions.of(row.draft.event).index, []).append(row)
    return parts


def _values(arrow: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The values of each row, in the order of COLUMNS; None where there is no such column."""
    found = dict(zip(arrow.schema.names, arrow.columns, strict=True))
    if "timestamp" in found:
        found["timestamp"] = _milliseconds(found["timestamp"])
    columns = [found[name].to_pylist() if name in found else repeat(None) for name in COLUMNS]
    # A row has a topic and a type at least, or nothing can be written: so some column has an end.
    return zip(*columns, strict=False)


def _milliseconds(column: pa.Array) -> pa.Array:
    """Timestamps as whole milliseconds; numbers are that already."""
    is_moment = pa.types.is_timestamp(column.type)
    return pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False), pa.int64()) if is_moment else column


class RowMaker:
    """Makes events of rows, all of one client and one moment."""

    def __init__(self, publisher: str, now_ms: int, limits: EventLimits) -> None:
        self._publisher = publisher
        self._now_ms = now_ms
        self._limits = limits
        self._moment = b'"t":%d,' % now_ms

    def make(
        self,
        index: int,
        fallback_id: str,
        topic: str | None,
        type_: str | None,
        url: str | None,
        tenant: str | None,
        key: str | None,
        id_: str | None,
        timestamp: int | None,
        data: object,
        traceparent: str | None,
    ) -> Row:
        """A row as an event; raises BadRequest or TooLarge with the reason."""
        if topic is None or type_ is None:
            raise BadRequest(f"{'type' if topic is not None else 'topic'} is null; an event must have one")
        text = _NONE if data is None else _json(data)
        offered = Offered(topic, type_, url, tenant, key, id_, timestamp, text, traceparent)
        event = parsing.accept(offered, id_=fallback_id, now_ms=self._now_ms, limits=self._limits)
        message = parsing.encode(event)
        # The moment of publishing differs when a task is run again; nothing else does. Before it there are but names
        # and a URL, in which it cannot stand.
        mark = message if timestamp is not None else message.replace(self._moment, b"", 1)
        return Row(Draft(event, message, self._publisher, id_ is not None, index), mark)


def _json(value: object) -> Raw:
    """Text is JSON as it is; anything else is written as JSON."""
    if not isinstance(value, str):
        return Raw(_encode(value))
    try:
        return _check_json(value)
    except msgspec.DecodeError as error:
        raise BadRequest(f"data is not JSON: {error}") from error
