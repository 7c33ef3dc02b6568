"""How far a table of the lake has come: the last entry of each journal partition that is in it.

Every commit carries these marks as Delta's application transactions. An entry's id does not fit one number, so it takes
two: milliseconds and number.
"""

from collections.abc import Mapping
from typing import Protocol

from doubledecker.model.entry_id import EntryId


class Marked(Protocol):
    """A version of a table: delta-rs's, or one of ours."""

    def transaction_version(self, app_id: str) -> int | None: ...


def landed(table: Marked, partitions: int) -> dict[int, EntryId]:
    """The last entry of each partition that is in the table."""
    found = {}
    for index in range(partitions):
        ms, seq = (table.transaction_version(name) for name in _names(index))
        found[index] = EntryId(ms or 0, seq or 0)
    return found


def reaches(ends: Mapping[int, EntryId]) -> dict[str, int]:
    """The marks that say how far a table has come."""
    return {name: value for index, end in ends.items() for name, value in zip(_names(index), end, strict=True)}


def names(partitions: int) -> list[str]:
    """The names of all marks of a bus with so many partitions."""
    return [name for index in range(partitions) for name in _names(index)]


def _names(index: int) -> tuple[str, str]:
    return f"journal:{index}:ms", f"journal:{index}:seq"
