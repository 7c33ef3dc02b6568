"""Backlogs: how many bytes wait for each client, in queues and batches; measured by a worker, read by all processes."""

from collections.abc import Mapping, Sequence
from typing import cast

from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, Packable, load

# A bus without workers measures nothing, and must not go by what was measured long ago.
KEPT_MS = 60_000
# Batches of a subscriber whose sizes are read, half of them the oldest; the rest is taken to be like these.
_SAMPLES = 50

_SAVE = load("backlog_save")


async def of_subscribers(partition: Partition, batches: Mapping[str, int]) -> dict[str, int]:
    """Bytes that wait for subscribers in a partition, given how many batches each has; an estimate if many."""
    half = _SAMPLES // 2
    commands: list[list[Encoded]] = []
    for token in batches:
        index = partition.key(f"batches:index:{token}")
        commands += [["ZRANGE", index, 0, half - 1], ["ZRANGE", index, -half, -1]]
    replies = cast("list[list[bytes]]", await partition.commands(commands))
    named = {
        token: list(dict.fromkeys([*oldest, *newest]))
        for token, oldest, newest in zip(batches, replies[0::2], replies[1::2], strict=True)
    }
    some = {token: bids for token, bids in named.items() if bids}
    sizes = await partition.commands([["HMGET", partition.key("batches:bytes"), *bids] for bids in some.values()])
    return {
        token: sum(int(size or 0) for size in cast("list[bytes | None]", found)) * batches[token] // len(bids)
        for (token, bids), found in zip(some.items(), sizes, strict=True)
    }


async def save(home: Partition, waiting: Mapping[str, int], *, most: int) -> None:
    """Replace what is known of all clients, and the bound of each."""
    flat: list[Packable] = [word for pair in waiting.items() for word in pair]
    await home.run(_SAVE, counts=flat, most=most, kept_ms=KEPT_MS)


async def overfull(home: Partition, most: int) -> tuple[int, dict[str, int]]:
    """How many bytes may wait for one client (0: no bound), and the clients for whom more wait, as a worker last found.

    It takes one round trip when `most` is still the bound.
    """
    found, sizes = await home.commands([["HGET", home.key("memory"), "client_bytes_max"], _beyond(home, most)])
    bound = int(cast("bytes | None", found) or 0)
    if bound == 0:
        return 0, {}
    if bound != most:
        sizes = await home.command(*_beyond(home, bound))
    return bound, {client: int(float(size)) for client, size in shared_connection.fields(sizes).items()}


def _beyond(home: Partition, most: int) -> list[Encoded]:
    return ["ZRANGE", home.key("clients:waiting"), f"({most}", "+inf", "BYSCORE", "WITHSCORES"]


async def of_clients(home: Partition, clients: Sequence[str]) -> list[int]:
    if not clients:
        return []
    scores = await home.command("ZMSCORE", home.key("clients:waiting"), *clients)
    return [int(float(score or 0)) for score in cast("list[bytes | None]", scores)]
