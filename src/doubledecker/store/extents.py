"""Any journal by ranges, as Spark reads it: from where to where it reaches, and pages that tell what is gone."""

from dataclasses import dataclass
from typing import cast

from doubledecker.store.journal import Entry, Page
from doubledecker.store.partitions import Partition


@dataclass(frozen=True)
class Extent:
    """What a journal holds: entries from `first` to `last`; what was trimmed ends with `cut`.

    The three are the same when it is empty.
    """

    cut: str
    first: str
    last: str
    entries: int
    bytes: int


async def page(partition: Partition, name: str, *, after: str, upto: str, count: int) -> Page:
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
    trimmed, rows = cast("tuple[bytes | None, list[tuple[bytes, list[bytes]]]]", reply[-1])
    return Page(tuple(Entry(id_.decode(), _pairs(flat)) for id_, flat in rows), (trimmed or b"0-0").decode())


async def read(partition: Partition, name: str, *, after: str = "0-0") -> Extent:
    """From where to where a journal reaches now; its first entry is the one after `after`."""
    first, last, kept, length = await partition.commands(
        [
            ["XRANGE", partition.key(f"journal:{name}"), f"({after}", "+", "COUNT", 1],
            ["XREVRANGE", partition.key(f"journal:{name}"), "+", "-", "COUNT", 1],
            ["HMGET", partition.key("journal"), f"{name}_trimmed", f"{name}_bytes"],
            ["XLEN", partition.key(f"journal:{name}")],
        ]
    )
    trimmed, size = cast("tuple[bytes | None, bytes | None]", kept)
    cut = (trimmed or b"0-0").decode()
    ends = [cast("list[tuple[bytes, list[bytes]]]", found) for found in (first, last)]
    begins, ends_at = (found[0][0].decode() if found else cut for found in ends)
    return Extent(cut, begins, ends_at, cast("int", length), int(size or 0))


def _pairs(flat: list[bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple(zip([field.decode() for field in flat[0::2]], flat[1::2], strict=True))
