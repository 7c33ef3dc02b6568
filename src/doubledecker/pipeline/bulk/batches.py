"""From rows of the lake to batches: the messages that the bus once accepted, and how a shard's line cuts them."""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from doubledecker.assembly.settings import Settings
from doubledecker.delivery.deliver import DeliveryLoad
from doubledecker.model.event import encode
from doubledecker.model.position import START, Checkpoint, Position, Shard, batch_id
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import repeatable_uid
from doubledecker.pipeline.lake import stored_events

# After this a task begins no further batch, so that others get its core; the next round goes on from the ledger.
ROUND_S = 10.0
COLUMNS = ("partition", "entry", "line", "at", *stored_events.COLUMNS)


@dataclass(frozen=True)
class Posting:
    """Whom a job posts to, by which settings, and in which ledger it is written down.

    `headers` go with every request, and mark a replay. How long ago what `is_replayed` was accepted
    says nothing of its delivery, and is not written down. The subscriber's credentials do not travel: its tasks read
    them where it is registered.
    """

    settings: Settings
    subscriber: Subscriber
    ledger: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_replayed: bool = False
    round_s: float = ROUND_S

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "subscriber": self.subscriber.bare}


class LakeRow(NamedTuple):
    """An event as it is delivered, after its place: a plain tuple, as there are millions of them."""

    ms: int
    n: int
    lines: int
    topic: str
    id: str
    message: bytes

    @property
    def place(self) -> Position:
        return Position(self.ms, self.n, self.lines)


def to_rows(arrow: pa.RecordBatch) -> Iterator[tuple[Shard, LakeRow]]:
    """The rows of an Arrow batch, in order, each with its shard."""
    shards = {(each.partition, each.number): each for each in shards_in(arrow)}
    places = zip(*(arrow[name].to_pylist() for name in ("partition", "shard", "entry", "line")), strict=True)
    last, at = "", START
    for (partition, number, entry, line), event in zip(places, stored_events.events(arrow), strict=True):
        if entry != last:
            last, at = entry, Position.parse(entry)
        yield shards[partition, number], LakeRow(at.ms, at.seq, line + 1, event.topic, event.id, encode(event))


def shards_in(arrow: pa.RecordBatch) -> set[Shard]:
    """The shards that an Arrow batch has rows of."""
    pairs = set(zip(arrow["partition"].to_pylist(), arrow["shard"].to_pylist(), strict=True))
    return {Shard(partition, number) for partition, number in pairs}


@dataclass(frozen=True)
class ShardBatch:
    load: DeliveryLoad
    rows: Sequence[LakeRow]

    @property
    def last(self) -> Position:
        return self.rows[-1].place

    @property
    def message_id(self) -> str:
        """What names these very rows: when the batch is tried again there may be more in it."""
        return repeatable_uid(self.load.batch, *(str(row.place) for row in self.rows))

    @property
    def topics(self) -> Counter[str]:
        """How many of its events are of which topic."""
        return Counter(row.topic for row in self.rows)


@dataclass
class ShardLine:
    """The rows of one shard that wait in a task; `why` it stopped before it had posted all of them, if it did."""

    shard: Shard
    checkpoint: Checkpoint
    posting: Posting
    events: int = 0
    bytes: int = 0
    why: str = ""
    is_through: bool = False
    is_calling: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _rows: deque[LakeRow] = field(default_factory=deque)
    _is_whole: bool = False
    _is_hurried: bool = False

    def __post_init__(self) -> None:
        place = self.checkpoint.place
        self._after = (place.ms, place.seq, place.lines)

    def add(self, row: LakeRow) -> None:
        """Take a row in, unless it was delivered or given up before, or no more can be taken."""
        if not self.why and row[:3] > self._after:
            self._rows.append(row)
            self.bytes += len(row.message)

    @property
    def is_supplied(self) -> bool:
        """Whether it has something to post: a batch is on its way, or the next one is full."""
        return self.is_calling or self._is_ready

    def close(self) -> None:
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

    async def next(self) -> ShardBatch | None:
        """The next batch, when it is full or there is no more to wait for; None at the end."""
        while not self.why:
            if self._rows and (self._is_ready or self._is_whole):
                rows = [self._rows.popleft() for _ in range(self._fitting())]
                self.bytes -= sum(len(row.message) for row in rows)
                self._is_hurried = False
                return ShardBatch(self._load(rows), rows)
            if self._is_whole:
                self.is_through = True
                return None
            self.news.clear()
            await self.news.wait()
        return None

    def _load(self, rows: Sequence[LakeRow]) -> DeliveryLoad:
        return DeliveryLoad(
            receiver=self.posting.subscriber,
            batch=batch_id(self.posting.ledger, self.shard, rows[0].place),
            parts=[row.message for row in rows],
            events=len(rows),
            attempts=self.checkpoint.attempts,
            # Known with the permit.
            failures=0,
            accepted_at=0 if self.posting.is_replayed else rows[0].ms,
            partition=self.shard.partition,
            headers=self.posting.headers,
        )

    @property
    def _is_ready(self) -> bool:
        subscriber = self.posting.subscriber
        is_full = len(self._rows) >= subscriber.max_events or self.bytes >= subscriber.max_bytes
        return is_full or self._is_hurried

    def _fitting(self) -> int:
        """How many rows the next batch takes, by the rule of a worker's: a single larger event goes alone."""
        subscriber, size = self.posting.subscriber, 0
        for count, row in enumerate(self._rows):
            size += len(row.message)
            if count == subscriber.max_events or (count and size > subscriber.max_bytes):
                return count
        return len(self._rows)
