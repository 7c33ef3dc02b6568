"""Positions in the journal: how far a reader has come, in each partition, or in each shard of a receiver."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from doubledecker.errors import BadRequest
from doubledecker.model.uid import repeatable_uid

# As text, a position is `<ms>-<number>`, the id of an entry as Redis writes it, after the whole of the entry; or with
# `.<lines>` behind it, after so many of the entry's lines. Positions in all partitions are separated by commas:
# `1763200000000-0.3,1763200000123-2` is after three lines of that entry of partition 0, and after the whole of that
# entry of partition 1. Such texts are also the ids of the events of a stream.

# More lines than an entry can have: all of them have been read.
WHOLE = 1 << 31
_ENTRY_ID = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_POSITION = re.compile(r"([0-9]{1,20})-([0-9]{1,20})(?:\.([0-9]{1,9}))?")
_NUMBER_MAX = (1 << 64) - 1


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """After so many lines of an entry of one partition's journal; they can be compared.

    An entry is named by milliseconds of the server's clock, and a number within the millisecond.
    """

    ms: int
    seq: int
    lines: int = WHOLE

    def __str__(self) -> str:
        return self.entry_id if self.is_whole else f"{self.entry_id}.{self.lines}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """After the whole of an entry: from `<ms>-<number>`, or `<ms>` for the first of a millisecond."""
        found = _ENTRY_ID.fullmatch(text)
        if not found:
            raise BadRequest(f"the entry id is {text[:80]!r}; it must be like 1794740919538-0")
        return cls(int(found[1]), int(found[2] or 0))

    @classmethod
    def after(cls, entry_id: str) -> "Position":
        """After the whole of an entry that Redis has named."""
        ms, _, seq = entry_id.partition("-")
        return cls(int(ms), int(seq))

    @property
    def entry_id(self) -> str:
        return f"{self.ms}-{self.seq}"

    @property
    def is_whole(self) -> bool:
        return self.lines == WHOLE

    @property
    def before(self) -> "Position":
        """After the entry just before this one, so that "after it" means "from this one on"."""
        if self.seq:
            return Position(self.ms, self.seq - 1)
        return Position(self.ms - 1, _NUMBER_MAX) if self.ms else START

    @property
    def next(self) -> "Position":
        """The id just after this one, so that "from it on" means "after this one"."""
        return Position(self.ms, self.seq + 1) if self.seq < _NUMBER_MAX else Position(self.ms + 1, 0)


START = Position(0, 0)


def render(places: Sequence[Position]) -> str:
    """A position as text."""
    return ",".join(str(place) for place in places)


def within(places: Sequence[Position], partition: int, entry_id: str, lines: int) -> Callable[[int], str]:
    """Positions, as text, after so many lines of an entry, for one who is at these places elsewhere."""
    before = "".join(f"{place}," for place in places[:partition]) + entry_id
    behind = "".join(f",{place}" for place in places[partition + 1 :])
    return lambda number: f"{before}{behind}" if number == lines else f"{before}.{number}{behind}"


def parse(text: str, *, partitions: int) -> list[Position]:
    """A position as it was rendered; raises BadRequest with what is allowed."""
    parts = text.split(",")
    matches = [_POSITION.fullmatch(part) for part in parts]
    if len(parts) != partitions or not all(matches):
        raise BadRequest(
            f"the position is {text[:80]!r}; it must be the id of an event of this stream, `earliest` or `latest`"
        )
    places = [Position(int(m[1]), int(m[2]), WHOLE if m[3] is None else int(m[3])) for m in matches if m]
    if any(max(place.ms, place.seq) > _NUMBER_MAX for place in places):
        raise BadRequest(f"the position is {text[:80]!r}; its numbers are larger than any entry's")
    return places


# Shards: the shares in which bulk delivery goes through a partition's events, each in order and at its own pace.
#
# An event belongs to the shard of its key; one without a key, to that of its entry in the journal. So events of a key
# are in one shard and cannot overtake each other, and what a receiver does not take holds up its own shard alone.

# More would make smaller requests when little comes in, fewer would allow fewer calls at a time. It must never change:
# how far each has come is kept by its number.
SHARDS = 16


@dataclass(frozen=True, order=True)
class Shard:
    """One share of one partition's events."""

    partition: int
    number: int

    @property
    def field(self) -> str:
        """Where it is kept in the subscriber's hash."""
        return f"strand:{self.partition}.{self.number}"

    @classmethod
    def parse(cls, field: str) -> "Shard":
        partition, _, number = field.removeprefix("strand:").partition(".")
        return cls(int(partition), int(number))


@dataclass(frozen=True)
class Checkpoint:
    """How far a shard has come; how often the next batch has failed, and when it is retried."""

    place: Position = START
    attempts: int = 0
    retry_at: int = 0

    @property
    def text(self) -> str:
        """As it is kept."""
        return f"{self.place} {self.attempts} {self.retry_at}"

    @classmethod
    def read(cls, text: str) -> "Checkpoint":
        """Read a checkpoint from what is kept."""
        place, attempts, retry_at = text.split(" ")
        return cls(parse(place, partitions=1)[0], int(attempts), int(retry_at))

    def failed(self, *, retry_at: int) -> "Checkpoint":
        """After a failed attempt."""
        return replace(self, attempts=self.attempts + 1, retry_at=retry_at)


def shards(partition: int) -> list[Shard]:
    """All shards of a partition."""
    return [Shard(partition, number) for number in range(SHARDS)]


def batch_id(ledger: str, shard: Shard, first: Position) -> str:
    """What a batch of bulk delivery is called: the same each time it is tried, as of a worker's batch."""
    return repeatable_uid(ledger, shard.field, str(first))
