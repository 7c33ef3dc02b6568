"""Positions in the journal: how far a reader has come, in every partition. Also the ids of the events of a stream.

As text, the partitions' places are separated by commas: `1763200000000-0.3,1763200000123-2` is after three lines of
that entry of partition 0, and after the whole of that entry of partition 1.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doubledecker.errors import BadRequest

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
