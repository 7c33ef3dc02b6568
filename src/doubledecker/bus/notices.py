"""Notifications: what happened to a receiver becomes an event for its owner, on a topic of the bus.

Scripts write a notice in the atom that settles a call; a worker publishes it and then forgets it. One that dies in
between leaves it to the next, whose event has the same id, and is a repeat that goes nowhere for as long as ids are
remembered (a day).

When many wait, their owners take turns, those with the fewest first: one whose receivers fail by the thousand delays
its own notices alone, and loses the oldest of them beyond a bound of its own.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest
from urllib.parse import urlsplit

import msgspec

from doubledecker import log
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BusAway
from doubledecker.model import replay, reserved
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import repeatable_event_id
from doubledecker.store import events, notices
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from doubledecker.store.notices import PendingNotice
from doubledecker.store.partitions import Partition, Partitions

# Published by one call: few, as each may be for another owner and has receivers of its own.
_COUNT = 50
# Of one owner that may wait: as many as there are when each of its receivers has failed and recovered.
_OWNER_MAX = 2_000
# The registry would have to change this often while one call is made.
_TRIES_MAX = 20
DISABLED = "receiver.disabled"
DROPPING = "receiver.dropping"

_log = log.get("notices")


class NoticeData(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a notification says; of the callback only the host, as its path may hold a secret.

    `failures` are different batches that failed in a row, and `since` is from when on, both as of that partition.
    """

    receiver: str
    owner: str
    partition: int
    host: str = ""
    failures: int = 0
    since: int = 0
    reason: str = ""
    status: int = 0
    remedy: str = ""


class NoticeWriter:
    """Publishes the notices of all partitions."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry) -> None:
        self._partitions = partitions
        self._registry = registry

    async def run(self) -> None:
        """Publish what waits, a bounded number of each partition; raises BusAway, and then it waits on."""
        for partition in self._partitions.all:
            found = await notices.read(partition, count=_COUNT)
            if found:
                await self._registry.refresh()
                found = found if len(found) < _COUNT else await self._in_turns(partition)
                await self._publish(partition, found)
                await notices.remove(partition, [each.id for each in found])

    async def _in_turns(self, partition: Partition) -> list[PendingNotice]:
        """The next to publish of many: one of each owner, then another of each, those with the fewest first."""
        by_owner: dict[str, list[PendingNotice]] = {}
        for each in await notices.read_all(partition):
            by_owner.setdefault(self._find(each.receiver)[1], []).append(each)
        for owner, own in by_owner.items():
            if beyond := own[:-_OWNER_MAX]:
                await notices.remove(partition, [each.id for each in beyond])
                _log.warning("notices.dropped", owner=owner, notices=len(beyond))
        owners = sorted((own[-_OWNER_MAX:] for own in by_owner.values()), key=len)
        return [each for each in chain.from_iterable(zip_longest(*owners)) if each is not None][:_COUNT]

    async def _publish(self, partition: Partition, found: Sequence[PendingNotice]) -> None:
        made = [event for event in (self._event(partition, each) for each in found) if event]
        if not made:
            return
        target = self._partitions.of(made[0][1].kind, "")
        limits = PublishLimits(tenants_max=self._registry.quotas.queue_tenants_max)
        for _ in range(_TRIES_MAX):
            await self._registry.learn({event.kind for _, event in made})
            snapshot = self._registry.snapshot
            version = snapshot.version
            routed = [_routed(whose, event, snapshot) for whose, event in made]
            reply = await events.publish(target, routed, version=version, limits=limits)
            if reply.outcome is not Accepted.STALE:
                return
            await self._registry.refresh()
        why = "the registry changes faster than notifications can be published"
        raise BusAway(why, detail=why)

    def _event(self, partition: Partition, notice: PendingNotice) -> tuple[str, AcceptedEvent] | None:
        """The event, and as whose it is published; None when the receiver is gone."""
        found, owner = self._find(notice.receiver)
        if found is None:
            return None
        whose = reserved.publisher_for(owner)
        mark, why, since = f"{partition.index} {notice.id}", notice.why, notice.since
        if notice.type == DISABLED and found.disabled_at:
            # One change, of which each partition has a notice.
            mark, why, since = f"disabled {found.disabled_at}", f"gone {found.disabled_why}", found.disabled_at
        reason, _, answer = why.partition(" ")
        status = answer.partition(" ")[0]
        data = NoticeData(
            receiver=notice.receiver,
            owner=reserved.audience(whose),
            host=urlsplit(found.callback).hostname or "",
            partition=partition.index,
            failures=notice.failures,
            since=since,
            reason=reason,
            status=int(status) if status.isdecimal() else 0,
            remedy=_remedy(notice, found),
        )
        _log.info("receiver.notified", type=notice.type, receiver=notice.receiver, owner=data.owner)
        id_ = repeatable_event_id("notice", mark, notice.receiver)
        raw = msgspec.Raw(msgspec.json.encode(data))
        return whose, AcceptedEvent(reserved.RECEIVERS, notice.type, t=notice.at, data=raw, id=id_)

    def _find(self, name: str) -> tuple[Subscriber | RegisteredQueue | None, str]:
        """A receiver, and its owner, who may be root; a queue without a callback may have dead letters too."""
        if not name.startswith("@"):
            return self._registry.snapshot.subscribers.get(name), self._registry.snapshot.owner_of(name)
        queue = self._registry.snapshot.queues.get(name[1:])
        return queue, queue.owner if queue else ""


def _routed(whose: str, event: AcceptedEvent, snapshot: Registry) -> RoutedEvent:
    message = encode(event)
    route = snapshot.route_event(event.kind, whose, key=event.key, message=message)
    return RoutedEvent(route, message, whose, event.id)


def _remedy(notice: PendingNotice, found: Subscriber | RegisteredQueue) -> str:
    """How the owner gets back what is lost, where something is."""
    if notice.type != DROPPING or not isinstance(found, Subscriber):
        return ""
    return f"once it has caught up: {replay.command(notice.receiver, found.topics, from_ms=notice.since)}"
