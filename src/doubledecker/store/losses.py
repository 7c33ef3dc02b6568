"""Losses: what waits for a subscriber in bytes, and what it lost because that was more than its `backlog_max_bytes`."""

from collections.abc import Sequence
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# Batches that one call adds up or drops: a millisecond of the server's time, or a few.
_MEASURED_MAX = 2_000
_DROPPED_MAX = 200
# Beyond any time in milliseconds, and still exact as a Lua number.
_EVER = 2**53

_MEASURE, _DROP = load("backlog_measure"), load("backlog_drop")


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """Events that were dropped; all of them were accepted from `from_ms` until before `upto_ms`."""

    from_ms: int
    upto_ms: int
    batches: int
    events: int
    bytes: int


class Dropped(msgspec.Struct, frozen=True):
    """What one call dropped."""

    batches: int
    events: int
    bytes: int


_LOSSES = msgspec.msgpack.Decoder(list[Loss])


async def measure(partition: Partition, token: str) -> int:
    """The bytes that wait for a subscriber in a partition; what is delivered meanwhile may count or not."""
    total, first = 0, 0
    while True:
        reply = await partition.run(_MEASURE, token=token, first=first, count_max=_MEASURED_MAX)
        count, size = cast("tuple[int, int]", reply)
        total, first = total + size, first + count
        if count < _MEASURED_MAX:
            return total


async def drop_oldest(partition: Partition, token: str, *, bytes_enough: int, created_max: int | None) -> Dropped:
    """Drop the oldest waiting batches until so many bytes are gone, and record it; repeat while it drops some."""
    reply = await partition.run(
        _DROP,
        token=token,
        batches_max=_DROPPED_MAX,
        created_max=_EVER if created_max is None else created_max,
        bytes_enough=bytes_enough,
    )
    return Dropped(*cast("tuple[int, int, int]", reply))


async def of_subscribers(partition: Partition, tokens: Sequence[str]) -> dict[str, list[Loss]]:
    """What subscribers lost in a partition in the last 30 days, in ranges of time; of others there is nothing."""
    if not tokens:
        return {}
    kept = cast("list[bytes | None]", await partition.command("HMGET", partition.key("losses"), *tokens))
    return {token: _LOSSES.decode(each) for token, each in zip(tokens, kept, strict=True) if each}


def total(losses: Sequence[Loss]) -> Loss | None:
    """All of them as one: from the first to the last; None when there are none."""
    if not losses:
        return None
    return Loss(
        min(each.from_ms for each in losses),
        max(each.upto_ms for each in losses),
        sum(each.batches for each in losses),
        sum(each.events for each in losses),
        sum(each.bytes for each in losses),
    )
