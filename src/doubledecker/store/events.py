"""Publishing: one call, which writes all of its events or none, and the plan of who gets which.

A call carries the events of many requests (group commit), as lines: what the journal holds. The plan says where each
`ends`, not counting what is between them, and by index into the events: `publishers` whose each is (for the journal)
and `topics`, where a name alone has them all; `ids` given by publishers (to find repeats), `copies` of events, with the
receivers that get exactly those, `queues` that get exactly the same events, with these by tenant, `bounds` of queues
that turn new events away when they are full and the events `bounded` by them, `uids` enough for every batch that may
be opened, the copies made `later`, and the lines of these in which nothing may wait if others are to be made at once:
`prompt` (store/deferred_copies.py); besides, the `wholes` that are written whole or not at all, `fence` for what a
Spark task publishes once (store/write_offsets.py), and the `channels` on which someone may listen.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, chain
from typing import cast

import msgspec

from doubledecker.model.event import DEFAULT_TENANT, EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry, Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid, uids
from doubledecker.store import fanouts, journal, receivers
from doubledecker.store.deferred_copies import Division, Fed, Part, batches_line, divide, feeds_of, own_line
from doubledecker.store.fanouts import Copies, CopySlice, Parcel
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load
from doubledecker.store.shared_connection import Reply
from doubledecker.store.write_offsets import Fence

# Ids that a client gave are remembered for so long, and so many of them in each partition: some 10 MB.
ID_WINDOW_MS = 86_400_000
IDS_MAX = 100_000

_PUBLISH, _NOTIFY = load("event_publish"), load("event_notify")
# Measured: beyond these one call holds the server for more than a few milliseconds.
WRITES_MAX = 2000
BYTES_MAX = 1_048_576

# An event's number and tenant, then by their numbers the bounds that refuse it and those that keep it out of a queue.
_Bounded = tuple[int, str, list[int], list[int]]


class RoutedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event as the publish call takes it, with the id by which repeats are recognised if the publisher gave it one.

    A struct, because there is one for every event.
    """

    route: Route
    message: bytes
    publisher: str
    id: str = ""

    @property
    def is_wide(self) -> bool:
        """Whether it has more receivers than one call may write to."""
        copies = self.route.copies
        return copies > 1 and (copies >= WRITES_MAX or copies * len(self.message) > BYTES_MAX)


class Accepted(Enum):
    """The outcome of a publish call."""

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
    routed: Sequence[RoutedEvent],
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
    messages = [routed_event.message for routed_event in routed]
    behind = frozenset[str]()
    while True:
        plan = {**write_plan(partition, routed, behind), **rest}
        reply = await _call(partition, messages, plan, version, limits)
        if reply.outcome is not Accepted.BEHIND:
            return reply
        behind |= reply.behind


async def resend(partition: Partition, routed: Sequence[RoutedEvent], *, version: int, fence: Fence) -> PublishReply:
    """Put past events into the batches and queues of their routes, and nowhere else; they were accepted before."""
    plan = {**write_plan(partition, routed), **_PAST, "fence": fence.packed}
    return await _call(partition, [routed_event.message for routed_event in routed], plan, version, PublishLimits())


async def send_again(
    partition: Partition, routed: Sequence[RoutedEvent], *, version: int, limits: PublishLimits
) -> PublishReply:
    """The same for a request, as if published anew: an id that was sent before is a repeat, a full queue refuses."""
    whole = write_plan(partition, routed)
    asked = {name: whole[name] for name in ("ids", "given", "bounds", "bounded")}
    plan = {**whole, **_PAST, **asked, "askers": whole["publishers"]}
    return await _call(partition, [event.message for event in routed], plan, version, limits)


async def fan_out(
    partition: Partition, parcel: Parcel, share: CopySlice, snapshot: Registry, *, limits: PublishLimits
) -> PublishReply:
    """Make the next copies of a parcel, for those receivers that are still registered; MOVED if they were made."""
    subscribers = [snapshot.subscribers.get(name) for name in share.names]
    receivers = tuple(each for each in subscribers if each and each.since <= parcel.version)
    named = [snapshot.queues.get(name[1:]) for name in share.names if name.startswith("@")]
    queues = tuple(each for each in named if each and each.since <= parcel.version)
    routes = {tenant: Route(EventKind("", "", tenant), receivers, queues) for tenant, _ in share.events}
    routed = [
        RoutedEvent(routes[tenant], parcel.messages[i], parcel.publisher)
        for tenant, i in share.events
        if i in parcel.messages
    ]
    plan: dict[str, Packable] = {
        **_NOTHING,
        **plan_part(partition, routed),
        "fanout": [parcel.line, parcel.fid, parcel.at, -1 if share.at is None else share.at],
    }
    return await _call(partition, [routed_event.message for routed_event in routed], plan, snapshot.version, limits)


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
    "copies": [],
    "queues": [],
    "bounds": [],
    "bounded": [],
    "wholes": [],
    "later": [],
    "prompt": [],
    "channels": [],
}


# What is left out of a plan for events that are in the journal already.
_PAST = {name: value for name, value in _NOTHING.items() if name not in {"copies", "queues"}}


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


def write_plan(partition: Partition, routed: Sequence[RoutedEvent], behind: Container[str] = ()) -> dict[str, Packable]:
    """Who gets which of these events in a partition, for the script; copies for the lines `behind` are made later."""
    routes: dict[Route, list[int]] = defaultdict(list)
    wide: dict[Route, list[int]] = defaultdict(list)
    ids: list[Packable] = []
    for i, routed_event in enumerate(routed, 1):
        if routed_event.id:
            ids.append([i, routed_event.publisher, routed_event.id])
        (wide if routed_event.route.copies > 1 and routed_event.is_wide else routes)[routed_event.route].append(i)
    topics: dict[str, list[int]] = defaultdict(list)
    for route, at in chain(routes.items(), wide.items()):
        topics[route.kind.topic] += at
    publishers = _publishers(routed)
    division = _divide(routes, wide, routed, behind)
    return {
        "publishers": _parts(publishers),
        "topics": _parts(topics),
        "ids": ids,
        "given": list(publishers) if ids else [],
        **_batched(partition, routes, routed),
        **_queued(division.prompt, [routed_event.publisher for routed_event in routed]),
        "later": [_left(line, feeds, len(routed)) for line, feeds in division.later.items()],
        "prompt": list(division.lines),
    }


def plan_part(partition: Partition, routed: Sequence[RoutedEvent]) -> dict[str, Packable]:
    """Events, accepted before, for some of their receivers: each for the same ones.

    Nothing refuses them any more, but a full queue that could not have refused one does not take it.
    """
    routes: dict[Route, list[int]] = defaultdict(list)
    for i, routed_event in enumerate(routed, 1):
        routes[routed_event.route].append(i)
    parts = chain.from_iterable(_by_publisher(routes, routed).values())
    queued = _queued(list(parts), [routed_event.publisher for routed_event in routed])
    bounded: list[Packable] = [
        [i, tenant, [], skipping] for i, tenant, _, skipping in cast("list[_Bounded]", queued["bounded"])
    ]
    return {**_batched(partition, routes, routed), **queued, "bounded": bounded}


def _divide(
    routes: Mapping[Route, list[int]],
    wide: Mapping[Route, list[int]],
    routed: Sequence[RoutedEvent],
    behind: Container[str],
) -> Division:
    if not wide and not any(route.queues for route in routes):
        return Division()
    division = divide(_by_publisher(routes, routed), _by_publisher(wide, routed), behind)
    for route, at in wide.items():
        if route.receivers:
            feed = Copies([receiver.token for receiver in route.receivers], [route.kind.tenant], [at])
            division.later.setdefault(batches_line(routed[at[0] - 1].publisher), []).append(feed)
    return division


def _by_publisher(routes: Mapping[Route, list[int]], routed: Sequence[RoutedEvent]) -> dict[str, list[Part]]:
    """What goes into queues; a topic has one owner, so all events of a route are one publisher's."""
    # By identity, as kinds with the same queues share them, and a queue's hash would be made of all its fields.
    parts: dict[tuple[str, int], Part] = {}
    for route, at in routes.items():
        if route.queues:
            key = routed[at[0] - 1].publisher, id(route.queues)
            parts.setdefault(key, (route.queues, []))[1].append((route.kind.tenant, at))
    found: dict[str, list[Part]] = defaultdict(list)
    for (publisher, _), part in parts.items():
        found[publisher].append(part)
    return found


def _left(line: str, feeds: Sequence[Copies], count: int) -> Packable:
    """What is left for a line: the parcel's id, its feeds, and the events in it, none for all of so many."""
    numbers = sorted({i for feed in feeds for at in feed.numbers for i in at})
    return [line, uid(), fanouts.encode(feeds), numbers if len(numbers) < count else []]


def _publishers(routed: Sequence[RoutedEvent]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {routed_event.publisher: [] for routed_event in routed}
    if len(found) > 1:
        for i, routed_event in enumerate(routed, 1):
            found[routed_event.publisher].append(i)
    return found


def _parts(named: Mapping[str, list[int]]) -> list[Packable]:
    """Names with their events, in order; a name that has them all says none."""
    return [[name, sorted(at)] for name, at in named.items()] if len(named) > 1 else [[name] for name in named]


def _batched(
    partition: Partition, routes: Mapping[Route, list[int]], routed: Sequence[RoutedEvent]
) -> dict[str, Packable]:
    """What goes into the batches of receivers, and ids enough for those that it opens."""
    found: dict[tuple[Subscriber, ...], list[int]] = defaultdict(list)
    for route, at in routes.items():
        if route.receivers:
            found[route.receivers] += at
    if not found:
        return {"copies": [], "uids": ""}
    copies = _copies(found)
    sizes = [len(routed_event.message) for routed_event in routed]
    batches = sum(_batches_max(to, len(at), sum(sizes[i - 1] for i in at)) for at, to in copies)
    return {"copies": [[at, [_receiver(partition, each) for each in to]] for at, to in copies], "uids": uids(batches)}


def _queued(parts: Sequence[Part], publishers: Sequence[str]) -> dict[str, Packable]:
    """What goes on queues, tenant by tenant, and the bounds of those that refuse; publishers by event."""
    feeds = feeds_of(parts)
    if not feeds:
        return {"queues": [], "bounds": [], "bounded": []}
    return {"queues": [_fed(queues, lines) for queues, lines in feeds], **_bounds(feeds, publishers)}


def _fed(queues: Sequence[RegisteredQueue], lines: Mapping[str, list[int]]) -> list[Packable]:
    """Queues, tenants, and of each tenant the one event or the list of them."""
    return [
        [_bounded(queue) for queue in queues],
        list(lines),
        [at[0] if len(at) == 1 else at for at in lines.values()],
    ]


def _bounds(feeds: Sequence[Fed], publishers: Sequence[str]) -> dict[str, Packable]:
    """The bounds of queues that refuse when they are full, and the events that these bounds hold for, in order.

    Of each event: its tenant, the bounds that refuse it, and the bounds that only keep it out of their queue.
    """
    bounds: list[Packable] = []
    bounded: dict[int, _Bounded] = {}
    for queues, lines in feeds:
        for queue in queues:
            if queue.refuses:
                bounds.append([queue.name, queue.max_length, queue.facet_max_length])
                for tenant, at in lines.items():
                    for i in at:
                        _, _, refusing, skipping = bounded.setdefault(i, (i, tenant, [], []))
                        (refusing if queue.may_refuse(publishers[i - 1]) else skipping).append(len(bounds))
    return {"bounds": bounds, "bounded": [list(bounded[i]) for i in sorted(bounded)]}


def _bounded(queue: RegisteredQueue) -> Packable:
    """A queue, what it drops beyond, and its owner unless that is root, who has no quota.

    One that refuses has checked its bounds before, and drops nothing.
    """
    most = (0, 0) if queue.refuses else (queue.max_length, queue.facet_max_length)
    return [queue.name, *most, "" if queue.is_roots else queue.owner]


def _copies(routes: dict[tuple[Subscriber, ...], list[int]]) -> list[tuple[list[int], list[Subscriber]]]:
    """Receivers that get exactly the same events, together with those events, in order."""
    if len(routes) == 1:
        return [(sorted(at), list(to)) for to, at in routes.items()]
    events: dict[Subscriber, list[int]] = defaultdict(list)
    for to, at in routes.items():
        for receiver in to:
            events[receiver].extend(at)
    copies: dict[tuple[int, ...], list[Subscriber]] = defaultdict(list)
    for receiver, at in events.items():
        copies[tuple(sorted(at))].append(receiver)
    return [(list(at), to) for at, to in copies.items()]


def _batches_max(receivers: Sequence[Subscriber], events: int, size: int) -> int:
    """How many batches can be opened at most; filling up greedily leaves no two neighbours half empty."""
    return sum(
        min(events, events // receiver.max_events + 2 * (size // receiver.max_bytes) + 2) for receiver in receivers
    )


def _receiver(partition: Partition, subscriber: Subscriber) -> Packable:
    return [
        subscriber.token,
        subscriber.max_events,
        subscriber.max_bytes,
        subscriber.timeout_ms,
        receivers.permits(subscriber.calls_max, partition),
        receivers.every_ms(subscriber, partition),
    ]


# Redis channels: a channel is an event's routing key, without the namespace.


async def is_listened_to(partition: Partition, channels: Sequence[str]) -> bool:
    """Whether anyone listens on one of these, on any server: in a cluster a listener may sit on any node."""
    replies = await partition.everywhere([["PUBSUB", "NUMPAT"], ["PUBSUB", "NUMSUB", *channels]])
    return any(patterns or any(_counts(counted)) for patterns, counted in replies)


async def notify(partition: Partition, messages: Sequence[tuple[str, bytes]]) -> int:
    """Send each message to its channel, in order; returns how many received one on the server that was asked."""
    pairs = [word for pair in messages for word in pair]
    return cast("int", await partition.run(_NOTIFY, *pairs))


def _counts(reply: Reply) -> Sequence[int]:
    return cast("Sequence[int]", cast("Sequence[Reply]", reply)[1::2])
