"""Offers: events as a publish call takes them, and the plan of what becomes of them.

By index into the events it says: `publishers` whose each is (for the journal) and `topics`, where a name alone has them
all; `ids` given by publishers (to tell repeats), `lanes` of events with the receivers that get exactly those, `queues`
that get exactly the same events, with these by tenant, `bounds` of queues that turn new events away when they are full
and the events `bounded` by them, `uids` enough for every batch that may be opened, the copies made `later`, and
the lines of these in which nothing may wait if others are to be made at once: `prompt` (store/deferred_copies.py).
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import chain
from typing import cast

import msgspec

from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid, uids
from doubledecker.store import fanouts, receivers
from doubledecker.store.deferred_copies import Division, Fed, Part, batches_line, divide, feeds_of
from doubledecker.store.fanouts import Copies
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable

# Measured: beyond these one call holds the server for more than a few milliseconds.
WRITES_MAX = 2000
BYTES_MAX = 1_048_576

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
    def is_wide(self) -> bool:
        """Whether it has more receivers than one call may write to."""
        copies = self.route.copies
        return copies > 1 and (copies >= WRITES_MAX or copies * len(self.message) > BYTES_MAX)


def plan(partition: Partition, offers: Sequence[Offer], behind: Container[str] = ()) -> dict[str, Packable]:
    """What becomes of these events in a partition, for the script; copies for the lines `behind` are made later."""
    routes: dict[Route, list[int]] = defaultdict(list)
    wide: dict[Route, list[int]] = defaultdict(list)
    ids: list[Packable] = []
    for i, offer in enumerate(offers, 1):
        if offer.id:
            ids.append([i, offer.publisher, offer.id])
        (wide if offer.route.copies > 1 and offer.is_wide else routes)[offer.route].append(i)
    topics: dict[str, list[int]] = defaultdict(list)
    for route, at in chain(routes.items(), wide.items()):
        topics[route.kind.topic] += at
    publishers = _publishers(offers)
    division = _divide(routes, wide, offers, behind)
    return {
        "publishers": _parts(publishers),
        "topics": _parts(topics),
        "ids": ids,
        "given": list(publishers) if ids else [],
        **_batched(partition, routes, offers),
        **_queued(division.prompt, [offer.publisher for offer in offers]),
        "later": [_left(line, feeds, len(offers)) for line, feeds in division.later.items()],
        "prompt": list(division.lines),
    }


def plan_part(partition: Partition, offers: Sequence[Offer]) -> dict[str, Packable]:
    """Events, accepted before, for some of their receivers: each for the same ones.

    Nothing refuses them any more, but a full queue that could not have refused one does not take it.
    """
    routes: dict[Route, list[int]] = defaultdict(list)
    for i, offer in enumerate(offers, 1):
        routes[offer.route].append(i)
    parts = chain.from_iterable(_by_publisher(routes, offers).values())
    queued = _queued(list(parts), [offer.publisher for offer in offers])
    bounded: list[Packable] = [
        [i, tenant, [], skipping] for i, tenant, _, skipping in cast("list[_Bounded]", queued["bounded"])
    ]
    return {**_batched(partition, routes, offers), **queued, "bounded": bounded}


def _divide(
    routes: Mapping[Route, list[int]], wide: Mapping[Route, list[int]], offers: Sequence[Offer], behind: Container[str]
) -> Division:
    if not wide and not any(route.queues for route in routes):
        return Division()
    division = divide(_by_publisher(routes, offers), _by_publisher(wide, offers), behind)
    for route, at in wide.items():
        if route.receivers:
            feed = Copies([receiver.token for receiver in route.receivers], [route.kind.tenant], [at])
            division.later.setdefault(batches_line(offers[at[0] - 1].publisher), []).append(feed)
    return division


def _by_publisher(routes: Mapping[Route, list[int]], offers: Sequence[Offer]) -> dict[str, list[Part]]:
    """What goes into queues; a topic has one owner, so all events of a route are one publisher's."""
    # By identity, as kinds with the same queues share them, and a queue's hash would be made of all its fields.
    parts: dict[tuple[str, int], Part] = {}
    for route, at in routes.items():
        if route.queues:
            key = offers[at[0] - 1].publisher, id(route.queues)
            parts.setdefault(key, (route.queues, []))[1].append((route.kind.tenant, at))
    found: dict[str, list[Part]] = defaultdict(list)
    for (publisher, _), part in parts.items():
        found[publisher].append(part)
    return found


def _left(line: str, feeds: Sequence[Copies], count: int) -> Packable:
    """What is left for a line: the parcel's id, its feeds, and the events in it, none for all of so many."""
    numbers = sorted({i for feed in feeds for at in feed.numbers for i in at})
    return [line, uid(), fanouts.encode(feeds), numbers if len(numbers) < count else []]


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
        receivers.every_ms(subscriber, partition),
    ]
