"""Publishing the rows of a Spark task: in order, in large calls, and none of them twice however often it is run.

There is one publisher for each partition that the task's rows go to. It keeps how many rows are written, and a digest
of them. When it begins, when a call's answer was lost, and when another attempt of the same task was faster, it asks
the fence how far things are, and passes over the rows that are written already.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from doubledecker.bus.commit import Group
from doubledecker.bus.notify import Notifier
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.room import Room
from doubledecker.errors import BusAway, JournalFull, OrderChanged, TopicOwned, Unauthenticated
from doubledecker.model.event import Kind
from doubledecker.store import events, fences, offers
from doubledecker.store.events import Accepted, PublishReply
from doubledecker.store.fences import Fence, Reached
from doubledecker.store.offers import Offer
from doubledecker.store.partitions import Partition

# A server that restarts is back within seconds; a full journal has room when its archive has caught up.
_PATIENCE_S = 30.0
_PAUSE_S = 0.2
_DIGEST_BYTES = 12


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row to publish, with its id if it brought one; `mark` is what does not change when the task is run again."""

    kind: Kind
    key: str
    message: bytes
    mark: bytes
    id: str
    index: int


@dataclass
class Tally:
    """What became of a task's rows: how many were written now, how many before, and why which were refused."""

    published: int = 0
    repeated: int = 0
    refused: dict[int, str] = field(default_factory=dict)


class FencedPublisher:
    """Publishes one task's rows to one partition."""

    def __init__(
        self,
        partition: Partition,
        registry: LiveRegistry,
        room: Room,
        notifier: Notifier,
        *,
        publisher: str,
        task: str,
        batch: int,
    ) -> None:
        self._partition = partition
        self._registry = registry
        self._room = room
        self._notifier = notifier
        self._publisher = publisher
        self._task = task
        self._batch = batch
        self._rows = 0
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._reached: Reached | None = None
        self._waiting: deque[Row] = deque()
        self.tally = Tally()

    async def publish(self, rows: Sequence[Row]) -> None:
        """Wait until the rows are written, now or by an earlier attempt."""
        self._waiting.extend(rows)
        if self._waiting:
            await persist(self._publish_some, self._forget)

    async def _publish_some(self) -> bool:
        """One call, if any is needed; says whether there is more."""
        await self._catch_up()
        if self._waiting:
            await self._write_some()
        return bool(self._waiting)

    def _forget(self) -> None:
        self._reached = None

    async def _catch_up(self) -> None:
        """Pass over rows that are written already."""
        if self._reached is None:
            self._reached = await fences.read(self._partition, self._task)
        reached = self._reached
        if reached.batch > self._batch:
            self.tally.repeated += len(self._waiting)
            self._waiting.clear()
        if reached.batch != self._batch:
            return
        while self._waiting and self._rows < reached.rows:
            self._digest.update(self._waiting.popleft().mark)
            self._rows += 1
            self.tally.repeated += 1
        if self._rows == reached.rows and self._digest.hexdigest() != reached.digest:
            raise OrderChanged(
                f"the first {self._rows} rows of this task are not those that it published before; "
                "give the rows a fixed order, for example with sortWithinPartitions, and write them under a new writeId"
            )

    async def _write_some(self) -> None:
        """One call with as many rows as it may carry."""
        some = list(islice(self._waiting, offers.WRITES_MAX))
        topics = list(dict.fromkeys(row.kind.topic for row in some))
        owners = await self._registry.owners(topics, publisher=self._publisher)
        await self._registry.learn({row.kind for row in some})
        call = self._gather(some, owners)
        fence = Fence(self._task, self._batch, self._rows, self._rows + call.rows, call.digest.hexdigest())
        reply = await events.publish(
            self._partition,
            call.group.offers,
            version=self._registry.snapshot.version,
            limits=await self._room.admit(self._partition),
            channels=self._notifier.channels(call.group.offers),
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

    def _gather(self, some: Sequence[Row], owners: Mapping[str, str]) -> "_Call":
        call = _Call(self._digest.copy())
        publisher, snapshot = self._publisher, self._registry.snapshot
        for row in some:
            if owners[row.kind.topic] != publisher:
                call.refused[row.index] = TopicOwned(row.kind.topic, owners[row.kind.topic]).detail
            elif call.group.take(Offer(snapshot.route(row.kind), row.message, publisher, row.id)):
                call.indexes.append(row.index)
            else:
                break
            call.rows += 1
        call.digest.update(b"".join(row.mark for row in some[: call.rows]))
        return call

    async def _note(self, call: "_Call", reply: PublishReply) -> None:
        """What a call did is done, whatever happens next."""
        call.refused |= {call.indexes[at]: f"queue {queue!r} is full" for at, queue in reply.refused.items()}
        for _ in range(call.rows):
            self._waiting.popleft()
        self._rows += call.rows
        self._digest = call.digest
        self.tally.published += call.rows - len(call.refused)
        self.tally.refused |= call.refused
        self._notifier.add(call.group.offers, reply)
        await self._room.tidy(self._partition, reply.journal_bytes)


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


@dataclass
class _Call:
    """The rows of one call: those offered, those refused before, and the digest after them."""

    digest: "hashlib.blake2b"
    group: Group = field(default_factory=Group)
    indexes: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    rows: int = 0
