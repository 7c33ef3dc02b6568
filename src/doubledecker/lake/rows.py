"""A journal's entries as rows: the columns of each journal, and how its lines of JSON become columns.

Every journal's rows begin with their place: `partition`, `entry`, and `line` counted through the entry, which together
are a row's identity; and `at`, when the bus wrote it. A journal that has no columns of its own here is given as it is:
a row a line, with the `field` it was in and its `text`.

Arrow is left to lake/arrow.py: to import it takes a quarter of a second, and who reads a few rows needs none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import msgspec
from msgspec import Raw

from doubledecker.model.audit import AuditRecord
from doubledecker.model.event import DEFAULT_TENANT
from doubledecker.model.position import Position
from doubledecker.store.journal import AttemptRecord, JournalEntry

# Types by their names in Spark's DDL.
INT, LONG, STRING, TIMESTAMP, DATE = "int", "long", "string", "timestamp", "date"
STRINGS, LONGS = "array<string>", "array<long>"
_PLACE = (("partition", INT), ("entry", STRING), ("line", INT), ("at", TIMESTAMP))


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
    cloudevent: Raw = Raw(b"")


_decode_event = msgspec.json.Decoder(_EventLine).decode
_decode_attempt = msgspec.json.Decoder(AttemptRecord).decode
_decode_audit = msgspec.json.Decoder(AuditRecord).decode

# A label for each of some lines, and the lines.
Lines = tuple[list[str], list[bytes]]
_Columns = Sequence[Sequence[object]]


@dataclass(frozen=True)
class RowLayout:
    """The columns of a journal's rows after their place, how labels and lines fill them, and what an entry has."""

    own: tuple[tuple[str, str], ...]
    fill: Callable[[Sequence[str], Sequence[bytes]], _Columns]
    lines: Callable[[JournalEntry], Lines]

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column."""
        return dict((*_PLACE, *self.own))


def layout(journal: str) -> RowLayout:
    """How this journal's rows look."""
    return _LAYOUTS.get(journal, _PLAIN)


def shown(journal: str) -> list[str]:
    """The columns of a journal's rows as they are shown: the ids that an attempt carried are too many."""
    return [name for name in layout(journal).columns if (journal, name) != ("attempts", "events")]


def to_columns(shape: RowLayout, entries: Sequence[JournalEntry], *, partition: int) -> dict[str, Sequence[object]]:
    """All lines of some entries, in order, as columns of Python's own values; times in microseconds since 1970."""
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
        moments.extend(repeat(Position.parse(entry.id).ms * 1000, count))
    place: _Columns = [[partition] * len(lines), ids, numbers, moments]
    return dict(zip(shape.columns, [*place, *shape.fill(labels, lines)], strict=True))


def _all_lines(entry: JournalEntry) -> Lines:
    """Their field is their label."""
    labels: list[str] = []
    lines: list[bytes] = []
    for field, value in entry.fields:
        own = value.split(b"\n")
        labels += [field] * len(own)
        lines += own
    return labels, lines


def _settled_lines(entry: JournalEntry) -> Lines:
    """The first field names the queue of all the others' lines, whose label is both."""
    (_, queue), *kinds = entry.fields
    return _all_lines(JournalEntry(entry.id, tuple((f"{queue.decode()} {kind}", value) for kind, value in kinds)))


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
        [bytes(event.cloudevent) or None for event in events],
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
        # None where it is not known.
        [attempt.accepted_at * 1000 or None for attempt in attempts],
        [attempt.bytes or None for attempt in attempts],
        [attempt.detail or None for attempt in attempts],
        [attempt.retry_ms for attempt in attempts],
        [attempt.owner or None for attempt in attempts],
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


def _audit_lines(entry: JournalEntry) -> Lines:
    """The last field has the record; the one before it says whose share it takes, which is in the record too."""
    return [""], [entry.fields[-1][1]]


def _fill_audit(_labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    records = [_decode_audit(line) for line in lines]
    return [
        [each.request for each in records],
        [each.at * 1000 for each in records],
        [each.actor for each in records],
        [each.actor_name for each in records],
        [each.client or None for each in records],
        [each.action for each in records],
        [each.target for each in records],
        [each.outcome for each in records],
        [each.status for each in records],
        [each.count for each in records],
        [list(each.fields) for each in records],
        [each.detail or None for each in records],
        [each.address or None for each in records],
        [each.proxy or None for each in records],
        [each.request_id or None for each in records],
        [each.traceparent or None for each in records],
    ]


def _fill_plain(labels: Sequence[str], lines: Sequence[bytes]) -> _Columns:
    return [labels, lines]


_PLAIN = RowLayout((("field", STRING), ("text", STRING)), _fill_plain, _all_lines)
_LAYOUTS = {
    "events": RowLayout(
        (
            ("publisher", STRING),
            ("topic", STRING),
            ("type", STRING),
            ("id", STRING),
            ("tenant", STRING),
            ("key", STRING),
            ("timestamp", LONG),
            ("url", STRING),
            ("data", STRING),
            ("traceparent", STRING),
            ("bytes", INT),
            ("replay", STRING),
            ("replay_of", STRING),
            ("cloudevent", STRING),
        ),
        _fill_events,
        _all_lines,
    ),
    "attempts": RowLayout(
        (
            ("subscriber", STRING),
            ("batch", STRING),
            ("attempt", INT),
            ("outcome", STRING),
            ("status", INT),
            ("took_ms", LONG),
            ("attempted_at", TIMESTAMP),
            ("events", STRINGS),
            ("accepted_at", TIMESTAMP),
            ("bytes", INT),
            ("detail", STRING),
            ("retry_ms", LONG),
            ("owner", STRING),
        ),
        _fill_attempts,
        _all_lines,
    ),
    "settlements": RowLayout(
        (
            ("queue", STRING),
            ("kind", STRING),
            ("message", STRING),
            ("tenant", STRING),
            ("attempt", INT),
            ("took_ms", LONG),
        ),
        _fill_settlements,
        _settled_lines,
    ),
    "audit": RowLayout(
        (
            ("request", STRING),
            ("asked_at", TIMESTAMP),
            ("actor", STRING),
            ("actor_name", STRING),
            ("client", STRING),
            ("action", STRING),
            ("target", STRING),
            ("outcome", STRING),
            ("status", INT),
            ("count", LONG),
            ("fields", STRINGS),
            ("detail", STRING),
            ("address", STRING),
            ("proxy", STRING),
            ("request_id", STRING),
            ("traceparent", STRING),
        ),
        _fill_audit,
        _audit_lines,
    ),
}
