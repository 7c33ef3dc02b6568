"""Open streams of clients, counted at home for all web processes, each for the length of a lease."""

from collections.abc import Sequence
from typing import cast

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, load

# What a process that was killed had open is counted for this long.
LEASE_MS = 15_000
# Streams in one call; Lua takes some thousand values at once.
_CALL_MAX = 1_000

_HOLD = load("stream_hold")


async def enter(home: Partition, client: str, stream: str, *, most: int) -> bool:
    """Count one more stream of a client; False when it has as many as it may. With `most` 0 it may have any number."""
    return await home.run(_HOLD, stream, token=client, lease_ms=LEASE_MS, most=most) == 1


async def renew(home: Partition, client: str, streams: Sequence[str]) -> None:
    """Count a client's streams for another lease, whether or not they are still counted."""
    for first in range(0, len(streams), _CALL_MAX):
        some = streams[first : first + _CALL_MAX]
        await home.run(_HOLD, *some, token=client, lease_ms=LEASE_MS, most=0)


async def leave(home: Partition, client: str, stream: str) -> None:
    await home.command("ZREM", home.key(f"streams:{client}"), stream)


async def counts(home: Partition, clients: Sequence[str]) -> dict[str, int]:
    now_ms = await home.time_ms()
    asked: list[list[Encoded]] = [["ZCOUNT", home.key(f"streams:{client}"), now_ms, "+inf"] for client in clients]
    return dict(zip(clients, cast("list[int]", await home.commands(asked)), strict=True))
