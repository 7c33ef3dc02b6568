"""The journal: accepted events, delivery attempts and what became of queues' messages, as streams, bounded in bytes.

An entry of `journal:events` holds the events of one publish call: a field for each publisher, whose value is lines of
JSON. An entry of `journal:attempts` holds one attempt as JSON. Both are compressed where that pays: a reader of an
entry gets it from here, inflated. An entry of `journal:settlements` names a queue and has a line for each message that
one call settled. `journal:audit` is in store/audit.py. An event's place is (partition, entry id, line).
A registered archive confirms what it has copied; that much is trimmed at once, the rest only when the bound forces it.
"""

import asyncio
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

import msgspec

from doubledecker.model import cloud_event
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.position import Position
from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import Reply

Name = Literal["events", "attempts", "settlements"]
# Those that are bounded together, and cut as soon as the archive has confirmed it; `audit` has a bound of its own.
NAMES: tuple[Name, ...] = ("events", "attempts", "settlements")
AUDIT = "audit"
ALL: tuple[str, ...] = (*NAMES, AUDIT)
# Entries that one trimming call looks at: a few milliseconds of the server's time at most. Settlements are small.
_TRIM_MAX = {"events": 100, "attempts": 100, "settlements": 1_000}
# How long a reader waits on the server for the next entries.
NEXT_S = 5.0
_EVENTS = "journal:events"
# A hundred events cost a publisher 0.6 to 1.5 microseconds each, and a reader half of that, for a ninth to a third of
# their size; the next levels save a tenth more and cost twice as much. Of eight it is twice as much an event.
_LEVEL = 1
_COMPRESSED_BYTES_MIN = 2_048
# What hardly shrinks takes 25 milliseconds a megabyte, in which a web process would answer nobody; so of a long text a
# part is tried first.
_LONG_BYTES = 131_072
_SAMPLE_BYTES = 8_192
# How much room inflating begins with: what most values need, so that few are copied while they grow.
_GROWTH = 10
# How every text begins that this level compressed. No value of any journal begins so: they have no control characters.
_HEADER = b"x\x01"
_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(AcceptedEvent).decode
# Looking for events by their ids: pages of a millisecond or two of the server's time, and so many of them.
_FIND_COUNT, _FIND_BYTES, _FIND_PAGES_MAX = 200, 262_144, 32
# The greatest number within a millisecond.
_LAST = 2**64 - 1

_TRIM, _CONFIRM, _AGE = load("journal_trim"), load("journal_confirm"), load("journal_age")
_PAGE, _PAGE_BACK, _ENDS = load("journal_page"), load("journal_page_back"), load("journal_ends")


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try at delivering a batch, as journaled."""

    batch: str
    subscriber: str
    attempt: int
    outcome: str
    took_ms: int
    at: int
    events: Sequence[str]
    status: int | None = None
    # When the first of its events was accepted; 0 where that is not known, as by attempts of version 0.1.0.
    accepted_at: int = 0
    # Of what was posted; 0 where that is not known, as by attempts of version 0.1.0.
    bytes: int = 0
    # What went wrong, in a line; empty when it was delivered.
    detail: str = ""
    # How long until it is tried again, at the earliest; None when it is not, or when its messages return one by one.
    retry_ms: int | None = None
    # The client that had the queue then, as its name may become another's; empty for root, and for a subscriber.
    owner: str = ""


@dataclass(frozen=True)
class Trimmed:
    removed: int
    bytes_left: int
    lost: int


@dataclass(frozen=True)
class Age:
    """How old the oldest entry of a journal is, and the oldest that has not landed; None when nothing archives."""

    held_ms: int
    lag_ms: int | None


@dataclass(frozen=True)
class JournalEntry:
    id: str
    fields: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class KeptEntry:
    """One entry as the journal keeps it, names and values in turn: what waits to be read is small for so long.

    Inflated, one of a few hundred bytes may have a megabyte.
    """

    id: str
    flat: Sequence[bytes]

    def inflated(self) -> JournalEntry:
        """The entry as it was accepted."""
        return _entry(self.id, self.flat)


@dataclass(frozen=True)
class FoundEvent:
    """An accepted event, the entry that it is in, and who published it."""

    entry: Position
    publisher: str
    event: AcceptedEvent


@dataclass(frozen=True)
class EventsFound:
    """What a bounded look has found; `is_whole` says that nothing was left out."""

    events: Sequence[FoundEvent]
    is_whole: bool


_AnyEntry = TypeVar("_AnyEntry", JournalEntry, KeptEntry)


@dataclass(frozen=True)
class Page(Generic[_AnyEntry]):
    """Entries that follow a place, and the id up to which the journal had been cut just after they were read.

    What lies between the place and that id is missing if no entry of the page does: had the entries been read before
    the cut, the first of them would be at that id or before it.
    """

    entries: Sequence[_AnyEntry]
    trimmed: str


async def age(partition: Partition, name: str) -> Age:
    """How old a journal's entries are, by the server's clock; 0 when there are none."""
    held_ms, lag_ms = cast("tuple[int, int]", await partition.run(_AGE, name=name))
    return Age(held_ms, None if lag_ms < 0 else lag_ms)


async def trim(partition: Partition, name: Name, *, bytes_max: int, is_forced: bool = True) -> Trimmed:
    """Cut what is confirmed or over the bound, a bounded number of entries; repeat while something is removed.

    Unless it is forced, the bound does not cut what a registered archive has yet to confirm.
    """
    reply = await partition.run(
        _TRIM, name=name, bytes_max=bytes_max, is_forced=int(is_forced), entries_max=_TRIM_MAX[name]
    )
    removed, left, lost = cast("tuple[int, int, int]", reply)
    return Trimmed(removed, left, lost)


async def register_archive(partition: Partition, archive: str) -> None:
    """Make this the archive whose word allows trimming."""
    await partition.write("HSET", partition.key("journal"), "archive", archive)


async def unregister_archive(partition: Partition) -> None:
    """Go back to trimming by the bound alone."""
    confirmed = (f"{name}_confirmed" for name in ALL)
    await partition.command("HDEL", partition.key("journal"), "archive", *confirmed)


async def confirm(partition: Partition, name: str, *, archive: str, last_id: str) -> bool:
    """Say how far the archive has copied; False when another archive, or none, is registered."""
    return await partition.run(_CONFIRM, archive=archive, name=name, last_id=last_id) == 1


async def read(partition: Partition, name: Name, *, after: str = "0-0", count: int = 100) -> list[JournalEntry]:
    reply = await partition.command("XRANGE", partition.key(f"journal:{name}"), f"({after}", "+", "COUNT", count)
    return entries(reply)


async def newest(partition: Partition, *, before: str = "+") -> JournalEntry | None:
    """The newest entry of the event journal, or the one before a place, as XREVRANGE has it."""
    reply = await partition.command("XREVRANGE", partition.key(_EVENTS), before, "-", "COUNT", 1)
    return next(iter(entries(reply)), None)


async def page(partition: Partition, *, first: str, last: str, count: int, bytes_max: int) -> Page[KeptEntry]:
    """Entries of the event journal from one id to another; the one that reaches `bytes_max`, as kept, ends the page."""
    reply = await partition.run(_PAGE, first=first, last=last, count=count, bytes_max=bytes_max)
    found, trimmed = cast("tuple[Reply, Reply]", reply)
    return Page(_kept(found), _id(trimmed))


async def next_page(partition: Partition, *, after: str, count: int) -> Page[KeptEntry]:
    """The next entries of the event journal; waits for some, and after a while returns without."""
    key = partition.key(_EVENTS)
    block_ms = int(NEXT_S * 1000)
    reply = await partition.block("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", key, after, block_s=NEXT_S)
    [[_, found]] = cast("list[list[Reply]]", reply) if reply else [[None, ()]]
    trimmed = await partition.command("HGET", partition.key("journal"), "events_trimmed")
    return Page(_kept(found), _id(trimmed))


async def page_back(partition: Partition, *, last: str, first: str = "-") -> Sequence[KeptEntry]:
    """Some entries of the event journal from one id backwards, the newest first; none at its beginning."""
    return _kept(await partition.run(_PAGE_BACK, last=last, first=first, count=_FIND_COUNT, bytes_max=_FIND_BYTES))


async def find_events(partition: Partition, ids: Collection[str], *, from_ms: int, upto_ms: int) -> EventsFound:
    """Events with these ids that were accepted in that time, as far as a bounded look comes, from the newest on.

    An id is its publisher's alone: others may use it too. Of one publisher's on one topic, and of one source, the
    newest is returned.
    """
    first, last = f"{from_ms}-0", f"{upto_ms}-{_LAST}"
    found: dict[tuple[str, str, str], FoundEvent] = {}
    for _ in range(_FIND_PAGES_MAX):
        some = await page_back(partition, last=last, first=first)
        if not some:
            return EventsFound(list(found.values()), is_whole=True)
        # In a thread: inflating a megabyte takes some milliseconds.
        for each in await asyncio.to_thread(_among, some, ids):
            found.setdefault((cloud_event.known_by(each.event), each.publisher, each.event.topic), each)
        last = f"({some[-1].id}"
    return EventsFound(list(found.values()), is_whole=False)


def _among(entries: Sequence[KeptEntry], ids: Collection[str]) -> list[FoundEvent]:
    signs = [_encode(id_)[1:-1] for id_ in ids]
    lines = (
        (kept.id, publisher, line)
        for kept in entries
        for publisher, text in kept.inflated().fields
        for line in (text.split(b"\n") if any(sign in text for sign in signs) else ())
        if any(sign in line for sign in signs)
    )
    found = (FoundEvent(Position.parse(entry), publisher, _decode_event(line)) for entry, publisher, line in lines)
    return [each for each in found if each.event.id in ids]


async def ends(partition: Partition) -> tuple[str, str]:
    """The id up to which the event journal was cut, and that of its last entry."""
    trimmed, last = cast("tuple[Reply, Reply]", await partition.run(_ENDS))
    return _id(trimmed), _id(last or trimmed)


def pack(attempt: AttemptRecord) -> bytes:
    """An attempt as the journal keeps it: the ids that the bus gives to a thousand events shrink to a twelfth."""
    text = _encode(attempt)
    return compress(text) or text


def compress(lines: bytes) -> bytes:
    """Lines as the journal keeps them, compressed; empty where that does not pay."""
    return zlib.compress(lines, _LEVEL) if len(lines) >= _COMPRESSED_BYTES_MIN and _pays(lines) else b""


def _pays(lines: bytes) -> bool:
    """Whether a long text becomes half as long, by a part from its middle; a shorter one always does well enough."""
    if len(lines) < _LONG_BYTES:
        return True
    sample = lines[len(lines) // 2 :][:_SAMPLE_BYTES]
    return 2 * len(zlib.compress(sample, _LEVEL)) <= len(sample)


def inflate(value: bytes) -> bytes:
    """A value of any journal as it was written: what is not compressed stays as it is."""
    return zlib.decompress(value, bufsize=_GROWTH * len(value)) if value.startswith(_HEADER) else value


def entries(reply: Reply) -> list[JournalEntry]:
    """Entries as XRANGE answers them, inflated."""
    return [_entry(id_.decode(), flat) for id_, flat in _rows(reply)]


def _id(reply: Reply) -> str:
    return cast("bytes", reply).decode() if reply else "0-0"


def _kept(reply: Reply) -> list[KeptEntry]:
    return [KeptEntry(id_.decode(), flat) for id_, flat in _rows(reply)]


def _rows(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    return cast("list[tuple[bytes, list[bytes]]]", reply)


def _entry(id_: str, flat: Sequence[bytes]) -> JournalEntry:
    # With a generator, rows of entries that have one event would take a twentieth longer.
    pairs = zip(flat[0::2], flat[1::2], strict=True)
    return JournalEntry(id_, tuple([(name.decode(), inflate(value)) for name, value in pairs]))


async def state(partition: Partition) -> dict[str, str]:
    """Sizes, the archive, how far it is, and what it lost."""
    return shared_connection.texts(await partition.command("HGETALL", partition.key("journal")))


# Any journal by ranges, as Spark reads it: from where to where it reaches, and pages that list what is gone.

# Events that are much alike shrink to a ninth. An entry that shrinks more says little of the others.
_GROWTH_MAX = 10.0


@dataclass(frozen=True)
class Extent:
    """What a journal holds: entries from `first` to `last`; what was trimmed ends with `cut`.

    The three are the same when it is empty. `entries` are all it holds; `bytes` is about what a reader gets from
    `first` on: more than is kept, where that is compressed.
    """

    cut: str
    first: str
    last: str
    entries: int
    bytes: int


async def range_page(partition: Partition, name: str, *, after: str, upto: str, count: int) -> Page[JournalEntry]:
    """The next entries of a range, with the last id that was cut at that very moment: both in one atom.

    When that id lies behind `after`, what lay between was trimmed before it could be read.
    """
    reply = await partition.commands(
        [
            ["MULTI"],
            ["HGET", partition.key("journal"), f"{name}_trimmed"],
            ["XRANGE", partition.key(f"journal:{name}"), f"({after}", upto, "COUNT", count],
            ["EXEC"],
        ]
    )
    trimmed, found = cast("tuple[bytes | None, Reply]", reply[-1])
    return Page(entries(found), (trimmed or b"0-0").decode())


async def read_extent(partition: Partition, name: str, *, after: str = "0-0") -> Extent:
    """From where to where a journal reaches now; its first entry is the one after `after`."""
    entries = partition.key(f"journal:{name}")
    oldest, first, last, kept, length = await partition.commands(
        [
            ["XRANGE", entries, "-", "+", "COUNT", 1],
            ["XRANGE", entries, f"({after}", "+", "COUNT", 1],
            ["XREVRANGE", entries, "+", "-", "COUNT", 1],
            ["HMGET", partition.key("journal"), f"{name}_trimmed", f"{name}_bytes"],
            ["XLEN", entries],
        ]
    )
    trimmed, size = cast("tuple[bytes | None, bytes | None]", kept)
    cut = (trimmed or b"0-0").decode()
    found = [cast("list[tuple[bytes, list[bytes]]]", each) for each in (oldest, first, last)]
    begins, begins_after, ends = (each[0][0].decode() if each else cut for each in found)
    share = _span_ms(begins_after, ends) / _span_ms(begins, ends) if first else 0
    growth = _growth([flat for rows in found for _, flat in rows])
    return Extent(cut, begins_after, ends, cast("int", length), round(int(size or 0) * share * growth))


def _span_ms(first: str, last: str) -> int:
    """How long a range is; what was written within one millisecond has a length too."""
    return Position.parse(last).ms - Position.parse(first).ms + 1


def _growth(sample: Sequence[Sequence[bytes]]) -> float:
    """How many times as large entries are once they are inflated, by some of them."""
    kept = sum(len(text) for flat in sample for text in flat)
    inflated = sum(len(inflate(text)) for flat in sample for text in flat)
    return min(_GROWTH_MAX, inflated / kept) if kept else 1.0


@dataclass(frozen=True)
class Lag:
    """The age of the oldest entry that has not landed, and which share of what there was to land has."""

    age_ms: int
    share: float


async def read_lag(partitions: Partitions, name: str, *, from_ms: int) -> Lag:
    """The lag of a journal: that of the partition that is furthest behind; the share is of all since `from_ms`.

    It is an age by the server's own clock, so it grows for as long as nothing lands.
    """
    found = [await _lag_of(partition, name, from_ms=from_ms) for partition in partitions.all]
    return max(found, key=lambda lag: lag.age_ms)


async def _lag_of(partition: Partition, name: str, *, from_ms: int) -> Lag:
    confirmed = (await state(partition)).get(f"{name}_confirmed", "0-0")
    extent = await read_extent(partition, name, after=confirmed)
    oldest, last = Position.parse(extent.first), Position.parse(extent.last)
    if not extent.entries or last <= Position.parse(confirmed):
        return Lag(0, 1.0)
    # At least a millisecond, so that what has not landed is never no lag at all.
    age_ms = max(1, await partition.time_ms() - oldest.ms)
    left_ms, span_ms = last.ms - oldest.ms + 1, last.ms - (from_ms or oldest.ms)
    return Lag(age_ms, max(0.0, 1 - left_ms / span_ms) if span_ms > 0 else 0.0)
