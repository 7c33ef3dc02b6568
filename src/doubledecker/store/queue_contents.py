"""What a queue holds, looked at or destroyed: waiting messages, in each partition."""

import math
from collections.abc import Sequence
from typing import cast

from doubledecker.model.queue import LEASE_MS_MAX, RegisteredQueue
from doubledecker.store import dead_letters, facets, queues
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, Value, load
from doubledecker.store.shared_connection import words

_PAGE = 500
# Events are read in smaller pages: each may have 64 KiB, and a reply is held whole.
_EVENTS_PAGE = 100

_PURGE, _DESTROY = load("queue_purge"), load("queue_destroy")


async def peek(
    partition: Partition, queue: RegisteredQueue, tenant: str, *, most: int, bytes_max: float = math.inf
) -> list[tuple[str, bytes]]:
    """The next waiting messages of a facet, without taking them; ends early after so many bytes."""
    record, tail = await partition.commands(
        [
            ["HGET", partition.key(f"queue:facets:{queue.name}"), tenant],
            ["LRANGE", partition.key(f"queue:new:{queue.name}:{tenant}"), 0, most - 1],
        ]
    )
    # Between the two answers an id may have come from the tail to the head.
    ids = dict.fromkeys([*facets.head(cast("bytes | None", record)), *words(tail)])
    named, found, size = list(ids)[:most], list[tuple[str, bytes]](), 0
    for start in range(0, len(named), _EVENTS_PAGE):
        for id_, event in await read(partition, queue, named[start : start + _EVENTS_PAGE]):
            if size + len(event) > bytes_max and found:
                return found
            found.append((id_, event))
            size += len(event)
    return found


async def read(partition: Partition, queue: RegisteredQueue, ids: Sequence[str]) -> list[tuple[str, bytes]]:
    """Those of the messages that are there."""
    if not ids:
        return []
    texts = await partition.command("HMGET", partition.key(f"queue:data:{queue.name}"), *ids)
    pairs = zip(ids, cast("list[bytes | None]", texts), strict=True)
    return [(id_, text) for id_, text in pairs if text is not None]


async def purge(partition: Partition, queue: RegisteredQueue, tenant: str) -> int:
    """Destroy what waits in a facet; returns how many messages that were.

    What is published meanwhile may stay, or this might never end.
    """
    [line] = await facets.facets(partition, queue, [tenant])
    total = 0
    for _ in range(0, line.waiting, _PAGE):
        total += await _purge(partition, queue, tenant, [])
    at, start = partition.key(f"queue:scheduled:{queue.name}"), 0
    while later := words(await partition.command("ZRANGE", at, start, start + _PAGE - 1)):
        gone = await _purge(partition, queue, tenant, later)
        # What stays comes before the next page, what went does not.
        start += len(later) - gone
        total += gone
    for lane in await _held_lanes(partition, queue.name):
        while lane.startswith((f"{tenant}/", f"{tenant}:")) and (
            gone := await _purge(partition, queue, tenant, [], held=[lane])
        ):
            total += gone
    return total


async def delayed(partition: Partition, queue: RegisteredQueue, tenant: str) -> int:
    at = partition.key(f"queue:scheduled:{queue.name}")
    ids = cast("list[bytes]", await partition.command("ZRANGE", at, 0, -1))
    return (await facets.owners(partition, queue.name, ids))[tenant]


async def destroy(partition: Partition, name: str, *, version: int) -> bool:
    """Remove all that a queue left which this version of the registry does not have; safe to repeat.

    Returns False when the registry has changed since: a queue may have taken the name.
    """

    async def step(tenants: Sequence[str] = (), held: Sequence[str] = (), *, is_last: bool = False) -> int:
        named = {"queue": name, "receiver": f"@{name}"}
        how: dict[str, Value] = {"tenants": tenants, "held": held, "is_last": int(is_last), "kept_ms": LEASE_MS_MAX}
        return cast("int", await partition.run(_DESTROY, **named, **how, version=version))

    # From here on no process with an older copy of the registry adds to it.
    left = await step()
    if left <= 0:
        return left == 0
    names = await tenants(partition, name)
    for start in range(0, len(names), _PAGE):
        if await step(names[start : start + _PAGE]) < 0:
            return False
    lanes = await _held_lanes(partition, name)
    for start in range(0, len(lanes), _PAGE):
        if await step(held=lanes[start : start + _PAGE]) < 0:
            return False
    if await step(is_last=True) < 0:
        return False
    return await dead_letters.destroy(partition, f"@{name}", version=version)


async def tenants(partition: Partition, name: str) -> list[str]:
    """Everyone who has something waiting, now or later, or is remembered."""
    commands: list[list[Encoded]] = [
        ["ZRANGE", partition.key(f"queue:{place}:{name}"), 0, -1] for place in ("ring", "parked", "wake")
    ]
    commands.append(["HKEYS", partition.key(f"queue:facets:{name}")])
    commands.append(["ZRANGE", partition.key(f"queue:scheduled:{name}"), 0, -1])
    *places, later = cast("list[list[bytes]]", await partition.commands(commands))
    found = {tenant.decode() for place in places for tenant in place}
    return sorted(found.union(await facets.owners(partition, name, later)))


async def names_held(partition: Partition) -> set[str]:
    """The queues that have held messages in a partition."""
    return set(words(await partition.command("SMEMBERS", partition.key("queues:index"))))


async def _held_lanes(partition: Partition, name: str) -> list[str]:
    """The lanes of an ordered queue that are held (lua/queue_lanes.lua); no message's id has what parts a lane."""
    fields = words(await partition.command("HKEYS", partition.key(f"queue:lanes:{name}")))
    return [field for field in fields if "/" in field or ":" in field]


async def _purge(
    partition: Partition, queue: RegisteredQueue, tenant: str, later: Sequence[str], *, held: Sequence[str] = ()
) -> int:
    most = 0 if later else _PAGE
    wanted: dict[str, Value] = {"facet": tenant, "most": most, "delayed": later, "held": held}
    return cast("int", await queues.run(partition, _PURGE, queue, **wanted))
