"""Publishing the rows of a Spark task: in order, in large calls, and none of them twice however often it is run.

There is one publisher for each partition that the task's rows go to. It keeps how many rows are written, and a digest
of them. When it begins, when a call's answer was lost, and when another attempt of the same task was faster, it asks
the fence how far things are, and passes over the rows that are written already. A repeated task must have the same
rows as before, no others and no fewer: anything else raises OrderChanged, and publishes nothing.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notifier
from doubledecker.bus.publish import Group
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import (
    BusAway,
    JournalFull,
    OrderChanged,
    TopicOwned,
    TopicReserved,
    Unauthenticated,
    WritesLost,
)
from doubledecker.model.event import EventKind
from doubledecker.model.reserved import is_reserved
from doubledecker.model.routing import Registry
from doubledecker.model.topic import TopicRights
from doubledecker.store import events, write_offsets
from doubledecker.store.events import Accepted, PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition
from doubledecker.store.write_offsets import Fence, RowRefusal, WriteOffset

# A server that restarts is back within seconds; a full journal has room when its archive has caught up.
_PATIENCE_S = 30.0
_PAUSE_S = 0.2
_DIGEST_BYTES = 12


class PublishedRow(msgspec.Struct, frozen=True, gc=False):
    """A row to publish, with its id if it brought one; `mark` is what does not change when the task is run again."""

    kind: EventKind
    key: str
    message: bytes
    mark: bytes
    id: str
    index: int


@dataclass
class WriteCounts:
    """How many of a task's rows were written now and how many before, and why which were refused."""

    published: int = 0
    repeated: int = 0
    refused: dict[int, str] = field(default_factory=dict)


class ExactlyOnceWriter:
    """Publishes one task's rows to one partition."""

    def __init__(
        self,
        partition: Partition,
        registry: LiveRegistry,
        headroom: Headroom,
        notifier: Notifier,
        *,
        publisher: str,
        task: str,
        batch: int,
        pacer: Pacer | None = None,
        is_complete: bool = False,
    ) -> None:
        self._partition = partition
        self._registry = registry
        self._headroom = headroom
        self._notifier = notifier
        self._publisher = publisher
        self._pacer = pacer
        self._task = task
        self._batch = batch
        self._is_complete = is_complete
        self._rows = 0
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._reached: WriteOffset | None = None
        self._waiting: deque[PublishedRow] = deque()
        self.tally = WriteCounts()

    async def publish(self, rows: Sequence[PublishedRow]) -> None:
        """Wait until the rows are written, now or by an earlier attempt."""
        self._waiting.extend(rows)
        if self._waiting:
            await persist(self._publish_some, self._forget)

    async def finish(self) -> None:
        """Raise OrderChanged when an earlier attempt published more rows than this one had."""
        await persist(self._check_end, self._forget)

    async def _check_end(self) -> bool:
        reached = await self._look()
        if reached.batch == self._batch and self._rows < reached.rows:
            raise OrderChanged(
                f"this task published {reached.rows} rows to partition {self._partition.index} before; "
                f"this time it has {self._rows}"
            )
        return False

    async def _publish_some(self) -> bool:
        """One call, if any is needed; returns whether there is more."""
        self._pass_over(await self._look())
        if self._waiting:
            await self._write_some()
        return bool(self._waiting)

    def _forget(self) -> None:
        self._reached = None

    async def _look(self) -> WriteOffset:
        """How far the task has come, as the fence says, unless that is known."""
        if self._reached is None:
            reached = await write_offsets.read(self._partition, self._task)
            if reached.batch > self._batch:
                raise write_offsets.older(self._batch, reached.batch)
            confirmed = reached.rows if reached.batch == self._batch else 0
            if confirmed < self._rows:
                # Going on would leave out the rows between.
                raise WritesLost(
                    f"the bus confirmed {self._rows} rows of this task, and has {confirmed}: its server lost its last "
                    "writes; run the task again"
                )
            self._reached = reached
        return self._reached

    def _pass_over(self, reached: WriteOffset) -> None:
        """Pass over rows that are written already, and report those again that were refused."""
        before = reached.rows if reached.batch == self._batch else 0
        while self._waiting and self._rows < before:
            row = self._waiting.popleft()
            self._digest.update(row.mark)
            refused_by = reached.refused.get(self._rows)
            if refused_by is not None:
                self.tally.refused[row.index] = _reason(refused_by)
            else:
                self.tally.repeated += 1
            self._rows += 1
        if before and self._rows == before and self._digest.hexdigest() != reached.digest:
            raise OrderChanged(f"the first {before} rows of this task are not those that it published before")
        if self._waiting and self._is_complete:
            raise OrderChanged(f"this task had {before} rows when it was complete; this time it has more")

    async def _write_some(self) -> None:
        """One call with as many rows as it may carry."""
        some = list(islice(self._waiting, events.WRITES_MAX))
        topics = list(dict.fromkeys(row.kind.topic for row in some))
        seen = self._registry.snapshot.version
        rights = await self._registry.topics.claim(topics, publisher=self._publisher)
        await self._registry.learn({row.kind for row in some})
        # That of the routes: another publisher of the task may refresh the registry while this one waits.
        version = self._registry.snapshot.version
        if version != seen:
            # It may not publish on one of these topics any more; the caller tries again.
            return
        call = self._gather(some, rights)
        if self._pacer is not None:
            # To fail would not do: the Spark task would only begin anew.
            await self._pacer.wait(self._publisher, len(call.group.routed))
        last, digest = self._rows + call.rows, call.digest.hexdigest()
        fence = Fence(self._task, self._batch, self._rows, last, digest, call.barred, call.numbers)
        reply = await events.publish(
            self._partition,
            call.group.routed,
            version=version,
            limits=await self._headroom.admit(self._partition),
            channels=self._notifier.channels(call.group.routed),
            fence=fence,
        )
        match reply.outcome:
            case Accepted.OK:
                await self._note(call, reply)
            case Accepted.FENCED:
                self._reached = None
            case Accepted.FULL:
                raise JournalFull
            case _:
                await self._registry.refresh()
                if self._publisher not in self._registry.snapshot.tokens:
                    raise Unauthenticated(f"the client {self._publisher!r} is gone")

    def _gather(self, some: Sequence[PublishedRow], rights: Mapping[str, TopicRights]) -> "_Call":
        call = _Call(self._digest.copy())
        publisher, snapshot = self._publisher, self._registry.snapshot
        for row in some:
            if not rights[row.kind.topic].allow(publisher):
                owner = rights[row.kind.topic].owner
                call.bar(row, RowRefusal("topic", row.kind.topic, owner), number=self._rows + call.rows)
            elif call.group.take(_routed(publisher, row, snapshot)):
                call.indexes.append(row.index)
                call.numbers.append(self._rows + call.rows)
            else:
                break
            call.rows += 1
        call.digest.update(b"".join(row.mark for row in some[: call.rows]))
        return call

    async def _note(self, call: "_Call", reply: PublishReply) -> None:
        """What a call did is done, whatever happens next."""
        call.refused |= {call.indexes[at]: _reason(RowRefusal.parse(why)) for at, why in reply.refused.items()}
        for _ in range(call.rows):
            self._waiting.popleft()
        self._rows += call.rows
        self._digest = call.digest
        self.tally.published += call.rows - len(call.refused)
        self.tally.refused |= call.refused
        self._registry.note_skipped(call.group.routed, reply)
        self._notifier.add(call.group.routed, reply)
        await self._headroom.tidy(self._partition, reply.journal_bytes)


def _routed(publisher: str, row: PublishedRow, snapshot: Registry) -> RoutedEvent:
    route = snapshot.route_event(row.kind, publisher, key=row.key, message=row.message)
    return RoutedEvent(route, row.message, publisher, row.id)


async def persist(act: Callable[[], Awaitable[bool]], forget: Callable[[], None]) -> None:
    """Act while there is more, again and again while the bus is away or its journal is full.

    Whether a call was carried out is not known then, but the fence knows: what was known of it is to be forgotten.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    while True:
        try:
            if not await act():
                return
            deadline = loop.time() + _PATIENCE_S
        except (BusAway, JournalFull):
            forget()
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_PAUSE_S)


def _reason(by: RowRefusal) -> str:
    """Why a row is refused, in a sentence."""
    if by.kind == "queue":
        return f"queue {by.name!r} is full"
    if by.kind == "tenants":
        return f"queue {by.name!r} knows as many tenants as it may (DOUBLEDECKER_QUEUE_TENANTS_MAX), and not this one"
    if is_reserved(by.name):
        return TopicReserved(by.name).detail
    if not by.owner:
        return f"topic {by.name!r} is new, and its client owns as many as it may (DOUBLEDECKER_CLIENT_TOPICS_MAX)"
    return TopicOwned(by.name, by.owner).detail


@dataclass
class _Call:
    """The rows of one call: those offered, those refused before, and the digest after them.

    `indexes` and `numbers` are of the offered rows: where each stands in its Arrow batch, and among the task's rows.
    """

    digest: "hashlib.blake2b"
    group: Group = field(default_factory=Group)
    indexes: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    barred: dict[RowRefusal, list[int]] = field(default_factory=dict)
    rows: int = 0

    def bar(self, row: PublishedRow, by: RowRefusal, *, number: int) -> None:
        """Refuse a row without offering it."""
        self.refused[row.index] = _reason(by)
        self.barred.setdefault(by, []).append(number)
