"""Publishing in a Spark task: rows become events by the rules of `POST /events`, and go out in order, fenced."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

import msgspec
import pyarrow as pa
from msgspec import Raw, structs

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
from doubledecker.model.uid import repeatable_event_id
from doubledecker.pipeline.refusals import RefusedRows

COLUMNS = ("topic", "type", "url", "tenant", "key", "id", "timestamp", "data", "traceparent")
# What whoever made the rows may say about them: why one is refused before it is offered, and where it is from.
NOTES = ("_why", "_row", "_file")

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
    async with build.open_bus(work.settings) as bus, _notifying(bus, work) as notifiers:
        publishers = _publishers(bus, work, notifiers)
        for arrow in batches:
            noted = arrow.select([name for name in arrow.schema.names if name in NOTES]).to_pylist()
            items = arrow.select([name for name in arrow.schema.names if name in COLUMNS]).to_pylist()
            why = {at: note["_why"] for at, note in enumerate(noted) if note.get("_why")}
            parts = _sort_out(bus, work, items, why, first=seen)
            await asyncio.gather(*(publishers[index].publish(rows) for index, rows in parts.items()))
            for publisher in publishers:
                why |= publisher.tally.refused
                publisher.tally.refused = {}
            for at, reason in sorted(why.items()):
                refused.add(items[at], reason, noted[at])
            seen += len(items)
    tallies = [publisher.tally for publisher in publishers]
    return Counts(sum(each.published for each in tallies), sum(each.repeated for each in tallies))


@asynccontextmanager
async def _notifying(bus: Bus, work: TaskWork) -> AsyncIterator[list[Notifier]]:
    """Those who tell listeners of what is published; at the end all is told, or a moment has passed."""
    notifiers = [Notifier(partition, Notify(work.settings.notify)) for partition in bus.partitions.all]
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
    bus: Bus, work: TaskWork, items: list[dict[str, object]], refused: dict[int, str], *, first: int
) -> dict[int, list[Row]]:
    """The rows by partition, in order; those that cannot be events join the refused."""
    limits = EventLimits(work.settings.max_event_data_bytes, work.settings.event_depth_max)
    parts: dict[int, list[Row]] = {}
    now_ms = clock.now_ms()
    for at, item in enumerate(items):
        if at in refused:
            continue
        id_ = repeatable_event_id(work.query, str(work.batch), str(work.task), str(first + at))
        try:
            row = to_row(item, publisher=work.publisher, index=at, id_=id_, now_ms=now_ms, limits=limits)
        except Refused as refusal:
            refused[at] = refusal.detail
        else:
            parts.setdefault(bus.partitions.of(row.draft.event).index, []).append(row)
    return parts


def to_row(
    item: Mapping[str, object], *, publisher: str, index: int, id_: str, now_ms: int, limits: EventLimits
) -> Row:
    """A row as an event; raises BadRequest or TooLarge with the reason."""
    given = {name: value for name, value in item.items() if value is not None}
    is_timed = "timestamp" in given
    if is_timed:
        given["timestamp"] = _milliseconds(given["timestamp"])
    if "data" in given:
        given["data"] = _json(given["data"])
    for name in ("topic", "type"):
        if name not in given:
            raise BadRequest(f"{name} is null; an event must have one")
    event = parsing.accept(Offered(**given), id_=id_, now_ms=now_ms, limits=limits)  # type: ignore[arg-type]  # the columns' types were checked
    message = parsing.encode(event)
    # The moment of publishing differs when a task is run again; nothing else does.
    mark = message if is_timed else parsing.encode(structs.replace(event, t=-1))
    return Row(Draft(event, message, publisher, "id" in given, index), mark)


def _milliseconds(value: object) -> int:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    assert isinstance(value, int), "the column's type was checked"
    return value


def _json(value: object) -> Raw:
    """Text is JSON as it is; anything else is written as JSON."""
    if not isinstance(value, str):
        return Raw(_encode(value))
    try:
        return _check_json(value)
    except msgspec.DecodeError as error:
        raise BadRequest(f"data is not JSON: {error}") from error
