"""Offers: events as a publish call takes them, and the plan of what becomes of them.

By index into the events it says: `publishers` whose each is (for the journal) and `topics`, where a name alone has them
all; `ids` given by publishers (to tell repeats), `lanes` of events with the receivers that get exactly those, `queues`
that get exactly the same events, with these by tenant, `bounds` of queues that turn new events away when they are full
and the events `bounded` by them, `later` for events with too many receivers for one call, and `uids` enough for every
batch that may be opened.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

import msgspec

from doubledecker.model.queue import Queue
from doubledecker.model.routing import Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid, uids
from doubledecker.store import receivers
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable

# Measured: beyond these one call holds the server for more than a few milliseconds.
WRITES_MAX = 2000
BYTES_MAX = 1_048_576

# A tenant and numbers of its events, in order.
_Line = tuple[str, list[int]]
_Lines = dict[str, list[int]]
# An event's number and tenant, then by their numbers the bounds that refuse it and those that keep it out of a queue.
_Bounded = tuple[int, str, list[int], list[int]]


class Offer(msgspec.Struct, frozen=True, gc=False):
    """One event as the publish call takes it, with its id if the publisher gave it one.

    A struct, because there is one for every event.
    """

    route: Route
    message: bytes
    publisher: str
    id: str = ""

    @property
    def writes(self) -> int:
        """How many places it is written to at once: journal, batches and queues, unless these are too many."""
        copies = self.route.copies
        return 1 if copies == 0 or self.is_wide else 1 + copies

    @property
    def is_wide(self) -> bool:
        """Whether it has more receivers than one call may write to."""
        copies = self.route.copies
        return copies > 1 and (copies >= WRITES_MAX or copies * len(self.message) > BYTES_MAX)


def plan(partition: Partition, offers: Sequence[Offer]) -> dict[str, Packable]:
    """What becomes of these events in a partition, for the script."""
    routes: dict[Route, list[int]] = defaultdict(list)
    ids: list[Packable] = []
    later: list[Packable] = []
    topics: dict[str, list[int]] = defaultdict(list)
    for i, offer in enumerate(offers, 1):
        if offer.id:
            ids.append([i, offer.publisher, offer.id])
        if offer.route.copies > 1 and offer.is_wide:
            names = [receiver.token for receiver in offer.route.receivers]
            later.append([i, uid(), names + [f"@{queue.name}" for queue in offer.route.queues]])
            topics[offer.route.kind.topic].append(i)
        else:
            routes[offer.route].append(i)
    for route, at in routes.items():
        topics[route.kind.topic] += at
    publishers = _publishers(offers)
    return {
        "publishers": _parts(publishers),
        "topics": _parts(topics),
        "ids": ids,
        "given": list(publishers) if ids else [],
        **_batched(partition, routes, offers),
        **_queued(routes, [offer.publisher for offer in offers]),
        "later": later,
    }


def plan_part(partition: Partition, route: Route, message: bytes, publisher: str) -> dict[str, Packable]:
    """One event, accepted before, for some of its receivers.

    Nothing refuses it any more, but a full queue that could not have refused it does not take it.
    """
    routes = {route: [1]}
    queued = _queued(routes, [publisher])
    bounded: list[Packable] = [
        [i, tenant, [], skipping] for i, tenant, _, skipping in cast("list[_Bounded]", queued["bounded"])
    ]
    return {**_batched(partition, routes, [Offer(route, message, publisher)]), **queued, "bounded": bounded}


def _publishers(offers: Sequence[Offer]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {offer.publisher: [] for offer in offers}
    if len(found) > 1:
        for i, offer in enumerate(offers, 1):
            found[offer.publisher].append(i)
    return found


def _parts(named: Mapping[str, list[int]]) -> list[Packable]:
    """Names with their events, in order; a name that has them all says none."""
    return [[name, sorted(at)] for name, at in named.items()] if len(named) > 1 else [[name] for name in named]


def _batched(partition: Partition, routes: Mapping[Route, list[int]], offers: Sequence[Offer]) -> dict[str, Packable]:
    """What goes into the batches of receivers, and ids enough for those that it opens."""
    found: dict[tuple[Subscriber, ...], list[int]] = defaultdict(list)
    for route, at in routes.items():
        if route.receivers:
            found[route.receivers] += at
    if not found:
        return {"lanes": [], "uids": ""}
    lanes = _lanes(found)
    sizes = [len(offer.message) for offer in offers]
    batches = sum(_batches_max(to, len(at), sum(sizes[i - 1] for i in at)) for at, to in lanes)
    return {"lanes": [[at, [_receiver(partition, each) for each in to]] for at, to in lanes], "uids": uids(batches)}


def _queued(routes: Mapping[Route, list[int]], publishers: Sequence[str]) -> dict[str, Packable]:
    """What goes on queues, tenant by tenant, and the bounds of those that refuse; publishers by event."""
    feeds = _feeds(routes)
    if not feeds:
        return {"queues": [], "bounds": [], "bounded": []}
    return {"queues": [_fed(queues, lines) for queues, lines in feeds], **_bounds(feeds, publishers)}


def _feeds(routes: Mapping[Route, list[int]]) -> list[tuple[list[Queue], _Lines]]:
    """Queues that get exactly the same events, with those events; every queue once."""
    # By identity, as kinds with the same queues share them, and a queue's hash would be made of all its fields.
    parts: dict[int, tuple[tuple[Queue, ...], list[_Line]]] = {}
    for route, at in routes.items():
        if route.queues:
            parts.setdefault(id(route.queues), (route.queues, []))[1].append((route.kind.tenant, at))
    feeds: dict[str, tuple[Queue, list[int]]] = {}
    for number, (queues, _) in parts.items():
        for queue in queues:
            feeds.setdefault(queue.name, (queue, []))[1].append(number)
    fed: dict[tuple[int, ...], list[Queue]] = defaultdict(list)
    for queue, numbers in feeds.values():
        fed[tuple(numbers)].append(queue)
    return [(queues, _joined(parts[number][1] for number in numbers)) for numbers, queues in fed.items()]


def _joined(parts: Iterable[list[_Line]]) -> _Lines:
    lines: _Lines = defaultdict(list)
    for tenant, at in chain.from_iterable(parts):
        lines[tenant] += at
    for at in lines.values():
        at.sort()
    return lines


def _fed(queues: Sequence[Queue], lines: _Lines) -> list[Packable]:
    """Queues, tenants, and of each tenant the one event or the list of them."""
    return [
        [_bounded(queue) for queue in queues],
        list(lines),
        [at[0] if len(at) == 1 else at for at in lines.values()],
    ]


def _bounds(feeds: Sequence[tuple[list[Queue], _Lines]], publishers: Sequence[str]) -> dict[str, Packable]:
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


def _bounded(queue: Queue) -> Packable:
    """A queue, what it drops beyond, and its owner unless that is root, who has no quota.

    One that refuses has checked its bounds before, and drops nothing.
    """
    most = (0, 0) if queue.refuses else (queue.max_length, queue.facet_max_length)
    return [queue.name, *most, "" if queue.is_roots else queue.owner]


def _lanes(routes: dict[tuple[Subscriber, ...], list[int]]) -> list[tuple[list[int], list[Subscriber]]]:
    """Receivers that get exactly the same events, together with those events, in order."""
    if len(routes) == 1:
        return [(sorted(at), list(to)) for to, at in routes.items()]
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


def _receiver(partition: Partition, subscriber: Subscriber) -> Packable:
    return [
        subscriber.token,
        subscriber.max_events,
        subscriber.max_bytes,
        subscriber.timeout_ms,
        receivers.permits(subscriber.concurrency, partition),
    ]
