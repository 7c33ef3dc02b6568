"""Batches of events for one subscriber: current, then ready, then deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import Reply

_DROP, _FORGET = load("batch_drop"), load("batch_forget")


# Beyond any time in milliseconds and any number of bytes, and still exact as a Lua number.
_EVER = 2**53


@dataclass(frozen=True)
class Lost:
    token: str
    batches: int
    events: int
    bytes: int


async def drop_oldest(
    partition: Partition, token: str, *, batches_max: int, created_max: int | None, bytes_enough: int, counter: str
) -> Lost:
    """Delete the oldest batches of a subscriber, until one of the bounds is met; returns what was lost."""
    until = _EVER if created_max is None else created_max
    lost = await _drop(partition, f"batches:index:{token}", batches_max, until, bytes_enough, counter)
    return lost[0] if lost else Lost(token, 0, 0, 0)


async def purge(partition: Partition, rid: str, *, batches_max: int, counter: str) -> int:
    """Delete some of what was set aside when a subscriber went; returns how many batches are left."""
    retired = f"batches:retired:{rid}"
    await _drop(partition, retired, batches_max, _EVER, _EVER, counter)
    return cast("int", await partition.command("ZCARD", partition.key(retired)))


async def oldest(partition: Partition) -> int | None:
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
    return shared_connection.numbers(events), shared_connection.numbers(batches)


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


def _head(partition: Partition, index: str) -> list[str | int]:
    return ["ZRANGE", partition.key(index), 0, 0, "WITHSCORES"]


def _score(reply: Reply) -> int | None:
    pair = cast("list[bytes]", reply)
    return int(float(pair[1])) if pair else None


def _present(tokens: Sequence[str], reply: Reply) -> dict[str, int]:
    values = cast("list[bytes | None]", reply)
    return {token: int(value) for token, value in zip(tokens, values, strict=True) if value is not None}
