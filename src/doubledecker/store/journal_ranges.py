"""Any journal by ranges, as Spark reads it: from where to where it reaches, and pages that tell what is gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.model.entry_id import EntryId
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry, Page
from doubledecker.store.partitions import Partition
from doubledecker.store.shared_connection import Reply

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


async def page(partition: Partition, name: str, *, after: str, upto: str, count: int) -> Page[JournalEntry]:
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
    return Page(journal.entries(found), (trimmed or b"0-0").decode())


async def read(partition: Partition, name: str, *, after: str = "0-0") -> Extent:
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
    return EntryId.parse(last).ms - EntryId.parse(first).ms + 1


def _growth(sample: Sequence[Sequence[bytes]]) -> float:
    """How many times as large entries are once they are inflated, by some of them."""
    kept = sum(len(text) for flat in sample for text in flat)
    inflated = sum(len(journal.inflate(text)) for flat in sample for text in flat)
    return min(_GROWTH_MAX, inflated / kept) if kept else 1.0
