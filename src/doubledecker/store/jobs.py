"""The job queue: scheduled, instant, pending, then gone. Jobs that deliver batches are in store/deliveries.py.

A *slot* runs one job at a time. What a slot took is in its pending list until it is acked, nacked or scrubbed, so a
process that dies anywhere leaves every job in some list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.model.job import AUX, MAIN, Job
from doubledecker.model.uid import uid
from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import Reply

# Due jobs promoted by one call; the next call takes the rest.
DUE_MAX = 200
# How the name of a slot begins that runs aux jobs, one of each worker.
_AUX_SLOT = "aux-"

_PUSH, _TAKE, _ACK, _NACK = load("job_push"), load("job_take"), load("job_ack"), load("job_nack")
_SCRUB = load("job_scrub")


@dataclass(frozen=True)
class Taken:
    """A job in a slot's hands: what is needed to settle it."""

    partition: Partition
    slot: str
    job: Job
    packed: bytes


@dataclass(frozen=True)
class Take:
    """What a call to take found, and how long to wait for more (None: until the bell rings)."""

    taken: tuple[Taken, ...]
    wait_ms: int | None


def aux_slot() -> str:
    """A name for a slot that runs aux jobs."""
    return _AUX_SLOT + uid()


def is_aux_slot(slot: str) -> bool:
    """Whether a slot runs aux jobs, and delivers nothing."""
    return slot.startswith(_AUX_SLOT)


async def push(partition: Partition, job: Job, *, delay_ms: int = 0, every_ms: int = 0) -> bool:
    """Add a job unless it is there already; a recurring one at most once every `every_ms`."""
    return await partition.run(_PUSH, job=job.encode(), delay_ms=delay_ms, every_ms=every_ms) == 1


async def take(partition: Partition, slots: Sequence[str], *, process: str) -> Take:
    """Give each free slot a job."""
    reply = await partition.run(_TAKE, slots=list(slots), process=process, due_max=DUE_MAX)
    wait_ms, given = cast("tuple[int, Reply]", reply)
    taken = [
        Taken(partition, slot, Job.decode(packed), packed) for slot, packed in shared_connection.fields(given).items()
    ]
    return Take(tuple(taken), None if wait_ms < 0 else wait_ms)


async def ack(taken: Taken) -> bool:
    """Remove a finished job; False when it was no longer this slot's."""
    return await taken.partition.run(_ACK, slot=taken.slot, job=taken.packed) == 1


async def nack(taken: Taken, *, delay_ms: int) -> bool:
    """Give a job back; False when it was no longer this slot's."""
    return await taken.partition.run(_NACK, slot=taken.slot, job=taken.packed, delay_ms=delay_ms) == 1


async def scrub(partition: Partition, *, dead_ms: int) -> tuple[int, int]:
    """Take jobs back from slots without a heartbeat; returns how many slots and jobs."""
    slots, returned = cast("tuple[int, int]", await partition.run(_SCRUB, dead_ms=dead_ms))
    return slots, returned


async def beat(partition: Partition, slots: Sequence[str]) -> None:
    """Record that these slots are alive, by the server's clock: hosts' clocks need not agree."""
    now_ms = await partition.time_ms()
    pairs = [word for slot in slots for word in (slot, now_ms)]
    await partition.write("HSET", partition.key("workers"), *pairs)


async def beats(partition: Partition) -> dict[str, int]:
    return shared_connection.numbers(await partition.command("HGETALL", partition.key("workers")))


async def alive(partition: Partition, *, silent_ms_max: int) -> set[str]:
    now_ms = await partition.time_ms()
    return {slot for slot, at in (await beats(partition)).items() if at + silent_ms_max > now_ms}


async def forget(partition: Partition, slots: Sequence[str]) -> None:
    """Forget the heartbeats of slots that died long ago."""
    if slots:
        await partition.command("HDEL", partition.key("workers"), *slots)


async def sign_off(partition: Partition, slots: Sequence[str], *, process: str) -> None:
    """End slots cleanly: without a heartbeat, whatever one of them may still hold is scrubbed at once."""
    await forget(partition, slots)
    hungry = [["SREM", partition.key(f"jobs:hungry:{queue}"), process] for queue in (MAIN, AUX)]
    lengths = await partition.commands([["LLEN", partition.key(f"jobs:pending:{AUX}:{slot}")] for slot in slots])
    empty = [slot for slot, length in zip(slots, lengths, strict=True) if length == 0]
    await partition.commands([*hungry, *(["SREM", partition.key(f"jobs:pending:index:{AUX}"), slot] for slot in empty)])


async def counts(partition: Partition) -> dict[tuple[str, str], int]:
    """How many jobs there are, by queue and state. `index` counts them in any state."""
    batches, scheduled, held, *aux = await partition.commands(
        [
            ["ZCARD", partition.key("batches:index")],
            ["ZCARD", partition.key(f"jobs:scheduled:{MAIN}")],
            ["HVALS", partition.key(f"jobs:pending:{MAIN}")],
            ["ZCARD", partition.key(f"jobs:scheduled:{AUX}")],
            ["LLEN", partition.key(f"jobs:instant:{AUX}")],
            ["SCARD", partition.key(f"jobs:index:{AUX}")],
        ]
    )
    pending = sum(not each.startswith(b"\n") for each in cast("list[bytes]", held))
    waiting = cast("int", batches) - cast("int", scheduled) - pending
    found = {
        (MAIN, "scheduled"): cast("int", scheduled),
        (MAIN, "instant"): max(0, waiting),
        (MAIN, "index"): cast("int", batches),
    }
    return found | {
        (AUX, state): cast("int", n) for state, n in zip(("scheduled", "instant", "index"), aux, strict=True)
    }


async def due(partition: Partition, *, now_ms: int) -> int:
    """How many delivery jobs could run right now, or wait for nothing but a permit."""
    found = await counts(partition)
    late = await partition.command("ZCOUNT", partition.key(f"jobs:scheduled:{MAIN}"), "-inf", now_ms)
    return found[MAIN, "instant"] + cast("int", late)


async def listen(partition: Partition, process: str, on_bell: Callable[[str], None]) -> None:
    """Call `on_bell` with the queue whenever the bell of a process rings, until the server is away.

    When it begins to listen either queue may have something: it is called with an empty name.
    """
    await partition.listen(f"bell:{process}", lambda message: on_bell(message.decode()))
