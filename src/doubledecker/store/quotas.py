"""What bounds a client over all processes: open streams, events a second, what it may do so often a minute."""

from collections.abc import Sequence
from typing import cast

from doubledecker.model import quota
from doubledecker.model.quota import Quotas
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, load

# Open streams of clients, counted at home for all web processes, each for the length of a lease.

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


# The pace at which clients publish, kept at home for all processes.

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


# What is remembered of requests: idempotency keys and used Digest nonces.

WINDOW_MS = 86_400_000
# Repeats come within minutes: a key is not forgotten before, however many there are.
KEEP_MS = 300_000

_CLAIM, _USE_NONCE = load("idempotency_claim"), load("nonce_use")


async def claim_key(home: Partition, *, token: str, key: str, record: str, quotas: Quotas) -> str | None:
    """Remember a request under its key, or say what is remembered already.

    Raises QuotaExceeded when the client has used its number of keys within the time for which none is forgotten.
    """
    keys_max = quotas.client_idempotency_keys_max
    reply = await home.run(
        _CLAIM, token=token, key=key, record=record, window_ms=WINDOW_MS, keys_max=keys_max, keep_ms=KEEP_MS
    )
    if reply == -1:
        raise quota.too_many_keys(quotas, window_s=KEEP_MS // 1000)
    return cast("bytes", reply).decode() if reply else None


async def update_key(home: Partition, *, token: str, key: str, record: str) -> None:
    await home.write("HSET", home.key(f"idempotency:{token}"), key, record)


async def forget_key(home: Partition, *, token: str, key: str) -> None:
    kept, ages = home.key(f"idempotency:{token}"), home.key(f"ages:{token}")
    await home.commands([["HDEL", kept, key], ["ZREM", ages, key]])


async def use_nonce(home: Partition, *, nonce: str, count: int, lifetime_ms: int) -> bool:
    """Mark a nonce count as used; False when it was used before."""
    return await home.run(_USE_NONCE, nonce=nonce, count=count, lifetime_ms=lifetime_ms) == 0


# How often clients ask for what is costly, kept at home for all web processes.

_MINUTE_MS = 60_000
_MINUTE_PACE = load("minute_pace")


async def pay(home: Partition, client: str, *, kind: str, minute_max: float) -> int:
    """Count one more of what a client may do so often a minute; returns 0, or in how many milliseconds it may."""
    each_ms = round(_MINUTE_MS / minute_max)
    return cast("int", await home.run(_MINUTE_PACE, kind=kind, token=client, each_ms=each_ms))
