"""Fences: how far a Spark task has published, kept with what it published, in one atom.

A task may be run again, in part or whole, or twice at once. Its rows have an order, so it is enough to know how many of
them are written: a call says from which row to which it goes, and the script writes only if it goes on exactly where
the last one ended. The digest of all rows up to there tells whether a repeated task has the same rows as before.
"""

from dataclasses import dataclass
from typing import cast

from doubledecker.store.partitions import Partition

# Longer than anybody waits before a failed query is started again.
KEPT_MS = 7 * 86_400_000


@dataclass(frozen=True)
class Fence:
    """What one call publishes of a task: rows `first` to `last` of a batch, and the digest of all up to `last`."""

    task: str
    batch: int
    first: int
    last: int
    digest: str

    @property
    def packed(self) -> list[str | int]:
        return [self.task, self.batch, self.first, self.last, self.digest, KEPT_MS]


@dataclass(frozen=True)
class Reached:
    """How far a task has come."""

    batch: int = -1
    rows: int = 0
    digest: str = ""


async def read(partition: Partition, task: str) -> Reached:
    """How far a task has come in this partition."""
    kept = await partition.command("HMGET", partition.key(f"fence:{task}"), "batch", "rows", "digest")
    batch, rows, digest = cast("tuple[bytes | None, bytes | None, bytes | None]", kept)
    return Reached(int(batch), int(rows or 0), (digest or b"").decode()) if batch is not None else Reached()
