"""Fences: how far a Spark task has published, kept with what it published, in one atom.

A task may be run again, in part or whole, or twice at once. Its rows have an order, so it is enough to know how many of
them are written: a call says from which row to which it goes, and the script writes only if it goes on exactly where
the last one ended. The digest of all rows up to there shows whether a repeated task has the same rows as before, and
rows that were refused are kept by number, so that a repeated task reports them again.

A write is all tasks of one batch. Its record says how many tasks have published, and whether it is complete: a
repeat of a complete write must have the same tasks with the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from doubledecker.errors import OrderChanged
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load

# Longer than anybody waits before a failed query is started again.
KEPT_MS = 7 * 86_400_000

_ENTER, _COMPLETE = load("write_enter"), load("write_complete")


class RowRefusal(msgspec.Struct, frozen=True, array_like=True):
    """What refused a row: a full queue, one that may know no more tenants, or a topic that is another client's.

    The owner is empty if the topic is new.
    """

    kind: Literal["queue", "tenants", "topic"]
    name: str
    owner: str = ""

    @classmethod
    def parse(cls, text: str) -> "RowRefusal":
        """One as it is kept or passed; older ones are words with spaces between, such as `topic <name> <owner>`."""
        if text.startswith("["):
            return msgspec.json.decode(text, type=cls)
        kind, name, owner, *_ = [*text.split(" "), ""]
        return cls("topic" if kind == "topic" else "tenants" if kind == "tenants" else "queue", name, owner)


@dataclass(frozen=True)
class Fence:
    """What one call publishes of a task: rows `first` to `last` of a batch, and the digest of all up to `last`.

    `barred` are rows that were refused before the call, by what refused them, and `numbers` those of its other rows.
    Without `barred` refused rows are not kept.
    """

    task: str
    batch: int
    first: int
    last: int
    digest: str
    barred: Mapping[RowRefusal, Sequence[int]] | None = None
    numbers: Sequence[int] = ()

    @property
    def packed(self) -> list[Packable]:
        words: list[Packable] = [self.task, self.batch, self.first, self.last, self.digest, KEPT_MS]
        if self.barred is None:
            return words
        reasons = [f"{msgspec.json.encode(by).decode()}\n{','.join(map(str, at))}" for by, at in self.barred.items()]
        # If none was refused before, the events are consecutive rows.
        return [*words, reasons, list(self.numbers) if reasons else []]


@dataclass(frozen=True)
class WriteOffset:
    """How far a task has come; `refused` says by row number what refused it."""

    batch: int = -1
    rows: int = 0
    digest: str = ""
    refused: Mapping[int, RowRefusal] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    name: str
    batch: int


async def read(partition: Partition, task: str) -> WriteOffset:
    kept, reasons = await partition.commands(
        [
            ["HMGET", partition.key(f"fence:{task}"), "batch", "rows", "digest"],
            ["LRANGE", partition.key(f"refused:{task}"), 0, -1],
        ]
    )
    batch, rows, digest = cast("tuple[bytes | None, bytes | None, bytes | None]", kept)
    if batch is None:
        return WriteOffset()
    refused: dict[int, RowRefusal] = {}
    for each in cast("list[bytes]", reasons):
        by, _, numbers = each.decode().partition("\n")
        refused |= dict.fromkeys(map(int, numbers.split(",")), RowRefusal.parse(by))
    return WriteOffset(int(batch), int(rows or 0), (digest or b"").decode(), refused)


async def enter(home: Partition, write: Write, *, task: int) -> bool:
    """Note that a task publishes; returns whether the write is complete already.

    Raises OrderChanged for a task that a complete write did not have, and for a batch before the last one.
    """
    reply = await home.run(_ENTER, write=write.name, batch=write.batch, task=task, kept_ms=KEPT_MS)
    word, number = cast("tuple[bytes, int]", reply)
    if word == b"complete":
        raise OrderChanged(f"task {task} has rows, but this write is complete: {number} tasks published it before")
    if word == b"older":
        raise older(write.batch, number)
    return number == 1


async def complete(home: Partition, write: Write, *, tasks: int) -> None:
    """Note that all tasks have published; raises OrderChanged when more have published before."""
    reply = await home.run(_COMPLETE, write=write.name, batch=write.batch, tasks=tasks, kept_ms=KEPT_MS)
    word, number = cast("tuple[bytes, int]", reply)
    if word == b"fewer":
        raise OrderChanged(f"this write has {tasks} tasks; before, {number} tasks published rows of it")
    if word == b"older":
        raise older(write.batch, number)


def older(batch: int, latest: int) -> OrderChanged:
    """The error of a batch that comes after its successors."""
    return OrderChanged(f"batch {batch} is to be published, but this query has already published batch {latest}")
