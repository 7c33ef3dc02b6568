"""Jobs that redrive or purge many dead letters, a few a second: at home, what each is to do and whether it has ended.

The jobs of a receiver are one value, which is changed only by a process that saw it last. How far a job has come is
counted where letters are, by the very script that takes them (`dead:done`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from doubledecker.model.dead_letter import LetterFilter
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import words

# gone: its receiver went before it was done.
State = Literal["running", "done", "cancelled", "gone"]
_KEY, _RUNNING = "dead:jobs:kept", "dead:jobs:running"
_REPLACE = load("letter_jobs_replace")


@dataclass(frozen=True)
class LetterJob:
    """What is to be done with which letters of a client's receiver: those that had died when it was asked for.

    `count` is how many these were then. `paced_from` is the time from which its rate is counted. Times are in
    milliseconds; `ended_at` is 0 while it runs.
    """

    id: str
    receiver: str
    client: str
    action: Literal["redrive", "purge"]
    rate_per_s: float
    count: int
    asked_at: int
    paced_from: int
    chosen: LetterFilter = field(default_factory=LetterFilter)
    state: State = "running"
    ended_at: int = 0

    @property
    def is_running(self) -> bool:
        return self.state == "running"


Change = Callable[[Sequence[LetterJob]], Sequence[LetterJob]]
_decode = msgspec.json.Decoder(list[LetterJob]).decode


async def of(home: Partition, receiver: str) -> list[LetterJob]:
    """The jobs of a receiver, the oldest first."""
    return _decode(await _packed(home, receiver) or b"[]")


async def running(home: Partition) -> list[LetterJob]:
    """The jobs of all receivers that run, at most one of each."""
    receivers = words(await home.command("SMEMBERS", home.key(_RUNNING)))
    if not receivers:
        return []
    found = cast("list[bytes | None]", await home.command("HMGET", home.key(_KEY), *receivers))
    return [job for packed in found if packed for job in _decode(packed) if job.is_running]


async def receivers(home: Partition) -> list[str]:
    """The receivers that have jobs."""
    return words(await home.command("HKEYS", home.key(_KEY)))


async def change(home: Partition, receiver: str, by: Change) -> Sequence[LetterJob]:
    """Change the jobs of a receiver as they are now; `by` may be called again when another was faster."""
    while True:
        packed = await _packed(home, receiver)
        former = _decode(packed or b"[]")
        latter = by(former)
        if latter == former or await _replace(home, receiver, packed, latter):
            return latter


async def _replace(home: Partition, receiver: str, former: bytes, latter: Sequence[LetterJob]) -> bool:
    reply = await home.run(
        _REPLACE,
        receiver=receiver,
        former=former,
        latter=msgspec.json.encode(latter) if latter else b"",
        is_running=int(any(job.is_running for job in latter)),
    )
    return reply == 1


async def _packed(home: Partition, receiver: str) -> bytes:
    """As they are kept; empty for none."""
    return cast("bytes | None", await home.command("HGET", home.key(_KEY), receiver)) or b""
