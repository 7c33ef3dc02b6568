"""Positions in the journal: an entry, an event in it, and how far each shard of a receiver has come."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from doubledecker.errors import BadRequest
from doubledecker.model.uid import repeatable_uid

# The id of a journal's entry: milliseconds by the server's clock, and a number within the millisecond.

_FORM = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?")
_SEQ_MAX = 2**64 - 1


class EntryId(NamedTuple):
    """An id that can be compared; as text it is what Redis writes."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "EntryId":
        """From `<ms>-<number>`, or `<ms>` for the first of a millisecond."""
        found = _FORM.fullmatch(text)
        if not found:
            raise BadRequest(f"the entry id is {text[:80]!r}; it must be like 1794740919538-0")
        return cls(int(found[1]), int(found[2] or 0))

    @property
    def before(self) -> "EntryId":
        """The id just before this one, so that "after it" means "from this one on"."""
        if self.seq:
            return EntryId(self.ms, self.seq - 1)
        return EntryId(self.ms - 1, _SEQ_MAX) if self.ms else EntryId(0, 0)

    @property
    def next(self) -> "EntryId":
        """The id just after this one, so that "from it on" means "after this one"."""
        return EntryId(self.ms, self.seq + 1) if self.seq < _SEQ_MAX else EntryId(self.ms + 1, 0)


FIRST = EntryId(0, 0)


# Positions in the journal: how far a reader has come, in every partition. Also the ids of the events of a stream.
#
# As text, the partitions' places are separated by commas: `1763200000000-0.3,1763200000123-2` is after three lines of
# that entry of partition 0, and after the whole of that entry of partition 1.

# More lines than an entry can have: all of them have been read.
WHOLE = 1 << 31
_PLACE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})(?:\.([0-9]{1,9}))?")
_NUMBER_MAX = (1 << 64) - 1


@dataclass(frozen=True, order=True)
class Place:
    """After so many lines of an entry of one partition's journal."""

    ms: int
    n: int
    lines: int = WHOLE

    @classmethod
    def after(cls, entry_id: str) -> "Place":
        """After the whole of an entry."""
        ms, _, n = entry_id.partition("-")
        return cls(int(ms), int(n))

    @property
    def entry_id(self) -> str:
        return f"{self.ms}-{self.n}"

    @property
    def is_whole(self) -> bool:
        return self.lines == WHOLE

    @property
    def text(self) -> str:
        return self.entry_id if self.is_whole else f"{self.entry_id}.{self.lines}"


START = Place(0, 0)


def render(places: Sequence[Place]) -> str:
    """A position as text."""
    return ",".join(place.text for place in places)


def within(places: Sequence[Place], partition: int, entry_id: str, lines: int) -> Callable[[int], str]:
    """Positions, as text, after so many lines of an entry, for one who is at these places elsewhere."""
    before = "".join(f"{place.text}," for place in places[:partition]) + entry_id
    behind = "".join(f",{place.text}" for place in places[partition + 1 :])
    return lambda number: f"{before}{behind}" if number == lines else f"{before}.{number}{behind}"


def parse(text: str, *, partitions: int) -> list[Place]:
    """A position as it was rendered; raises BadRequest with what is allowed."""
    parts = text.split(",")
    matches = [_PLACE.fullmatch(part) for part in parts]
    if len(parts) != partitions or not all(matches):
        raise BadRequest(
            f"the position is {text[:80]!r}; it must be the id of an event of this stream, `earliest` or `latest`"
        )
    places = [Place(int(m[1]), int(m[2]), WHOLE if m[3] is None else int(m[3])) for m in matches if m]
    if any(max(place.ms, place.n) > _NUMBER_MAX for place in places):
        raise BadRequest(f"the position is {text[:80]!r}; its numbers are larger than any entry's")
    return places


# Strands: the shares in which bulk delivery goes through a partition's events, each in order and at its own pace.
#
# An event belongs to the strand of its key; one without a key, to that of its entry in the journal. So events of a key
# are in one strand and cannot overtake each other, and what a receiver does not take holds up its own strand alone.

# More would make smaller requests when little comes in, fewer would allow fewer calls at a time. It must never change:
# how far each has come is kept by its number.
STRANDS = 16


@dataclass(frozen=True, order=True)
class Strand:
    """One share of one partition's events."""

    partition: int
    number: int

    @property
    def field(self) -> str:
        """Where it is kept in the subscriber's hash."""
        return f"strand:{self.partition}.{self.number}"

    @classmethod
    def parse(cls, field: str) -> "Strand":
        partition, _, number = field.removeprefix("strand:").partition(".")
        return cls(int(partition), int(number))


@dataclass(frozen=True)
class Reach:
    """How far a strand has come; how often what comes next was tried in vain, and when it is tried again."""

    place: Place = START
    attempts: int = 0
    retry_at: int = 0

    @property
    def text(self) -> str:
        """As it is kept."""
        return f"{self.place.text} {self.attempts} {self.retry_at}"

    @classmethod
    def read(cls, text: str) -> "Reach":
        """From what is kept."""
        place, attempts, retry_at = text.split(" ")
        return cls(parse(place, partitions=1)[0], int(attempts), int(retry_at))

    def failed(self, *, retry_at: int) -> "Reach":
        """After an attempt in vain."""
        return replace(self, attempts=self.attempts + 1, retry_at=retry_at)


def strands(partition: int) -> list[Strand]:
    """All strands of a partition."""
    return [Strand(partition, number) for number in range(STRANDS)]


def batch_id(ledger: str, strand: Strand, first: Place) -> str:
    """What a batch of bulk delivery is called: the same each time it is tried, as of a worker's batch."""
    return repeatable_uid(ledger, strand.field, first.text)
