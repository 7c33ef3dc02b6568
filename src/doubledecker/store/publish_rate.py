"""The pace at which clients publish, kept at home for all processes."""

from collections.abc import Sequence
from typing import cast

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# What may be published at once after a pause: a second's worth, and the block that is asked for.
BURST_MS = 1_000
_FIELDS = ("second", "taken", "before")

_PACE = load("client_pace")


async def take(home: Partition, client: str, *, count: int, rate: int) -> int:
    """Take so many events from a client's bucket; returns 0, or in how many milliseconds to ask again."""
    return cast("int", await home.run(_PACE, token=client, count=count, rate=rate, burst_ms=BURST_MS))


async def taken(home: Partition, clients: Sequence[str]) -> list[int]:
    """How many events each client took in the last whole second; processes take them in blocks."""
    last = await home.time_ms() // 1000 - 1
    replies = await home.commands([["HMGET", home.key(f"pace:{client}"), *_FIELDS] for client in clients])
    rows = ((int(value or 0) for value in cast("list[bytes | None]", reply)) for reply in replies)
    # Of a client that has taken none since, the last second is the one that was noted.
    return [{last: taken, last + 1: before}.get(second, 0) for second, taken, before in rows]
