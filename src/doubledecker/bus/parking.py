"""Letting parked jobs of a subscriber go on, when whoever calls it leaves places free."""

from collections.abc import Sequence

from doubledecker.store import jobs, subscribers
from doubledecker.store.partitions import Partitions
from doubledecker.store.subscribers import Invited, Waiting


async def unpark(partitions: Partitions, token: str, where: Sequence[Waiting], *, invited: Invited) -> None:
    """Put parked jobs of a subscriber back, for the places that are kept for them."""
    room = invited.count
    for waiting in where:
        if room <= 0:
            return
        partition = partitions.all[waiting.partition]
        unparked = await jobs.unpark(partition, token, room=room, called_max=invited.total)
        room = unparked.spare
        # As long as one that was put back is not taken, those that come now queue behind it.
        if unparked.left == 0:
            await subscribers.resume(partitions.home, token, waiting)
    await subscribers.uninvite(partitions.home, token, room)
