"""Batches of events for one subscriber: current, then ready, then deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.model.job import Job
from doubledecker.store.jobs import Taken
from doubledecker.store.line import Reply
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

_OPEN, _DELIVERED, _RETRY = load("batch_open"), load("batch_delivered"), load("batch_retry")
_DROP, _FORGET = load("batch_drop"), load("batch_forget")


# Beyond any time in milliseconds and any number of bytes, and still exact as a Lua number.
_EVER = 2**53


@dataclass(frozen=True)
class Batch:
    """A batch as it is delivered: encoded messages in order of acceptance."""

    bid: str
    token: str
    created_at: int
    attempts: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True)
class Next(Taken):
    """A job that a slot went on to after another; its batch is open, unless it is gone."""

    batch: Batch | None = None


@dataclass(frozen=True)
class Settled:
    """Whether the job was still ours to settle, how much the attempt journal holds afterwards, and what is next."""

    is_ours: bool
    journal_bytes: int
    after: Next | None = None


@dataclass(frozen=True)
class Lost:
    """What was dropped of one subscriber."""

    token: str
    batches: int
    events: int
    bytes: int


async def open_(partition: Partition, bid: str, *, token: str) -> Batch | None:
    """Load a batch and close it to new events; None when it is gone."""
    return _batch(bid, cast("list[bytes]", await partition.run(_OPEN, bid=bid, token=token)))


async def delivered(
    taken: Taken,
    batch: Batch,
    *,
    attempt: bytes,
    counts: Mapping[str, int],
    places: int = 0,
    yields: bool = False,
) -> Settled:
    """Delete a delivered batch and its job, journal the attempt; go on to the next job parked for the subscriber.

    It does if the subscriber may have more calls than jobs that were put back wait to be taken: with one place, none is
    overtaken. One that yields goes on only if no other subscriber's job waits in the partition for its first try.
    """
    reply = await taken.partition.run(
        _DELIVERED,
        queue=taken.queue,
        slot=taken.slot,
        job=taken.packed,
        bid=batch.bid,
        token=batch.token,
        attempt=attempt,
        counts=list(counts.items()),
        places=places,
        yields=int(yields),
    )
    is_ours, journal_bytes, packed, parts = cast("tuple[int, int, bytes, list[bytes]]", reply)
    return Settled(is_ours == 1, journal_bytes, _next(taken, packed, parts) if packed else None)


async def retry(taken: Taken, batch: Batch, *, delay_ms: int, attempt: bytes, counts: Mapping[str, int]) -> Settled:
    """Count a failed attempt, schedule the next, and journal it."""
    reply = await taken.partition.run(
        _RETRY,
        queue=taken.queue,
        slot=taken.slot,
        job=taken.packed,
        bid=batch.bid,
        attempts=batch.attempts + 1,
        delay_ms=delay_ms,
        attempt=attempt,
        counts=list(counts.items()),
    )
    is_ours, journal_bytes = cast("tuple[int, int]", reply)
    return Settled(is_ours == 1, journal_bytes)


async def drop_oldest(
    partition: Partition, token: str, *, batches_max: int, created_max: int | None, bytes_enough: int, counter: str
) -> Lost:
    """Delete the oldest batches of a subscriber, until one of the bounds is met; returns what was lost."""
    until = _EVER if created_max is None else created_max
    lost = await _drop(partition, f"batches:index:{token}", batches_max, until, bytes_enough, counter)
    return lost[0] if lost else Lost(token, 0, 0, 0)


async def purge(partition: Partition, rid: str, *, batches_max: int, counter: str) -> int:
    """Delete some of what was set aside when a subscriber went; says how many batches are left."""
    retired = f"batches:retired:{rid}"
    await _drop(partition, retired, batches_max, _EVER, _EVER, counter)
    return cast("int", await partition.command("ZCARD", partition.key(retired)))


async def oldest(partition: Partition) -> int | None:
    """When the oldest waiting batch was created."""
    [reply] = await partition.commands([_head(partition, "batches:index")])
    return _score(reply)


async def oldest_by_token(partition: Partition, tokens: Sequence[str]) -> dict[str, int]:
    """When the oldest waiting batch of each subscriber was created; those with none are left out."""
    replies = await partition.commands([_head(partition, f"batches:index:{token}") for token in tokens])
    found = ((token, _score(reply)) for token, reply in zip(tokens, replies, strict=True))
    return {token: at for token, at in found if at is not None}


async def gauges(partition: Partition) -> tuple[dict[str, int], dict[str, int]]:
    """Waiting events and waiting batches, by subscriber."""
    events, batches = await partition.commands(
        [["HGETALL", partition.key(f"batches:gauges:{what}")] for what in ("event", "batch")]
    )
    return _numbers(cast("list[bytes]", events)), _numbers(cast("list[bytes]", batches))


async def gauges_of(partition: Partition, tokens: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The same of some subscribers; those with nothing waiting may be left out."""
    if not tokens:
        return {}, {}
    events, batches = await partition.commands(
        [["HMGET", partition.key(f"batches:gauges:{what}"), *tokens] for what in ("event", "batch")]
    )
    return _present(tokens, events), _present(tokens, batches)


async def forget_gauges(partition: Partition, token: str) -> bool:
    """Remove the gauges of a subscriber that is gone; False when something waits for it, as when it came back."""
    return await partition.run(_FORGET, token=token) == 1


async def _drop(
    partition: Partition, index: str, batches_max: int, created_max: int, bytes_enough: int, counter: str
) -> list[Lost]:
    reply = await partition.run(
        _DROP,
        index=index,
        batches_max=batches_max,
        created_max=created_max,
        bytes_enough=bytes_enough,
        counter=counter,
    )
    flat = cast("list[bytes | int]", reply)
    return [
        Lost(cast("bytes", who).decode(), *cast("tuple[int, int, int]", numbers))
        for who, *numbers in zip(flat[0::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    ]


def _next(taken: Taken, packed: bytes, parts: Sequence[bytes]) -> Next:
    job = Job.decode(packed)
    batch = _batch(job.args[0], parts)
    return Next(taken.partition, taken.queue, taken.slot, job, packed, is_called=True, run=taken.run + 1, batch=batch)


def _batch(bid: str, parts: Sequence[bytes]) -> Batch | None:
    return Batch(bid, parts[0].decode(), int(parts[1]), int(parts[2]), tuple(parts[3:])) if parts else None


def _head(partition: Partition, index: str) -> list[str | int]:
    return ["ZRANGE", partition.key(index), 0, 0, "WITHSCORES"]


def _score(reply: Reply) -> int | None:
    pair = cast("list[bytes]", reply)
    return int(float(pair[1])) if pair else None


def _present(tokens: Sequence[str], reply: Reply) -> dict[str, int]:
    values = cast("list[bytes | None]", reply)
    return {token: int(value) for token, value in zip(tokens, values, strict=True) if value is not None}


def _numbers(flat: list[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(flat[0::2], flat[1::2], strict=True)}
