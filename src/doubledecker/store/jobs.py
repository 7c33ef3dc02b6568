"""The job queue: scheduled, instant, pending, then gone; and parked, for jobs that must wait for their subscriber.

A *slot* runs one job at a time. What a slot took is in its pending list until it is acked, nacked or scrubbed, so a
process that dies anywhere leaves every job in some list.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.model.job import AUX, MAIN, RETRY, Job
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# Due jobs promoted by one call; the next call takes the rest.
DUE_MAX = 200
# How much longer than the owner of a deadline others sleep, so that one process wakes for it and not all.
LAG_MS = 30
# Jobs parked by one call that looks for something else: well under a millisecond of the server's time.
PARK_MAX = 200
BELL_S = 5.0
# For jobs that are put back though no place is kept for them.
_ANY = 2**31

_PUSH, _TAKE, _ACK, _NACK = load("job_push"), load("job_take"), load("job_ack"), load("job_nack")
_SCRUB, _PARK, _UNPARK = load("job_scrub"), load("job_park"), load("job_unpark")


@dataclass(frozen=True)
class Taken:
    """A job in a slot's hands: what is needed to settle it; `is_called` says that it was parked and put back.

    `run` counts the jobs that the slot has gone on to in a row, keeping its place, this one included.
    """

    partition: Partition
    queue: str
    slot: str
    job: Job
    packed: bytes
    is_called: bool = False
    run: int = 0


@dataclass(frozen=True)
class Take:
    """What a call to take found, how long to wait for more (None: until the bell rings), for whom it parked jobs."""

    taken: tuple[Taken, ...]
    wait_ms: int | None
    parked_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unparked:
    """How many jobs were put back, how many more might have been, and how many wait: parked, or not taken yet."""

    moved: int
    spare: int
    left: int


async def push(partition: Partition, queue: str, job: Job, *, delay_ms: int = 0, every_ms: int = 0) -> bool:
    """Add a job unless it is there already; a recurring one at most once every `every_ms`."""
    reply = await partition.run(_PUSH, queue=queue, job=job.encode(), delay_ms=delay_ms, every_ms=every_ms)
    return reply == 1


async def take(
    partition: Partition,
    offers: Mapping[str, Sequence[str]],
    *,
    process: str,
    busy: Sequence[str] = (),
    sated: Sequence[str] = (),
) -> Take:
    """Give each free slot a job from the queues it is offered to, in their order; park first tries for the busy.

    Jobs that were parked and put back go first, save for the sated: slots that have just served one of them.
    """
    reply = await partition.run(
        _TAKE,
        offers=[[queue, list(slots)] for queue, slots in offers.items() if slots],
        process=process,
        lag_ms=LAG_MS + random.randrange(LAG_MS),  # noqa: S311 - spreads load, protects nothing
        due_max=DUE_MAX,
        busy=list(busy),
        sated=list(sated),
        park_max=PARK_MAX,
    )
    wait_ms, flat, parked_for = cast("tuple[int, list[bytes], list[bytes]]", reply)
    taken = tuple(
        Taken(partition, queue.decode(), slot.decode(), Job.decode(packed), packed, is_called=bool(called))
        for slot, queue, packed, called in zip(flat[0::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    )
    return Take(taken, None if wait_ms < 0 else wait_ms, tuple(token.decode() for token in parked_for))


async def ack(taken: Taken) -> bool:
    """Remove a finished job; False when it was no longer this slot's."""
    reply = await taken.partition.run(_ACK, queue=taken.queue, slot=taken.slot, job=taken.packed)
    return reply == 1


async def nack(taken: Taken, *, delay_ms: int) -> bool:
    """Give a job back; False when it was no longer this slot's."""
    reply = await taken.partition.run(_NACK, queue=taken.queue, slot=taken.slot, job=taken.packed, delay_ms=delay_ms)
    return reply == 1


async def park(taken: Taken, *, token: str) -> bool:
    """Set a batch's job aside until its subscriber may be called again."""
    reply = await taken.partition.run(
        _PARK,
        queue=taken.queue,
        slot=taken.slot,
        job=taken.packed,
        token=token,
        is_called=int(taken.is_called),
    )
    return reply == 1


async def unpark(
    partition: Partition,
    token: str,
    *,
    room: int,
    called_max: int = _ANY,
    queues: Sequence[str] = (RETRY, MAIN),
    is_probe: bool = False,
) -> Unparked:
    """Put parked jobs of a subscriber back, oldest first, until so many at most wait to be taken."""
    reply = await partition.run(
        _UNPARK, token=token, room=room, called_max=called_max, queues=list(queues), is_probe=int(is_probe)
    )
    return Unparked(*cast("tuple[int, int, int]", reply))


async def parked_tokens(partition: Partition, *, count: int) -> list[str]:
    """Some of the subscribers that have parked jobs."""
    reply = await partition.command("SRANDMEMBER", partition.key("jobs:parked:index"), count)
    return [token.decode() for token in cast("list[bytes]", reply)]


async def scrub(partition: Partition, queue: str, *, dead_ms: int) -> tuple[int, int]:
    """Take jobs back from slots without a heartbeat; says how many slots and jobs."""
    slots, returned = cast("tuple[int, int]", await partition.run(_SCRUB, queue=queue, dead_ms=dead_ms))
    return slots, returned


async def beat(partition: Partition, slots: Sequence[str]) -> None:
    """Say that these slots are alive, by the server's clock: hosts' clocks need not agree."""
    now_ms = await partition.time_ms()
    pairs = [word for slot in slots for word in (slot, now_ms)]
    await partition.write("HSET", partition.key("workers"), *pairs)


async def beats(partition: Partition) -> dict[str, int]:
    """When each slot was last alive."""
    flat = cast("list[bytes]", await partition.command("HGETALL", partition.key("workers")))
    return {slot.decode(): int(at) for slot, at in zip(flat[0::2], flat[1::2], strict=True)}


async def alive(partition: Partition, *, silent_ms_max: int) -> set[str]:
    """The slots with a heartbeat not older than this."""
    now_ms = await partition.time_ms()
    return {slot for slot, at in (await beats(partition)).items() if at + silent_ms_max > now_ms}


async def forget(partition: Partition, slots: Sequence[str]) -> None:
    """Forget the heartbeats of slots that died long ago."""
    if slots:
        await partition.command("HDEL", partition.key("workers"), *slots)


async def sign_off(partition: Partition, slots: Sequence[str]) -> None:
    """End slots cleanly: without a heartbeat, whatever one of them may still hold is scrubbed at once."""
    await forget(partition, slots)
    held = [(queue, slot) for queue in (MAIN, RETRY, AUX) for slot in slots]
    lengths = await partition.commands([["LLEN", partition.key(f"jobs:pending:{q}:{slot}")] for q, slot in held])
    empty = [pair for pair, length in zip(held, lengths, strict=True) if length == 0]
    await partition.commands([["SREM", partition.key(f"jobs:pending:index:{q}"), slot] for q, slot in empty])


async def counts(partition: Partition) -> dict[tuple[str, str], int]:
    """How many jobs there are, by queue and state; those that were parked and put back are instant."""
    words = {"scheduled": "ZCARD", "instant": "LLEN", "called": "LLEN", "index": "SCARD"}
    shape = [(queue, state) for queue in (MAIN, RETRY, AUX) for state in words]
    replies = await partition.commands(
        [[words[state], partition.key(f"jobs:{state}:{queue}")] for queue, state in shape]
    )
    found = dict(zip(shape, cast("list[int]", replies), strict=True))
    for queue in (MAIN, RETRY, AUX):
        found[queue, "instant"] += found.pop((queue, "called"))
    return found


async def due(partition: Partition, *, now_ms: int) -> int:
    """How many delivery jobs could run right now."""
    commands: list[list[str | int]] = []
    for queue in (MAIN, RETRY):
        commands.append(["LLEN", partition.key(f"jobs:instant:{queue}")])
        commands.append(["LLEN", partition.key(f"jobs:called:{queue}")])
        commands.append(["ZCOUNT", partition.key(f"jobs:scheduled:{queue}"), "-inf", now_ms])
    return sum(cast("list[int]", await partition.commands(commands)))


async def bell(partition: Partition, last: str) -> str:
    """Wait until the bell rings after `last`; returns where to listen from next. Let it end, never cancel it."""
    reply = await partition.block(
        "XREAD", "BLOCK", int(BELL_S * 1000), "STREAMS", partition.key("jobs:bell"), last, block_s=BELL_S
    )
    if reply is None:
        return last
    [[_, [[id_, _]]]] = cast("list[list[list[list[bytes]]]]", reply)
    return id_.decode()
