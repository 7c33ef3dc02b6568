"""The journal: accepted events, delivery attempts and what became of queues' messages, as streams, bounded in bytes.

An entry of `journal:events` holds the events of one publish call: a field for each publisher, whose value is lines of
JSON. An entry of `journal:attempts` holds one attempt as JSON. An entry of `journal:settlements` names a queue and has
a line for each message that one call settled. An event's place is (partition, entry id, line).
A registered archive confirms what it has copied; that much is trimmed at once, the rest only when the bound forces it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

Name = Literal["events", "attempts", "settlements"]
# Entries that one trimming call looks at: a few milliseconds of the server's time at most. Settlements are small.
_TRIM_MAX = {"events": 100, "attempts": 100, "settlements": 1_000}

_TRIM, _CONFIRM = load("journal_trim"), load("journal_confirm")


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try at delivering a batch, as journaled."""

    batch: str
    subscriber: str
    attempt: int
    outcome: str
    took_ms: int
    at: int
    events: Sequence[str]
    status: int | None = None


@dataclass(frozen=True)
class Trimmed:
    """What a trimming call did."""

    removed: int
    bytes_left: int
    lost: int


@dataclass(frozen=True)
class Entry:
    """One entry of a journal."""

    id: str
    fields: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Page:
    """Entries of a journal, and the id up to which it was cut when they were read."""

    entries: tuple[Entry, ...]
    trimmed: str


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
    await partition.command("HSET", partition.key("journal"), "archive", archive)


async def unregister_archive(partition: Partition) -> None:
    """Go back to trimming by the bound alone."""
    confirmed = (f"{name}_confirmed" for name in _TRIM_MAX)
    await partition.command("HDEL", partition.key("journal"), "archive", *confirmed)


async def confirm(partition: Partition, name: str, *, archive: str, last_id: str) -> bool:
    """Say how far the archive has copied; False when another archive, or none, is registered."""
    return await partition.run(_CONFIRM, archive=archive, name=name, last_id=last_id) == 1


async def read(partition: Partition, name: Name, *, after: str = "0-0", count: int = 100) -> list[Entry]:
    """The next entries after an id."""
    reply = await partition.command("XRANGE", partition.key(f"journal:{name}"), f"({after}", "+", "COUNT", count)
    return [Entry(id_.decode(), _pairs(flat)) for id_, flat in cast("list[tuple[bytes, list[bytes]]]", reply)]


async def read_page(partition: Partition, name: str, *, after: str, upto: str, count: int) -> Page:
    """The next entries of a range, with the last id that was cut at that moment: both in one atom.

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
    entries = [Entry(id_.decode(), _pairs(flat)) for id_, flat in rows]
    return Page(tuple(entries), (trimmed or b"0-0").decode())


async def extent(partition: Partition, name: str, *, after: str = "0-0") -> Extent:
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


async def state(partition: Partition) -> dict[str, str]:
    """Sizes, the archive, how far it is, and what it lost."""
    flat = cast("list[bytes]", await partition.command("HGETALL", partition.key("journal")))
    return {name.decode(): value.decode() for name, value in zip(flat[0::2], flat[1::2], strict=True)}
