"""Jobs that redrive or purge many dead letters, a few a second: at home, what each is to do and whether it has ended.

How far one has come is counted where letters are, by the very script that takes them (`dead:done`).
"""

from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from doubledecker.model.dead_letter import LetterFilter
from doubledecker.store.partitions import Partition

# gone: its receiver went before it was done.
State = Literal["running", "done", "cancelled", "gone"]
_KEY = "dead:jobs"


@dataclass(frozen=True)
class LetterJob:
    """What is to be done with which letters of a receiver: those that had died when it was asked for.

    `count` is how many these were then. Times are in milliseconds; `ended_at` is 0 while it runs.
    """

    id: str
    receiver: str
    action: Literal["redrive", "purge"]
    rate_per_s: float
    count: int
    asked_at: int
    chosen: LetterFilter = field(default_factory=LetterFilter)
    state: State = "running"
    ended_at: int = 0


_decode = msgspec.json.Decoder(LetterJob).decode


async def write(home: Partition, job: LetterJob) -> None:
    """Keep a job as it is now."""
    await home.write("HSET", home.key(_KEY), job.id, msgspec.json.encode(job))


async def read(home: Partition, id_: str) -> LetterJob | None:
    """One job, if it is known."""
    kept = await home.command("HGET", home.key(_KEY), id_)
    return None if kept is None else _decode(cast("bytes", kept))


async def read_all(home: Partition) -> list[LetterJob]:
    """All jobs that are known, the oldest first."""
    kept = await home.command("HVALS", home.key(_KEY))
    return sorted(map(_decode, cast("list[bytes]", kept)), key=lambda job: (job.asked_at, job.id))


async def forget(home: Partition, ids: list[str]) -> None:
    if ids:
        await home.command("HDEL", home.key(_KEY), *ids)
