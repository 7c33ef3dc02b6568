"""Publishing: one call, which writes all of its events or none.

A call carries the events of many requests (group commit), as lines: what the journal holds. The plan says where each
`ends`, not counting what is between them, and what becomes of them (store/offers.py); besides, the `wholes` that are
written whole or not at all, `fence` for what a Spark task publishes once (store/fences.py), and the `channels` on
which someone may listen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import cast

import msgspec

from doubledecker.model.event import DEFAULT_TENANT, Kind
from doubledecker.model.queue import Queue
from doubledecker.model.routing import Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import journal
from doubledecker.store import offers as offering
from doubledecker.store.fences import Fence
from doubledecker.store.offers import Offer
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load

# Ids that a client gave are remembered for so long, and so many of them in each partition: some 10 MB.
ID_WINDOW_MS = 86_400_000
IDS_MAX = 100_000

_PUBLISH = load("event_publish")


class Accepted(Enum):
    """What became of a publish call."""

    OK = "ok"
    STALE = "stale"
    FULL = "full"
    MOVED = "moved"
    FENCED = "fenced"


@dataclass(frozen=True)
class PublishReply:
    """The outcome, how much the journal holds afterwards, and which events were refused.

    Why they were: `queue <name>`, which is full, or `tenants <name>`, a queue that knows as many tenants as it may.
    """

    outcome: Accepted
    journal_bytes: int = 0
    repeats: frozenset[int] = frozenset()
    refused: Mapping[int, str] = field(default_factory=dict)
    # Whether anyone listens on a channel of these events, as far as this server knows.
    is_heard: bool = False


@dataclass(frozen=True)
class PublishLimits:
    """What a publish call checks besides the registry's version."""

    journal_bytes_max: int = 0
    id_window_ms: int = ID_WINDOW_MS
    ids_max: int = IDS_MAX
    # How many tenants a client's queue may know; 0 is no bound.
    tenants_max: int = 0


async def publish(
    partition: Partition,
    offers: Sequence[Offer],
    *,
    version: int,
    limits: PublishLimits,
    wholes: Sequence[tuple[int, int]] = (),
    channels: Sequence[str] = (),
    fence: Fence | None = None,
) -> PublishReply:
    """Write events to the journal, every receiver's batch and every matching queue, or nothing at all."""
    plan = {
        **offering.plan(partition, offers),
        "channels": list(channels),
        "wholes": [[first + 1, last + 1] for first, last in wholes],
    }
    if fence is not None:
        plan["fence"] = fence.packed
    return await _call(partition, [offer.message for offer in offers], plan, version, limits)


async def resend(partition: Partition, offers: Sequence[Offer], *, version: int, fence: Fence) -> PublishReply:
    """Put past events into the batches and queues that the offers name, and nowhere else; they were accepted before."""
    plan = {**offering.plan(partition, offers), **_PAST, "fence": fence.packed}
    return await _call(partition, [offer.message for offer in offers], plan, version, PublishLimits())


async def fan_out(
    partition: Partition,
    fid: str,
    *,
    left: int,
    message: bytes,
    receivers: Sequence[Subscriber],
    queues: Sequence[Queue],
    publisher: str,
    taken: int,
    version: int,
    limits: PublishLimits,
) -> PublishReply:
    """Write one wide event to the next receivers; `taken` names leave the list, which had `left` before."""
    tenant = _STORED.decode(message).tenant
    plan: dict[str, Packable] = {
        **_NOTHING,
        **offering.plan_part(
            partition, Route(Kind("", "", tenant), tuple(receivers), tuple(queues)), message, publisher
        ),
        "fanout": [fid, left + 1, taken],
    }
    return await _call(partition, [message], plan, version, limits)


async def fan_out_next(partition: Partition, fid: str, *, count: int) -> tuple[bytes, list[str], int] | None:
    """A wide event, the next receivers (a queue as `@name`) from the end of its list, and how many are left."""
    key = partition.key(f"fanout:{fid}")
    length, message, tokens = await partition.commands([["LLEN", key], ["LINDEX", key, 0], ["LRANGE", key, -count, -1]])
    left = cast("int", length) - 1
    if left < 1:
        return None
    names = [token.decode() for token in cast("list[bytes]", tokens)]
    return cast("bytes", message), names[-left:], left


_NOTHING: dict[str, Packable] = {
    "publishers": [],
    "topics": [],
    "ids": [],
    "given": [],
    "lanes": [],
    "queues": [],
    "bounds": [],
    "bounded": [],
    "wholes": [],
    "later": [],
    "channels": [],
}


# What is left out of a plan for events that are in the journal already.
_PAST = {name: value for name, value in _NOTHING.items() if name not in {"lanes", "queues"}}


class _Stored(msgspec.Struct, gc=False):
    """The only part of a stored message that fanning out looks at."""

    topic: str
    tenant: str = DEFAULT_TENANT


_STORED = msgspec.json.Decoder(_Stored)


def topic_of(message: bytes) -> str:
    """The topic of a stored message."""
    return _STORED.decode(message).topic


def _compressed(messages: Sequence[bytes], lines: bytes, publishers: Sequence[list[list[int]]]) -> list[bytes]:
    """Of each publisher the lines for the journal, compressed; a part without numbers has all events."""
    if len(publishers) == 1:
        return [journal.compress(lines)]
    return [journal.compress(b"\n".join([messages[i - 1] for i in part[1]])) for part in publishers]


async def _call(
    partition: Partition,
    messages: Sequence[bytes],
    plan: dict[str, Packable],
    version: int,
    limits: PublishLimits,
) -> PublishReply:
    ends = list(accumulate(map(len, messages)))
    lines = b"\n".join(messages)
    reply = await partition.run(
        _PUBLISH,
        *_compressed(messages, lines, cast("list[list[list[int]]]", plan["publishers"])),
        version=version,
        journal_bytes_max=limits.journal_bytes_max,
        id_window_ms=limits.id_window_ms,
        ids_max=limits.ids_max,
        tenants_max=limits.tenants_max,
        plan={**plan, "ends": ends, "partition": partition.index},
        lines=lines,
    )
    outcome, *rest = cast("list[bytes]", reply)
    if not rest:
        return PublishReply(Accepted(outcome.decode()))
    journal_bytes, repeats, refused, is_heard = cast("tuple[int, list[int], list[int | bytes], int]", rest)
    pairs = zip(cast("list[int]", refused[0::2]), cast("list[bytes]", refused[1::2]), strict=True)
    # Lua counts from one.
    return PublishReply(
        Accepted.OK,
        journal_bytes,
        frozenset(index - 1 for index in repeats),
        {index - 1: why.decode() for index, why in pairs},
        is_heard == 1,
    )
