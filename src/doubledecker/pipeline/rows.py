"""A journal's entries as rows: the columns of each journal, and how its lines of JSON become an Arrow batch.

Every journal's rows begin with their place: `partition`, `entry`, and `line` counted through the entry, which together
are a row's identity; and `at`, when the bus wrote it. A journal that has no columns of its own here is given as it is:
a row a line, with the `field` it was in and its `text`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import msgspec
import pyarrow as pa
from msgspec import UNSET

from doubledecker.model.entry_id import EntryId
from doubledecker.model.event import Event
from doubledecker.pipeline.lake import MOMENT
from doubledecker.store.journal import Attempt, Entry

_PLACE = (("partition", pa.int32()), ("entry", pa.string()), ("line", pa.int32()), ("at", MOMENT))
# Arrow's types as Spark's DDL and as Delta names them.
_DDL = {
    pa.int32(): "int",
    pa.int64(): "long",
    pa.string(): "string",
    MOMENT: "timestamp",
    pa.date32(): "date",
    pa.list_(pa.string()): "array<string>",
    pa.list_(pa.int64()): "array<long>",
}

_decode_event = msgspec.json.Decoder(Event).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode

Line = tuple[str, bytes]
_Columns = Sequence[Sequence[object]]


@dataclass(frozen=True)
class Layout:
    """The columns of a journal's rows after their place, how (field, line) pairs fill them, and which there are."""

    columns: tuple[tuple[str, pa.DataType], ...]
    fill: Callable[[Sequence[Line]], _Columns]
    lines: Callable[[Entry], Iterable[Line]]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*_PLACE, *self.columns])


def layout(journal: str) -> Layout:
    """How this journal's rows look."""
    return _LAYOUTS.get(journal, _PLAIN)


def ddl(schema: pa.Schema) -> str:
    """A schema in the words of Spark."""
    return ", ".join(f"`{column.name}` {_DDL[column.type]}" for column in schema)


def to_batch(shape: Layout, entries: Sequence[Entry], *, partition: int) -> pa.RecordBatch:
    """All lines of some entries, in order."""
    ids: list[str] = []
    numbers: list[int] = []
    moments: list[int] = []
    lines: list[Line] = []
    for entry in entries:
        first = len(lines)
        lines.extend(shape.lines(entry))
        count = len(lines) - first
        ids.extend(repeat(entry.id, count))
        numbers.extend(range(count))
        moments.extend(repeat(EntryId.parse(entry.id).ms * 1000, count))
    place = [[partition] * len(lines), ids, numbers, moments]
    schema = shape.schema
    arrays = [
        pa.array(values, column.type) for values, column in zip([*place, *shape.fill(lines)], schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _all_lines(entry: Entry) -> Iterator[Line]:
    for field, value in entry.fields:
        yield from zip(repeat(field), value.split(b"\n"), strict=False)


def _settled_lines(entry: Entry) -> Iterator[Line]:
    """The first field names the queue of all the others' lines."""
    (_, queue), *kinds = entry.fields
    for kind, value in kinds:
        yield from zip(repeat(f"{queue.decode()} {kind}"), value.split(b"\n"), strict=False)


def _fill_events(lines: Sequence[Line]) -> _Columns:
    events = [_decode_event(line) for _, line in lines]
    return [
        [field for field, _ in lines],
        [event.topic for event in events],
        [event.type for event in events],
        [event.id for event in events],
        [event.tenant for event in events],
        [event.key or None for event in events],
        [event.t for event in events],
        [None if event.url is UNSET else event.url for event in events],
        [None if event.data is UNSET else bytes(event.data) for event in events],
        [None if event.traceparent is UNSET else event.traceparent for event in events],
        [len(line) for _, line in lines],
        [event.replay or None for event in events],
        [event.replay_of or None for event in events],
    ]


def _fill_attempts(lines: Sequence[Line]) -> _Columns:
    attempts = [_decode_attempt(line) for _, line in lines]
    return [
        [attempt.subscriber for attempt in attempts],
        [attempt.batch for attempt in attempts],
        [attempt.attempt for attempt in attempts],
        [attempt.outcome for attempt in attempts],
        [attempt.status for attempt in attempts],
        [attempt.took_ms for attempt in attempts],
        [attempt.at * 1000 for attempt in attempts],
        [attempt.events for attempt in attempts],
    ]


def _fill_settlements(lines: Sequence[Line]) -> _Columns:
    words = [line.decode().split(" ") for _, line in lines]
    return [
        [field.partition(" ")[0] for field, _ in lines],
        [field.partition(" ")[2] for field, _ in lines],
        [each[0] for each in words],
        [each[1] for each in words],
        [int(each[2]) for each in words],
        [int(float(each[3])) for each in words],
    ]


def _fill_plain(lines: Sequence[Line]) -> _Columns:
    return [[field for field, _ in lines], [line for _, line in lines]]


_PLAIN = Layout((("field", pa.string()), ("text", pa.string())), _fill_plain, _all_lines)
_LAYOUTS = {
    "events": Layout(
        (
            ("publisher", pa.string()),
            ("topic", pa.string()),
            ("type", pa.string()),
            ("id", pa.string()),
            ("tenant", pa.string()),
            ("key", pa.string()),
            ("timestamp", pa.int64()),
            ("url", pa.string()),
            ("data", pa.string()),
            ("traceparent", pa.string()),
            ("bytes", pa.int32()),
            ("replay", pa.string()),
            ("replay_of", pa.string()),
        ),
        _fill_events,
        _all_lines,
    ),
    "attempts": Layout(
        (
            ("subscriber", pa.string()),
            ("batch", pa.string()),
            ("attempt", pa.int32()),
            ("outcome", pa.string()),
            ("status", pa.int32()),
            ("took_ms", pa.int64()),
            ("attempted_at", MOMENT),
            ("events", pa.list_(pa.string())),
        ),
        _fill_attempts,
        _all_lines,
    ),
    "settlements": Layout(
        (
            ("queue", pa.string()),
            ("kind", pa.string()),
            ("message", pa.string()),
            ("tenant", pa.string()),
            ("attempt", pa.int32()),
            ("took_ms", pa.int64()),
        ),
        _fill_settlements,
        _settled_lines,
    ),
}
