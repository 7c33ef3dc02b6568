"""Letting parked jobs of a subscriber go on, when whoever calls it leaves places free."""

from collections.abc import Sequence

from doubledecker.store import jobs, subscribers
from doubledecker.store.partitions import Partitions
from doubledecker.store.subscribers import Waiting


async def unpark(partitions: Partitions, token: str, where: Sequence[Waiting], *, invited: int) -> None:
    """Put parked jobs of a subscriber back, for the places that are kept for them."""
    for waiting in where:
        if invited <= 0:
            return
        moved, left = await jobs.unpark(partitions.all[waiting.partition], token, room=invited)
        invited -= moved
        if left == 0:
            await subscribers.resume(partitions.home, token, waiting)
    await subscribers.uninvite(partitions.home, token, invited)
