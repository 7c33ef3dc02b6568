"""The pace at which clients publish, kept at home for all processes."""

from typing import cast

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# What may be published at once after a pause: a second's worth, and the block that is asked for.
BURST_MS = 1_000

_PACE = load("client_pace")


async def take(home: Partition, client: str, *, count: int, rate: int) -> int:
    """Take so many events from a client's bucket; returns 0, or in how many milliseconds to ask again."""
    return cast("int", await home.run(_PACE, token=client, count=count, rate=rate, burst_ms=BURST_MS))
