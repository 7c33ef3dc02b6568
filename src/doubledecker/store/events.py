"""Publishing: one call, which writes all of its events or none.

A call carries the events of many requests (group commit), as lines: what the journal holds. The plan says where each
`ends`, not counting what is between them, and what becomes of them (store/write_plan.py); besides, the `wholes` that
are written whole or not at all, `fence` for what a Spark task publishes once (store/write_offsets.py), and the
`channels` on which someone may listen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import cast

import msgspec

from doubledecker.model.event import DEFAULT_TENANT, EventKind
from doubledecker.model.routing import Registry, Route
from doubledecker.model.uid import uid
from doubledecker.store import fanouts, journal, write_plan
from doubledecker.store.deferred_copies import own_line
from doubledecker.store.fanouts import Copies, CopySlice, Parcel
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load
from doubledecker.store.write_offsets import Fence
from doubledecker.store.write_plan import Offer

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
    BEHIND = "behind"
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
    # Lines of copies that are yet to be made, which the call would have overtaken; so nothing was written.
    behind: frozenset[str] = frozenset()


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
    rest: dict[str, Packable] = {
        "channels": list(channels),
        "wholes": [[first + 1, last + 1] for first, last in wholes],
    }
    if fence is not None:
        rest["fence"] = fence.packed
    messages = [offer.message for offer in offers]
    behind = frozenset[str]()
    while True:
        plan = {**write_plan.plan(partition, offers, behind), **rest}
        reply = await _call(partition, messages, plan, version, limits)
        if reply.outcome is not Accepted.BEHIND:
            return reply
        behind |= reply.behind


async def resend(partition: Partition, offers: Sequence[Offer], *, version: int, fence: Fence) -> PublishReply:
    """Put past events into the batches and queues that the offers name, and nowhere else; they were accepted before."""
    plan = {**write_plan.plan(partition, offers), **_PAST, "fence": fence.packed}
    return await _call(partition, [offer.message for offer in offers], plan, version, PublishLimits())


async def send_again(partition: Partition, offers: Sequence[Offer], *, version: int) -> PublishReply:
    """The same for a request: an offer with an id that was sent before is a repeat, as when it is published."""
    whole = write_plan.plan(partition, offers)
    plan = {**whole, **_PAST, "ids": whole["ids"], "given": whole["given"]}
    return await _call(partition, [offer.message for offer in offers], plan, version, PublishLimits())


async def fan_out(
    partition: Partition, parcel: Parcel, share: CopySlice, snapshot: Registry, *, limits: PublishLimits
) -> PublishReply:
    """Make the next copies of a parcel, for those receivers that are still registered; MOVED if they were made."""
    subscribers = [snapshot.subscribers.get(name) for name in share.names]
    receivers = tuple(each for each in subscribers if each and each.since <= parcel.version)
    named = [snapshot.queues.get(name[1:]) for name in share.names if name.startswith("@")]
    queues = tuple(each for each in named if each and each.since <= parcel.version)
    routes = {tenant: Route(EventKind("", "", tenant), receivers, queues) for tenant, _ in share.events}
    offers = [
        Offer(routes[tenant], parcel.messages[i], parcel.publisher)
        for tenant, i in share.events
        if i in parcel.messages
    ]
    plan: dict[str, Packable] = {
        **_NOTHING,
        **write_plan.plan_part(partition, offers),
        "fanout": [parcel.line, parcel.fid, parcel.at, -1 if share.at is None else share.at],
    }
    return await _call(partition, [offer.message for offer in offers], plan, snapshot.version, limits)


async def adopt(partition: Partition, fid: str, *, publisher: str, version: int) -> PublishReply:
    """Make a parcel of a wide event that was kept as a list: its message, and the names that still have to get it."""
    reply = await partition.command("LRANGE", partition.key(f"fanout:{fid}"), 0, -1)
    message, *names = cast("list[bytes]", reply) or [b""]
    if not names:
        return PublishReply(Accepted.MOVED)
    feed = Copies([name.decode() for name in reversed(names)], [_STORED.decode(message).tenant], [[1]])
    later: Packable = [[own_line(publisher), uid(), fanouts.encode([feed]), []]]
    return await _call(partition, [message], {**_NOTHING, "later": later, "former": fid}, version, PublishLimits())


async def former_topic(partition: Partition, fid: str) -> str | None:
    """The topic of a wide event that was kept as a list; None when it is gone."""
    message = cast("bytes | None", await partition.command("LINDEX", partition.key(f"fanout:{fid}"), 0))
    return None if message is None else _STORED.decode(message).topic


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
    "prompt": [],
    "channels": [],
}


# What is left out of a plan for events that are in the journal already.
_PAST = {name: value for name, value in _NOTHING.items() if name not in {"lanes", "queues"}}


class _Stored(msgspec.Struct, gc=False):
    """The only part of a stored message that is looked at here."""

    topic: str
    tenant: str = DEFAULT_TENANT


_STORED = msgspec.json.Decoder(_Stored)


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
    if outcome == b"behind":
        return PublishReply(Accepted.BEHIND, behind=frozenset(line.decode() for line in cast("list[bytes]", rest[0])))
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
