"""A journal's entries as rows: the columns of each journal, and how its lines of JSON become an Arrow batch.

Every journal's rows begin with their place: `partition`, `entry`, and `line` counted through the entry, which together
are a row's identity; and `at`, when the bus wrote it. A journal that has no columns of its own here is given as it is:
a row a line, with the `field` it was in and its `text`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import msgspec
import pyarrow as pa
from msgspec import Raw

from doubledecker.model.entry_id import EntryId
from doubledecker.model.event import DEFAULT_TENANT
from doubledecker.store.journal import Attempt, Entry

# When something was, as every table has it.
MOMENT = pa.timestamp("us", tz="UTC")
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


class _EventLine(msgspec.Struct, frozen=True, gc=False):
    """An event as the journal has it, in the order of the lake's columns; what is absent there is null here."""

    topic: str
    type: str
    id: str
    tenant: str = DEFAULT_TENANT
    key: str | None = None
    t: int = -1
    url: str | None = None
    # No JSON value is empty.
    data: Raw = Raw(b"")
    traceparent: str | None = None
    replay: str | None = None
    replay_of: str | None = None


_decode_event = msgspec.json.Decoder(_EventLine).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode

# A label for each of some lines, and the lines.
Lines = tuple[list[str], list[bytes]]
_Columns = Sequence[Sequence[object]]


@dataclass(frozen=True)
class Layout:
    """The columns of a journal's rows after their place, how labels and lines fill them, and what an entry has."""

    columns: tuple[tuple[str, pa.DataType], ...]
    fill: Callable[[Sequence[str], Sequence[bytes]], _Columns]
    lines: Callable[[Entry], Lines]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*_PLACE, *self.columns])


def layout(journal: str) -> Layout:
    """How this journal's rows look."""
    return _LAYOUTS.get(journal, _PLAIN)


def shown(journal: str) -> list[str]:
    """The columns of a journal's rows as they are shown: the ids that an attempt carried are too many."""
    return [name for name in layout(journal).schema.names if (journal, name) != ("attempts", "events")]


def ddl(schema: pa.Schema) -> str:
    """A schema in the words of Spark."""
    return ", ".join(f"`{column.name}` {_DDL[column.type]}" for column in schema)


def to_batch(shape: Layout, entries: Sequence[Entry], *, partition: int) -> pa.RecordBatch:
    """All lines of some entries, in order."""
    values = to_columns(shape, entries, partition=partition)
    arrays = [pa.array(values[column.name], column.type) for column in shape.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def to_columns(shape: Layout, entries: Sequence[Entry], *, partition: int) -> dict[str, Sequence[object]]:
    """The same as columns of Python's own values, times in microseconds since 1970."""
    ids: list[str] = []
    numbers: list[int] = []
    moments: list[int] = []
    labels: list[str] = []
    lines: list[bytes] = []
    for entry in entries:
        own_labels, own_lines = shape.lines(entry)
        labels += own_labels
        lines += own_lines
        count = len(own_lines)
        ids.extend(repeat(entry.id, count))
        numbers.extend(range(count))
        moments.extend(repeat(EntryId.parse(entry.id).ms * 1000, count))
    place = [[partition] * len(lines), ids, numbers, moments]
    return dict(zip(shape.schema.names, [*place, *shape.fill(labels, lines)], strict=True))


def _all_lines(entry: Entry) -> Lines:
    """Their field is their label."""
    labels: list[str] = []
    lines: list[bytes] = []
    for field, value in entry.fields:
        own = value.split(b"\n")
        labels += [field] * len(own)
        lines += own
    return labels, lines


def _settled_lines(entry: Entry) -> Lines:
    """The first field names the queue of all the others' lines, whose label is both."""
    (_, queue), *kinds = entry.fields
    return _all_lines(Entry(entry.id, tuple((f"{queue.decode()} {kind}", value) for kind, value in kinds)))


def _fill_events(labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    events = [_decode_event(line) for line in lines]
    return [
        labels,
        [event.topic for event in events],
        [event.type for event in events],
        [event.id for event in events],
        [event.tenant for event in events],
        [event.key for event in events],
        [event.t for event in events],
        [event.url for event in events],
        [bytes(event.data) or None for event in events],
        [event.traceparent for event in events],
        [len(line) for line in lines],
        [event.replay for event in events],
        [event.replay_of for event in events],
    ]


def _fill_attempts(_labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    attempts = [_decode_attempt(line) for line in lines]
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


def _fill_settlements(labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    words = [line.decode().split(" ") for line in lines]
    return [
        [label.partition(" ")[0] for label in labels],
        [label.partition(" ")[2] for label in labels],
        [each[0] for each in words],
        [each[1] for each in words],
        [int(each[2]) for each in words],
        [int(float(each[3])) for each in words],
    ]


def _fill_plain(labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    return [labels, lines]


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
