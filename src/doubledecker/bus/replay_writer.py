"""Sending past events again, from a Spark task: to one target alone, in order, paced, and none of them twice.

The rows of a task's lane come in the order in which the bus accepted them, and each has its rank in that order. The
fence, written in one atom with what is sent, keeps the last rank and how many rows that were. A task that is run
again, or twice at once, passes over all rows up to that rank; other rows may have come or gone meanwhile.

A *target* makes what is written of a past event, and writes it. A new way to replay is a new target.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from msgspec import structs

from doubledecker.bus.exactly_once import persist
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notifier
from doubledecker.bus.publish import Group
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import JournalFull, NotFound
from doubledecker.model import cloud_event
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.replay import Replay
from doubledecker.model.routing import Registry, Route
from doubledecker.model.uid import repeatable_event_id
from doubledecker.store import events, pipeline_jobs, write_offsets
from doubledecker.store.events import Accepted, PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition
from doubledecker.store.write_offsets import Fence, WriteOffset

# Events sent at once: a tenth of a second's worth, so that a slow replay does not come in bursts.
_CALL_MAX = 500
_CALLS_PER_S = 10


class Rank(NamedTuple):
    """Where an event stands among all that the bus accepted: by time, and by place among those of one moment."""

    ms: int
    partition: int
    number: int
    line: int

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Rank":
        return cls(*map(int, text.split("-"))) if text else cls(-1, 0, 0, 0)


class PastEvent(NamedTuple):
    """An event as it was accepted, and where."""

    rank: Rank
    event: AcceptedEvent


class ReplayTarget(Protocol):
    """To whom past events are sent."""

    def routed_event(self, event: AcceptedEvent, snapshot: Registry) -> RoutedEvent:
        """What is written for an event; raises NotFound when the target is gone."""

    async def write(self, routed: Sequence[RoutedEvent], *, version: int, fence: Fence) -> PublishReply:
        """Write events and fence in one atom, or nothing at all."""


@dataclass(frozen=True)
class ReceiverTarget:
    """One subscriber's batches, or one queue; nothing is journaled, and nobody else gets anything."""

    partition: Partition
    replay: Replay
    id: str

    def routed_event(self, event: AcceptedEvent, snapshot: Registry) -> RoutedEvent:
        message = encode(structs.replace(event, replay=self.id))
        if self.replay.target == "subscriber":
            subscriber = snapshot.subscribers.get(self.replay.name)
            if subscriber is None:
                raise NotFound(f"there is no subscriber {self.replay.name!r} any more")
            return RoutedEvent(Route(event.kind, (subscriber,)), message, "")
        queue = snapshot.queues.get(self.replay.name)
        if queue is None:
            raise NotFound(f"there is no queue {self.replay.name!r} any more")
        # A replay goes on only while there is room; so that it drops nothing, it does not ask for the bound here.
        unbounded = structs.replace(queue, overflow="refuse")
        return RoutedEvent(Route(event.kind, (), (unbounded,)), message, "")

    async def write(self, routed: Sequence[RoutedEvent], *, version: int, fence: Fence) -> PublishReply:
        return await events.resend(self.partition, routed, version=version, fence=fence)


@dataclass(frozen=True)
class TopicTarget:
    """A topic: new events, published by one who may, to all who listen there."""

    partition: Partition
    replay: Replay
    id: str
    headroom: Headroom
    notifier: Notifier

    def routed_event(self, event: AcceptedEvent, snapshot: Registry) -> RoutedEvent:
        publisher = self.replay.publisher
        if publisher not in snapshot.tokens:
            raise NotFound(f"the client {publisher!r}, whose topic it was, is gone")
        id_ = repeatable_event_id(self.id, cloud_event.known_by(event))
        new = structs.replace(event, topic=self.replay.name, id=id_, replay=self.id, replay_of=event.id)
        message = encode(new)
        route = snapshot.route_event(new.kind, publisher, key=new.key, message=message)
        return RoutedEvent(route, message, publisher)

    async def write(self, routed: Sequence[RoutedEvent], *, version: int, fence: Fence) -> PublishReply:
        limits = await self.headroom.admit(self.partition)
        channels = self.notifier.channels(routed)
        reply = await events.publish(
            self.partition, routed, version=version, limits=limits, channels=channels, fence=fence
        )
        if reply.outcome is Accepted.OK:
            self.notifier.add(routed, reply)
            await self.headroom.tidy(self.partition, reply.journal_bytes)
        return reply


class Sender:
    """Sends the rows of one lane, all of which belong to one partition."""

    def __init__(
        self,
        target: ReplayTarget,
        registry: LiveRegistry,
        *,
        home: Partition,
        partition: Partition,
        task: str,
        id_: str,
        rate: int,
    ) -> None:
        self._target = target
        self._registry = registry
        self._home = home
        self._partition = partition
        self._task = task
        self._id = id_
        self._rate = rate
        self._reached: WriteOffset | None = None
        self._waiting: deque[PastEvent] = deque()
        self.sent = 0
        self.passed = 0
        self.refused = 0

    async def send(self, pasts: Sequence[PastEvent]) -> None:
        """Wait until the rows are sent, now or by an earlier attempt."""
        self._waiting.extend(pasts)
        if self._waiting:
            await persist(self._go_on, self._forget)

    async def _go_on(self) -> bool:
        """One call, if any is needed; returns whether there is more."""
        reached = self._reached = self._reached or await write_offsets.read(self._partition, self._task)
        self._pass_over(reached)
        if self._waiting:
            await self._send_some(reached)
        return bool(self._waiting)

    def _forget(self) -> None:
        self._reached = None

    def _pass_over(self, reached: WriteOffset) -> None:
        rank = Rank.parse(reached.digest)
        while self._waiting and self._waiting[0].rank <= rank:
            self._waiting.popleft()
            self.passed += 1

    async def _send_some(self, reached: WriteOffset) -> None:
        """One call with as many rows as it may carry, when it is its turn."""
        # That of the routes: another sender of the task may refresh the registry while this one waits.
        version = self._registry.snapshot.version
        group = self._gather()
        count = len(group.routed)
        wait_ms = await pipeline_jobs.keep_turn(self._home, self._id, count=count, rate=self._rate)
        await asyncio.sleep(wait_ms / 1000)
        rank = str(self._waiting[count - 1].rank)
        fence = Fence(self._task, 0, reached.rows, reached.rows + count, rank)
        reply = await self._target.write(group.routed, version=version, fence=fence)
        match reply.outcome:
            case Accepted.OK:
                self._registry.note_skipped(group.routed, reply)
                for _ in range(count):
                    self._waiting.popleft()
                self.sent += count
                self.refused += len(reply.refused)
                self._reached = WriteOffset(0, fence.last, rank)
            case Accepted.FENCED:
                self._reached = None
            case Accepted.FULL:
                raise JournalFull
            case _:
                await self._registry.refresh()

    def _gather(self) -> Group:
        group = Group()
        most = max(1, min(_CALL_MAX, self._rate // _CALLS_PER_S))
        for past in islice(self._waiting, most):
            if not group.take(self._target.routed_event(past.event, self._registry.snapshot)):
                break
        return group
