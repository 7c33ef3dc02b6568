"""Sending past events to one receiver again: into its batches, or on its queue, and nowhere else.

It is admitted like a publish of the receiver's owner: while the servers have memory, the owner's rate and waiting bytes
allow it, and the queue has room. A full queue refuses such events, also one that drops its oldest when others publish:
nobody who sends one event again means another to go.

It is of events that the receiver gets when they are published: any client may give an event of its own the id of
another's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from doubledecker.bus.headroom import Headroom
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BusAway, NotFound, QueueFull
from doubledecker.model import cloud_event, quota, topic_glob
from doubledecker.model.event import AcceptedEvent, EventKind, encode
from doubledecker.model.reserved import is_within
from doubledecker.model.routing import Registry, Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import ROOT_NAME
from doubledecker.store import events
from doubledecker.store.events import Accepted, PublishLimits, PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions

# What `replay` says in an event that was sent again by request; a replay's id has 20 characters.
RESENT = "resend"
# The registry would have to change this often while one call is made.
_TRIES_MAX = 20


class Resender:
    def __init__(self, partitions: Partitions, registry: LiveRegistry, headroom: Headroom, pacer: Pacer) -> None:
        self._partitions = partitions
        self._registry = registry
        self._headroom = headroom
        self._pacer = pacer

    async def gets(self, receiver: Subscriber, kinds: Iterable[tuple[EventKind, str]]) -> set[tuple[EventKind, str]]:
        """Return the kinds, each with its publisher, that are on the receiver's topics or match its queue.

        None that are beyond what its owner's token is limited to.
        """
        scopes = self._registry.snapshot.limits_of(receiver.token, receiver.client)
        some = {each for each in kinds if is_within(scopes, each[0].topic, each[0].tenant)}
        if not receiver.token.startswith("@"):
            return {(kind, publisher) for kind, publisher in some if topic_glob.cover(receiver.topics, kind.topic)}
        await self._registry.learn([kind for kind, _ in some])
        return {each for each in some if self._matches(receiver.token[1:], *each)}

    def _matches(self, name: str, kind: EventKind, publisher: str) -> bool:
        """Whether a queue's patterns match; also where its owner has reached a bound just now."""
        route = self._registry.snapshot.route(kind, publisher)
        return any(queue.name == name for queue in (*route.queues, *route.skipped))

    async def send(self, some: Sequence[AcceptedEvent], receiver: Subscriber, *, caller: str, key: str) -> set[str]:
        """Send these again, once for each key within a day; returns the ids of those for which the queue has no room.

        Raises QueueFull when it has room for none, and what publishing raises when its owner may not publish now.
        """
        if receiver.client:
            await self._pacer.admit(receiver.client, len(some))
        parts: dict[Partition, list[AcceptedEvent]] = {}
        for event in some:
            parts.setdefault(self._partitions.of(event.kind, event.key), []).append(event)
        # All before the first is written; nothing is journaled, so that a full journal does not matter.
        limits = {part: replace(await self._headroom.admit(part), journal_bytes_max=0) for part in parts}
        refused: dict[str, str] = {}
        for partition, part in parts.items():
            reply = await self._write(partition, part, receiver, caller=caller, key=key, limits=limits[partition])
            refused |= {part[i].id: why for i, why in reply.refused.items()}
        if len(refused) == len(some):
            raise self._no_room(next(iter(refused.values())))
        return set(refused)

    async def _write(
        self,
        partition: Partition,
        some: Sequence[AcceptedEvent],
        receiver: Subscriber,
        *,
        caller: str,
        key: str,
        limits: PublishLimits,
    ) -> PublishReply:
        for _ in range(_TRIES_MAX):
            snapshot = self._registry.snapshot
            routed = [_routed(event, receiver, snapshot, caller=caller, key=key) for event in some]
            reply = await events.send_again(partition, routed, version=snapshot.version, limits=limits)
            if reply.outcome is not Accepted.STALE:
                return reply
            await self._registry.refresh()
        why = "the registry changes faster than the events can be written"
        raise BusAway(why, detail=why)

    def _no_room(self, why: str) -> QueueFull:
        kind, _, queue = why.partition(" ")
        if kind == "tenants":
            return quota.too_many_tenants(self._registry.quotas, queue)
        return QueueFull(
            f"queue {queue!r} is full, and nothing is dropped for an event that is sent again; consume or purge what "
            "it holds, or raise its max_length or facet_max_length"
        )


def _routed(event: AcceptedEvent, receiver: Subscriber, snapshot: Registry, *, caller: str, key: str) -> RoutedEvent:
    # No event's own id has spaces.
    once = f"{RESENT} {caller} {receiver.token} {cloud_event.known_by(event)} {key}" if key else ""
    message = encode(structs.replace(event, replay=RESENT))
    return RoutedEvent(_route(event, receiver.token, snapshot), message, receiver.client or ROOT_NAME, once)


def _route(event: AcceptedEvent, token: str, snapshot: Registry) -> Route:
    """To one receiver alone; raises NotFound when it is gone."""
    if not token.startswith("@"):
        subscriber = snapshot.subscribers.get(token)
        if subscriber is not None:
            return Route(event.kind, (subscriber,))
    elif (queue := snapshot.queues.get(token[1:])) is not None:
        return Route(event.kind, (), (structs.replace(queue, overflow="refuse"),))
    raise NotFound(f"there is no receiver {token!r} any more")
