"""From rows of the lake to batches: the messages that the bus once accepted, and how a strand's line cuts them."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from doubledecker.bus import telemetry
from doubledecker.delivery import record
from doubledecker.model.entry_id import EntryId
from doubledecker.model.event import encode
from doubledecker.model.outcome import Outcome
from doubledecker.model.position import Place
from doubledecker.model.strand import Reach, Strand, batch_id
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline import restoring

COLUMNS = ("partition", "entry", "line", "at", *restoring.COLUMNS)


class Row(NamedTuple):
    """An event as it is delivered, after its place: a plain tuple, as there are millions of them."""

    ms: int
    n: int
    lines: int
    topic: str
    id: str
    message: bytes

    @property
    def place(self) -> Place:
        return Place(self.ms, self.n, self.lines)


def to_rows(arrow: pa.RecordBatch) -> Iterator[tuple[Strand, Row]]:
    """The rows of an Arrow batch, in order, each with its strand."""
    strands = {(each.partition, each.number): each for each in strands_in(arrow)}
    places = zip(*(arrow[name].to_pylist() for name in ("partition", "strand", "entry", "line")), strict=True)
    last, ms, n = "", 0, 0
    for (partition, number, entry, line), event in zip(places, restoring.events(arrow), strict=True):
        if entry != last:
            last, (ms, n) = entry, EntryId.parse(entry)
        yield strands[partition, number], Row(ms, n, line + 1, event.topic, event.id, encode(event))


def strands_in(arrow: pa.RecordBatch) -> set[Strand]:
    """The strands that an Arrow batch has rows of."""
    pairs = set(zip(arrow["partition"].to_pylist(), arrow["strand"].to_pylist(), strict=True))
    return {Strand(partition, number) for partition, number in pairs}


@dataclass(frozen=True)
class Parcel:
    """A batch on its way."""

    batch: str
    attempt: int
    rows: Sequence[Row]

    @property
    def messages(self) -> list[bytes]:
        return [row.message for row in self.rows]

    @property
    def last(self) -> Place:
        return self.rows[-1].place

    @property
    def topics(self) -> Counter[str]:
        """How many of its events are of which topic."""
        return Counter(row.topic for row in self.rows)

    def entry(self, outcome: Outcome, *, line: "Line", dialled_at: int) -> bytes:
        """The attempt as the journal has it."""
        return record.entry(
            outcome,
            batch=self.batch,
            subscriber=line.subscriber.token,
            attempt=self.attempt,
            dialled_at=dialled_at,
            events=[row.id for row in self.rows],
        )

    def counts(self, outcome: Outcome, *, line: "Line", dialled_at: int) -> dict[str, int]:
        """What the attempt adds to the counters, as of a worker's batch that was made with its first event."""
        made_at = self.rows[0].ms
        counts = record.counts(outcome, subscriber=line.subscriber.token, events=len(self.rows))
        if self.attempt == 1:
            counts |= telemetry.latency("latency.batches.first_attempt", dialled_at - made_at)
        if outcome.is_delivered:
            counts |= telemetry.latency("latency.batches.last_attempt", dialled_at + outcome.took_ms - made_at)
        return counts


@dataclass
class Line:
    """The rows of one strand that wait in a task; `why` it stopped before it was through with them, if it did."""

    strand: Strand
    reach: Reach
    ledger: str
    subscriber: Subscriber
    events: int = 0
    bytes: int = 0
    why: str = ""
    is_through: bool = False
    is_calling: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _rows: deque[Row] = field(default_factory=deque)
    _is_whole: bool = False
    _is_hurried: bool = False

    def __post_init__(self) -> None:
        place = self.reach.place
        self._after = (place.ms, place.n, place.lines)

    def add(self, row: Row) -> None:
        """Take a row in, unless it was done with before, or nothing more is to be done."""
        if not self.why and row[:3] > self._after:
            self._rows.append(row)
            self.bytes += len(row.message)

    @property
    def is_supplied(self) -> bool:
        """Whether it has something to post: a batch is on its way, or the next one is full."""
        return self.is_calling or self._is_ready

    def close(self) -> None:
        """There are no more rows."""
        self._is_whole = True
        self.news.set()

    def hurry(self) -> None:
        """Do not wait for a full batch this once."""
        self._is_hurried = bool(self._rows)
        self.news.set()

    def stop(self, why: str) -> None:
        """Post no more, and let go of what waits."""
        self.why = self.why or why
        self._rows.clear()
        self.bytes = 0
        self.news.set()

    async def next(self) -> Parcel | None:
        """The next batch, when it is full or there is no more to wait for; None at the end."""
        while not self.why:
            if self._rows and (self._is_ready or self._is_whole):
                rows = [self._rows.popleft() for _ in range(self._fitting())]
                self.bytes -= sum(len(row.message) for row in rows)
                self._is_hurried = False
                batch = batch_id(self.ledger, self.strand, rows[0].place)
                return Parcel(batch, self.reach.attempts + 1, rows)
            if self._is_whole:
                self.is_through = True
                return None
            self.news.clear()
            await self.news.wait()
        return None

    @property
    def _is_ready(self) -> bool:
        is_full = len(self._rows) >= self.subscriber.max_events or self.bytes >= self.subscriber.max_bytes
        return is_full or self._is_hurried

    def _fitting(self) -> int:
        """How many rows the next batch takes, by the rule of a worker's: a single larger event goes alone."""
        size = 0
        for count, row in enumerate(self._rows):
            size += len(row.message)
            if count == self.subscriber.max_events or (count and size > self.subscriber.max_bytes):
                return count
        return len(self._rows)
