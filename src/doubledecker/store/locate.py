"""Where an event is in Redis just now: in batches, on queues, among dead letters.

Nothing in Redis leads from an event to where it waits: messages are looked through, so many at most, oldest first.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model.event import AcceptedEvent
from doubledecker.store import dead_letters, queue_contents
from doubledecker.store.partitions import Partition
from doubledecker.store.queues import RECORD
from doubledecker.store.shared_connection import words

# In each partition: enough for what an ordinary backlog holds, and looked through within seconds.
BATCHES_MAX = 5_000
MESSAGES_MAX = 200_000
_PAGE = 100

_decode = msgspec.json.Decoder(AcceptedEvent).decode


@dataclass(frozen=True)
class Location:
    """One place: a `batch` of a subscriber, a `queue`, the `dead` letters of either; `id` is the batch or message."""

    kind: str
    name: str
    id: str
    attempts: int
    replay: str = ""
    why: str = ""


async def find(partition: Partition, id_: str) -> list[Location]:
    """Everywhere in this partition that an event is."""
    return [each async for each in each_place(partition, id_)]


async def each_place(partition: Partition, id_: str) -> AsyncIterator[Location]:
    """The same, one after the other, for callers that may not wait for the end."""
    async for found in _in_batches(partition, id_):
        yield found
    for name in sorted(await queue_contents.names_held(partition)):
        async for found in _in_queue(partition, name, id_):
            yield found
    for receiver in sorted(await dead_letters.sizes(partition)):
        async for found in _in_letters(partition, receiver, id_):
            yield found


async def _in_letters(partition: Partition, receiver: str, id_: str) -> AsyncIterator[Location]:
    name = receiver.removeprefix("@")
    async for letter in dead_letters.each(partition, receiver, most=MESSAGES_MAX):
        if (event := _meant([letter.event], id_)) is not None:
            yield Location("dead", name, letter.id, letter.attempts, event.replay, letter.detail)


async def _in_batches(partition: Partition, id_: str) -> AsyncIterator[Location]:
    reply = await partition.command("ZRANGE", partition.key("batches:index"), 0, BATCHES_MAX - 1)
    bids = words(reply)
    for first in range(0, len(bids), _PAGE):
        page = bids[first : first + _PAGE]
        lists = await partition.commands([["LRANGE", partition.key(f"batch:{bid}"), 0, -1] for bid in page])
        for bid, parts in zip(page, cast("list[list[bytes]]", lists), strict=True):
            # Before the events: the token, when it was made, and how many attempts and events it has.
            if (event := _meant(parts[4:], id_)) is not None:
                yield Location("batch", parts[0].decode(), bid, int(parts[2]), event.replay)


async def _in_queue(partition: Partition, name: str, id_: str) -> AsyncIterator[Location]:
    cursor, seen = b"0", 0
    while seen < MESSAGES_MAX:
        reply = await partition.command("HSCAN", partition.key(f"queue:data:{name}"), cursor, "COUNT", 1_000)
        cursor, flat = cast("tuple[bytes, list[bytes]]", reply)
        for message, text in zip(flat[0::2], flat[1::2], strict=True):
            if (event := _meant([text], id_)) is not None:
                tried = await partition.command("HGET", partition.key(f"queue:tried:{name}"), message)
                attempts = RECORD.unpack_from(cast("bytes", tried))[0] if tried else 0
                yield Location("queue", name, message.decode(), attempts, event.replay)
        seen += len(flat) // 2
        if cursor == b"0":
            return


def _meant(chunks: Sequence[bytes], id_: str) -> AcceptedEvent | None:
    """The event with this id among chunks of lines; most are passed over by their bytes."""
    sign = msgspec.json.encode(id_)[1:-1]
    for chunk in chunks:
        for line in chunk.split(b"\n") if sign in chunk else ():
            if sign in line and (event := _decode(line)).id == id_:
                return event
    return None
