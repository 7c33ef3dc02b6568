"""Receivers as each partition keeps them: permits, failures, and who may be called (lua/receiver_ring.lua).

Permits are counted where the batches are. Over several partitions a receiver's `concurrency` is divided, one for each
at least. Workers hold permits by their slots; watches and Spark tasks have none, and hold theirs as leases.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

import msgspec

from doubledecker.model.settlement import Settlement
from doubledecker.model.subscriber import Halt, Subscriber
from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load

_SAVE, _TAKE = load("receiver_save"), load("permit_take")
_RENEW, _SETTLE = load("permit_renew"), load("permit_settle")
# Receivers written in one call.
_PAGE = 500
# Words about each of them.
_BOUNDS = 5
# Those who wait for a permit ask twenty times a second; two of these may be late.
WISH_MS = 150
# A caller whose replies get lost settles again within some seconds.
_SETTLED_MS = 60_000


class Answer(Enum):
    GO = "go"
    FULL = "full"
    FAILING = "failing"
    STALE = "stale"
    # Paused, or disabled.
    PAUSED = "paused"
    # As many calls began of late as its rate allows.
    PACED = "paced"


@dataclass(frozen=True)
class Permit:
    """A permit, if the answer is GO, and how often the receiver failed in a row; else how long the answer will hold."""

    answer: Answer
    lease: str
    failures: int = 0
    wait_ms: int = 0
    # Of the receiver as its caller knows it.
    anew_since: int = 0


class ReceiverRecord(msgspec.Struct, frozen=True, array_like=True):
    """How a receiver stands in one partition, as the scripts keep it."""

    tag: float = 0
    limit: int = 0
    held: int = 0
    leased: int = 0
    failures: int = 0
    retry_at: float = 0
    refusals: int = 0
    prober: str = ""
    failing_since: float = 0
    seat: int = 0
    begun: int = 0
    delivered_at: float = 0
    wish: float = 0
    halt: int = Halt.NONE
    root: str = ""
    parts: int = 0
    ramp: int = 0
    every_ms: float = 0
    next_at: float = 0
    lanes: int = 0
    served: str = ""
    anew_since: int = 0

    @property
    def calls(self) -> int:
        return self.held + self.leased


_STATE = msgspec.msgpack.Decoder(ReceiverRecord)


def permits(concurrency: int, partition: Partition) -> int:
    """How many of a receiver's permits a partition has."""
    return max(1, concurrency // partition.count + (partition.index < concurrency % partition.count))


def every_ms(receiver: Subscriber, partition: Partition) -> float:
    """How far apart a partition's calls to a receiver begin, 0 for no bound: each has an equal share of the rate."""
    # A queue's receiver is called by the permits of one partition.
    shares = 1 if receiver.is_queues else partition.count
    return 1000 * shares / receiver.rate_per_s if receiver.rate_per_s else 0


async def save(partition: Partition, token: str, known: Subscriber | None, *, version: int) -> bool:
    """Keep how many permits a receiver has by the registry of this version; False when that has changed since.

    One that began anew since it was kept last, as at another address, has not failed yet. One that the registry has not
    is kept until the last call to it has ended: it may be back before, with permits anew.
    """
    return await partition.run(_SAVE, limits=_limits(token, known, partition), version=version) == 1


async def reconcile(partition: Partition, whom: Mapping[str, Subscriber], *, version: int) -> None:
    """Keep how many permits all receivers have, who is halted and who began anew, where that differs.

    Those that the registry has not are forgotten; nothing is changed when the registry has changed.
    """
    records = shared_connection.fields(await partition.command("HGETALL", partition.key("receivers")))
    kept = {token: _STATE.decode(record) for token, record in records.items()}
    limits: list[Packable] = []
    for token in [*whom, *(kept.keys() - whom.keys())]:
        if _differs(kept.get(token, ReceiverRecord()), whom.get(token), partition):
            limits += _limits(token, whom.get(token), partition)
    for first in range(0, len(limits), _BOUNDS * _PAGE):
        await partition.run(_SAVE, limits=limits[first : first + _BOUNDS * _PAGE], version=version)


def _differs(state: ReceiverRecord, known: Subscriber | None, partition: Partition) -> bool:
    # One that has no permits here yet gets them with its first batch.
    has_permits = state.limit > 0
    if known is None:
        return has_permits
    bounds = _permits(known, partition), every_ms(known, partition), known.anew_since
    is_changed = (state.limit, state.every_ms, state.anew_since) != bounds
    return (has_permits and is_changed) or state.halt != known.halt


def _limits(token: str, known: Subscriber | None, partition: Partition) -> list[Packable]:
    """A receiver as lua/receiver_save.lua takes it."""
    if known is None:
        return [token, 0, 0, Halt.NONE, 0]
    return [token, _permits(known, partition), known.anew_since, known.halt, every_ms(known, partition)]


def _permits(known: Subscriber, partition: Partition) -> int:
    """How many permits a receiver has in a partition; those of a queue's are all in one."""
    return known.calls_max if known.is_queues else permits(known.calls_max, partition)


async def states(partition: Partition, tokens: Sequence[str]) -> dict[str, ReceiverRecord]:
    """How receivers stand in a partition; those that it does not know stand as at first."""
    if not tokens:
        return {}
    packed = cast("list[bytes | None]", await partition.command("HMGET", partition.key("receivers"), *tokens))
    return {
        token: _STATE.decode(each) if each else ReceiverRecord() for token, each in zip(tokens, packed, strict=True)
    }


async def take_permit(
    partition: Partition,
    token: str,
    *,
    lease: str,
    limit: int,
    every: float = 0,
    anew_since: int = 0,
    version: int,
    lease_ms: int,
) -> Permit:
    """Ask for a permit to call a receiver that is as the registry of this version says."""
    reply = await partition.run(
        _TAKE,
        token=token,
        lease=lease,
        version=version,
        bounds=[limit, every, anew_since],
        lease_ms=lease_ms,
        wish_ms=WISH_MS,
    )
    word, number = cast("tuple[bytes, int]", reply)
    answer = Answer(word.decode())
    if answer is Answer.GO:
        return Permit(answer, lease, failures=number, anew_since=anew_since)
    return Permit(answer, lease, wait_ms=number)


async def renew(partition: Partition, token: str, leases: Collection[str], *, lease_ms: int) -> int:
    """Keep permits for longer; returns how many were there to keep."""
    if not leases:
        return 0
    return cast("int", await partition.run(_RENEW, token=token, names=list(leases), lease_ms=lease_ms))


async def settle(
    partition: Partition,
    token: str,
    permit: Permit,
    settlement: Settlement,
    *,
    why: str = "",
    attempt: bytes = b"",
    counts: Mapping[str, int] | None = None,
) -> tuple[int, int]:
    """Give a permit back, and record the outcome of the call; returns the receiver's failures before and after.

    Safe to repeat: the outcome, the journal entry and the counts are written once.
    """
    reply = await partition.run(
        _SETTLE,
        of_token=token,
        lease=permit.lease,
        what=settlement.what,
        anew_since=permit.anew_since,
        failures=permit.failures,
        raises=int(settlement.raises),
        probe_ms=settlement.probe_ms,
        why=why,
        attempt=attempt,
        counts=[word for pair in (counts or {}).items() for word in pair],
        settled_ms=_SETTLED_MS,
    )
    before, after = cast("tuple[int, int]", reply)
    return before, after
