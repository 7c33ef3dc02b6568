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
    shares = partition.count if receiver.owner is None else 1
    return 1000 * shares / receiver.rate_per_s if receiver.rate_per_s else 0


async def save(
    partition: Partition, token: str, known: Subscriber | None, *, version: int, is_anew: bool = False
) -> bool:
    """Keep how many permits a receiver has by the registry of this version; False when that has changed since.

    One that begins anew, as at another address, has not failed yet. One that the registry has not is kept until the
    last call to it has ended: it may be back before, with permits anew.
    """
    limit, halt, every = _bounds(known, partition) if known else (0, Halt.NONE, 0)
    limits: list[Packable] = [token, limit, int(is_anew or known is None), halt, every]
    return await partition.run(_SAVE, limits=limits, version=version) == 1


async def reconcile(partition: Partition, whom: Mapping[str, Subscriber], *, version: int) -> None:
    """Keep how many permits receivers have and who is halted, where that differs; unless the registry has changed."""
    limits: list[Packable] = []
    for token, state in (await states(partition, list(whom))).items():
        limit, halt, every = _bounds(whom[token], partition)
        # One that has none here yet gets them with its first batch.
        if (state.limit > 0 and (state.limit, state.every_ms) != (limit, every)) or state.halt != halt:
            limits += [token, limit, 0, halt, every]
    for first in range(0, len(limits), _BOUNDS * _PAGE):
        await partition.run(_SAVE, limits=limits[first : first + _BOUNDS * _PAGE], version=version)


def _bounds(known: Subscriber, partition: Partition) -> tuple[int, Halt, float]:
    """How many permits a receiver has in a partition, why it has none, and how far apart calls begin."""
    return permits(known.calls_max, partition), known.halt, every_ms(known, partition)


async def states(partition: Partition, tokens: Sequence[str]) -> dict[str, ReceiverRecord]:
    """How receivers stand in a partition; those that it does not know stand as at first."""
    if not tokens:
        return {}
    packed = cast("list[bytes | None]", await partition.command("HMGET", partition.key("receivers"), *tokens))
    return {
        token: _STATE.decode(each) if each else ReceiverRecord() for token, each in zip(tokens, packed, strict=True)
    }


async def take_permit(
    partition: Partition, token: str, *, lease: str, limit: int, every: float = 0, version: int, lease_ms: int
) -> Permit:
    """Ask for a permit to call a receiver that is as the registry of this version says."""
    reply = await partition.run(
        _TAKE,
        token=token,
        lease=lease,
        version=version,
        bounds=[limit, every],
        lease_ms=lease_ms,
        wish_ms=WISH_MS,
    )
    word, number = cast("tuple[bytes, int]", reply)
    answer = Answer(word.decode())
    if answer is Answer.GO:
        return Permit(answer, lease, failures=number)
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
