"""Redis channels: who listens, and telling them. A channel is an event's routing key, without the namespace."""

from collections.abc import Sequence
from typing import cast

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import Reply

_NOTIFY = load("event_notify")


async def is_heard(partition: Partition, channels: Sequence[str]) -> bool:
    """Whether anyone listens on one of these, on any server: in a cluster a listener may sit on any node."""
    replies = await partition.everywhere([["PUBSUB", "NUMPAT"], ["PUBSUB", "NUMSUB", *channels]])
    return any(patterns or any(_counts(counted)) for patterns, counted in replies)


async def publish(partition: Partition, messages: Sequence[tuple[str, bytes]]) -> int:
    """Send each message to its channel, in order; returns how often one was heard on the server that was asked."""
    pairs = [word for pair in messages for word in pair]
    return cast("int", await partition.run(_NOTIFY, *pairs))


def _counts(reply: Reply) -> Sequence[int]:
    return cast("Sequence[int]", cast("Sequence[Reply]", reply)[1::2])
