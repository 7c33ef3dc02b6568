"""Publishing: the plan of one publish call, and the call itself.

A call carries the events of many requests (group commit). The plan says, by index into the events:
`publishers` whose each is (for the journal), `topics`, `ids` given by publishers (to tell repeats), `lanes` of events
with the receivers that get exactly those, `queues` that get exactly the same events of a tenant, `bounds` of queues
that refuse rather than drop and the events `bounded` by them, `wholes` that are written whole or not at all, `later`
for events with too many receivers for one call, `fence` for what a Spark task publishes once (see store/fences.py),
`channels` on which someone may listen, and `uids` enough for every batch that the call may open.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

import msgspec

from doubledecker.model.event import DEFAULT_TENANT, Event
from doubledecker.model.queue import Queue
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid, uids
from doubledecker.store.fences import Fence
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load

# Measured: beyond these one call holds the server for more than a few milliseconds.
WRITES_MAX = 2000
BYTES_MAX = 1_048_576
# The bound on arguments that Lua can unpack, less what the plan needs.
EVENTS_MAX = 2000

_PUBLISH = load("event_publish")


class Offer(msgspec.Struct, frozen=True, gc=False):
    """One event as the publish call takes it; a struct, because there is one for every event."""

    event: Event
    message: bytes
    publisher: str
    receivers: tuple[Subscriber, ...]
    is_id_given: bool
    queues: tuple[Queue, ...] = ()

    @property
    def writes(self) -> int:
        """How many places it is written to at once: journal, batches and queues, unless these are too many."""
        return 1 if self.is_wide else 1 + len(self.receivers) + len(self.queues)

    @property
    def is_wide(self) -> bool:
        """Whether it has more receivers than one call may write to."""
        receivers = len(self.receivers) + len(self.queues)
        return receivers > 1 and (receivers >= WRITES_MAX or receivers * len(self.message) > BYTES_MAX)


class Accepted(Enum):
    """What became of a publish call."""

    OK = "ok"
    STALE = "stale"
    FULL = "full"
    MOVED = "moved"
    FENCED = "fenced"


@dataclass(frozen=True)
class PublishReply:
    """The outcome, how much the journal holds afterwards, and which event which full queue refused."""

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
    id_window_ms: int = 86_400_000
    ids_max: int = 100_000


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
    plan = {**_plan(offers), "channels": list(channels), "wholes": [[first + 1, last + 1] for first, last in wholes]}
    if fence is not None:
        plan["fence"] = fence.packed
    return await _call(partition, [offer.message for offer in offers], plan, version, limits)


async def resend(partition: Partition, offers: Sequence[Offer], *, version: int, fence: Fence) -> PublishReply:
    """Put past events into the batches and queues that the offers name, and nowhere else; they were accepted before."""
    plan = {**_plan(offers), **_PAST, "fence": fence.packed}
    return await _call(partition, [offer.message for offer in offers], plan, version, PublishLimits())


async def fan_out(
    partition: Partition,
    fid: str,
    *,
    left: int,
    message: bytes,
    receivers: Sequence[Subscriber],
    queues: Sequence[Queue],
    taken: int,
    version: int,
) -> PublishReply:
    """Write one wide event to the next receivers; `taken` names leave the list, which had `left` before."""
    tenant = _TENANT.decode(message).tenant
    plan: dict[str, Packable] = {
        **_NOTHING,
        "lanes": [[[1], [_receiver(each) for each in receivers]]] if receivers else [],
        "queues": [[tenant, [1], [_bounded(queue) for queue in queues]]] if queues else [],
        "uids": uids(_batches_max(receivers, 1, len(message))),
        "fanout": [fid, left + 1, taken],
    }
    return await _call(partition, [message], plan, version, PublishLimits())


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


class _Tenanted(msgspec.Struct, gc=False):
    """The only part of a stored message that fanning out looks at."""

    tenant: str = DEFAULT_TENANT


_TENANT = msgspec.json.Decoder(_Tenanted)


async def _call(
    partition: Partition,
    messages: Sequence[bytes],
    plan: dict[str, Packable],
    version: int,
    limits: PublishLimits,
) -> PublishReply:
    reply = await partition.run(
        _PUBLISH,
        *messages,
        version=version,
        journal_bytes_max=limits.journal_bytes_max,
        id_window_ms=limits.id_window_ms,
        ids_max=limits.ids_max,
        plan={**plan, "partition": str(partition.index)},
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
        {index - 1: queue.decode() for index, queue in pairs},
        is_heard == 1,
    )


def _plan(offers: Sequence[Offer]) -> dict[str, Packable]:
    publishers: dict[str, list[int]] = defaultdict(list)
    topics: dict[str, list[int]] = defaultdict(list)
    routes: dict[tuple[Subscriber, ...], list[int]] = defaultdict(list)
    # By name: a queue's hash is made of all its fields.
    queues: dict[str, Queue] = {}
    lines: dict[tuple[str, str], list[int]] = defaultdict(list)
    ids: list[Packable] = []
    later: list[Packable] = []
    for i, offer in enumerate(offers, 1):
        publishers[offer.publisher].append(i)
        topics[offer.event.topic].append(i)
        if offer.is_id_given:
            ids.append([i, offer.publisher, offer.event.id])
        if offer.is_wide:
            names = [receiver.token for receiver in offer.receivers] + [f"@{queue.name}" for queue in offer.queues]
            later.append([i, uid(), names])
            continue
        if offer.receivers:
            routes[offer.receivers].append(i)
        for queue in offer.queues:
            queues[queue.name] = queue
            lines[offer.event.tenant, queue.name].append(i)
    lanes = _lanes(routes)
    sizes = [len(offer.message) for offer in offers]
    batches = sum(_batches_max(to, len(at), sum(sizes[i - 1] for i in at)) for at, to in lanes)
    return {
        "publishers": list(publishers.items()),
        "topics": list(topics.items()),
        "ids": ids,
        "given": [publisher for publisher in publishers if ids],
        "lanes": [[at, [_receiver(each) for each in to]] for at, to in lanes],
        "queues": _lines(lines, queues),
        **_bounds(lines, queues),
        "later": later,
        "uids": uids(batches),
    }


def _lines(lines: Mapping[tuple[str, str], list[int]], queues: Mapping[str, Queue]) -> list[Packable]:
    """Tenants, with the queues that get exactly the same of their events, and those events, in order."""
    found: dict[tuple[str, tuple[int, ...]], list[Packable]] = defaultdict(list)
    for (tenant, name), at in lines.items():
        found[tenant, tuple(at)].append(_bounded(queues[name]))
    return [[tenant, at, to] for (tenant, at), to in found.items()]


def _bounds(lines: Mapping[tuple[str, str], list[int]], queues: Mapping[str, Queue]) -> dict[str, Packable]:
    """The bounds of queues that refuse when they are full, and the events that these may refuse, in order."""
    refusing = [queue for queue in queues.values() if queue.refuses]
    numbers = {queue.name: number for number, queue in enumerate(refusing, 1)}
    bounded: dict[int, tuple[str, list[int]]] = {}
    for (tenant, name), at in lines.items():
        if name in numbers:
            for i in at:
                bounded.setdefault(i, (tenant, []))[1].append(numbers[name])
    return {
        "bounds": [[queue.name, queue.max_length, queue.facet_max_length] for queue in refusing],
        "bounded": [[i, *bounded[i]] for i in sorted(bounded)],
    }


def _bounded(queue: Queue) -> Packable:
    """A queue and what it drops beyond; one that refuses has checked its bounds before, and drops nothing."""
    return [queue.name, 0, 0] if queue.refuses else [queue.name, queue.max_length, queue.facet_max_length]


def _lanes(routes: dict[tuple[Subscriber, ...], list[int]]) -> list[tuple[list[int], list[Subscriber]]]:
    """Receivers that get exactly the same events, together with those events, in order."""
    if len(routes) == 1:
        return [(at, list(to)) for to, at in routes.items()]
    events: dict[Subscriber, list[int]] = defaultdict(list)
    for to, at in routes.items():
        for receiver in to:
            events[receiver].extend(at)
    lanes: dict[tuple[int, ...], list[Subscriber]] = defaultdict(list)
    for receiver, at in events.items():
        lanes[tuple(sorted(at))].append(receiver)
    return [(list(at), to) for at, to in lanes.items()]


def _batches_max(receivers: Sequence[Subscriber], events: int, size: int) -> int:
    """How many batches can be opened at most; filling up greedily leaves no two neighbours half empty."""
    return sum(
        min(events, events // receiver.max_events + 2 * (size // receiver.max_bytes) + 2) for receiver in receivers
    )


def _receiver(subscriber: Subscriber) -> Packable:
    return [subscriber.token, subscriber.max_events, subscriber.max_bytes, subscriber.timeout_ms]
