"""Posting in a Spark task: rows come in order, each shard makes batches of its own and has one on its way at a time.

1. Rows become the very messages that a worker would have sent, and wait in their shard's line.
2. A line with a full batch, or with all there is, asks for a permit to call the receiver. Permits are in Redis, in the
   shard's partition, so the receiver's `concurrency` holds over all tasks, and beside workers.
3. The batch is attempted (delivery/deliver.py); the attempt, and how far the shard has come, are one atomic step.
   Events that the receiver named as failed go to the workers in the same step; those of a replay hold their shard.
4. A line whose batch is refused stops where it is, so that order holds: the shard is tried again by its own schedule.
   When the receiver fails, or the round is over, all lines do. The rest of the rows is passed over.

Lines hold a bounded number of bytes; when these are used up, the next rows wait with Spark.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.background import beside
from doubledecker.delivery import parts
from doubledecker.delivery.deliver import Attempted, Deliverer, DeliveryLoad
from doubledecker.delivery.permits import Permits
from doubledecker.errors import BusAway, OutOfDescriptors
from doubledecker.model.outcome import NAMED
from doubledecker.model.position import Checkpoint, Shard
from doubledecker.model.settlement import FIRST, Settlement
from doubledecker.pipeline.bulk.batches import Posting, ShardBatch, ShardLine, shards_in, to_rows
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.store import bulk, receivers, registry, subscribers
from doubledecker.store.bulk import BatchAside, BulkStep
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.receivers import Answer, Permit

# What the lines of one task hold; more than the largest batch, and little beside what Python itself takes.
_HELD_BYTES_MAX = 67_108_864
# Rows that become messages before the calls under way get a turn: a few milliseconds' worth.
_PIECE_ROWS = 500
# Lines with a batch ready or on its way, for each call that may be made at a time: none has to wait for the next rows.
_SUPPLIES = 2
# How often a permit is asked for that others have.
_PERMIT_S = 0.02
# A lease may miss two beats.
_BEATS_PER_LEASE = 3
# What a task reports of each shard.
SHARD_REPORT = pa.schema(
    [
        *(("partition", pa.int32()), ("shard", pa.int32()), ("checkpoint", pa.string())),
        *(("events", pa.int64()), ("why", pa.string())),
    ]
)


def post_rows(batches: Iterable[pa.RecordBatch], *, posting: Posting) -> Iterator[pa.RecordBatch]:
    """In a task: post the rows, and report for each shard how far it came."""
    with asyncio.Runner() as runner:
        lines = runner.run(_post(batches, posting))
    reports = [
        {
            "partition": line.shard.partition,
            "shard": line.shard.number,
            "checkpoint": line.checkpoint.text,
            "events": line.events,
            "why": line.why,
        }
        for line in lines
    ]
    yield pa.RecordBatch.from_pylist(reports, schema=SHARD_REPORT)


async def _post(batches: Iterable[pa.RecordBatch], posting: Posting) -> list[ShardLine]:
    settings = posting.settings
    log.configure(level=settings.log_level, as_json=settings.log_json)
    access = Access.by(settings)
    async with journal_reader.connected(access) as bus, build.open_deliverer(settings, bus, part="bulk") as deliverer:
        progress = await journal_reader.patiently(partial(bulk.progress, bus.home, posting.ledger))
        poster = Poster(posting, bus, deliverer, progress.checkpoints)
        await poster.run(batches)
    return list(poster.lines.values())


class Poster:
    def __init__(
        self, posting: Posting, bus: Partitions, deliverer: Deliverer, checkpoints: Mapping[Shard, Checkpoint]
    ) -> None:
        self.lines: dict[Shard, ShardLine] = {}
        self._posting = posting
        self._subscriber = self._receiver = posting.subscriber
        self._bus = bus
        self._deliverer = deliverer
        self._checkpoints = checkpoints
        self._lease_s = posting.settings.watch_lease_s
        self._permits = Permits(posting.subscriber.token, lease_ms=round(self._lease_s * 1000))
        self._limits = [receivers.permits(posting.subscriber.concurrency, partition) for partition in bus.all]
        self._every_ms = [receivers.every_ms(posting.subscriber, partition) for partition in bus.all]
        # As many lines as have permits ask Redis for one; the others wait here, where it costs nothing.
        self._doors = [asyncio.Semaphore(limit) for limit in self._limits]
        # None until the registry was looked at.
        self._version: int | None = None
        self._why_over = ""
        self._progress = asyncio.Event()

    async def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Until all rows are posted, or the round is over."""
        loop = asyncio.get_running_loop()
        deadline: asyncio.TimerHandle | None = None
        try:
            async with beside(self._keep_permits()), asyncio.TaskGroup() as tasks:
                for arrow in batches:
                    # From the first rows on: until then Spark reads and sorts.
                    deadline = deadline or loop.call_later(self._posting.round_s, self._end, "cut short")
                    for first in range(0, arrow.num_rows, _PIECE_ROWS):
                        await self._until_wanted()
                        piece = arrow.slice(first, _PIECE_ROWS)
                        if self._why_over:
                            self._pass_over(piece)
                        else:
                            self._take_in(piece, tasks)
                for line in self.lines.values():
                    line.close()
        finally:
            if deadline is not None:
                deadline.cancel()

    def _take_in(self, arrow: pa.RecordBatch, tasks: asyncio.TaskGroup) -> None:
        for shard, row in to_rows(arrow):
            line = self.lines.get(shard)
            if line is None:
                line = self._line(shard)
                tasks.create_task(self._serve(line))
            line.add(row)
        for line in self.lines.values():
            line.news.set()

    def _pass_over(self, arrow: pa.RecordBatch) -> None:
        """Post nothing of these rows, but let it be known whose they are: their shards are not through."""
        for shard in shards_in(arrow) - self.lines.keys():
            self._line(shard).stop(self._why_over)

    def _line(self, shard: Shard) -> ShardLine:
        checkpoint = self._checkpoints.get(shard, Checkpoint())
        line = self.lines[shard] = ShardLine(shard, checkpoint, self._posting)
        if checkpoint.retry_at > clock.now_ms():
            line.stop("to be tried again later")
        return line

    async def _until_wanted(self) -> None:
        """Wait while there is enough to post, so that making messages does not keep those under way from their turn.

        When the lines hold too much, and none of it is a full batch, they go without.
        """
        await asyncio.sleep(0)
        while not self._why_over:
            supplied = sum(line.is_supplied for line in self.lines.values())
            is_full = sum(line.bytes for line in self.lines.values()) > _HELD_BYTES_MAX
            if not is_full and supplied < _SUPPLIES * sum(self._limits):
                return
            self._progress.clear()
            if supplied == 0:
                for line in self.lines.values():
                    line.hurry()
            await self._progress.wait()

    async def _serve(self, line: ShardLine) -> None:
        """Post what a line holds, a batch at a time, for as long as it may go on."""
        while (parcel := await line.next()) is not None:
            line.is_calling = True
            async with self._doors[line.shard.partition]:
                await self._deliver(line, parcel)
            line.is_calling = False
            self._progress.set()

    async def _deliver(self, line: ShardLine, parcel: ShardBatch) -> None:
        """Post one batch, unless the round is over, and write it down; stops the line when it cannot go on."""
        partition = self._bus.all[line.shard.partition]
        permit = await self._take_permit(partition)
        if permit is None:
            return
        try:
            attempted = await self._deliverer.attempt(self._load(parcel, permit))
            is_ours = await self._write(line, parcel, attempted)
        except OutOfDescriptors:
            await journal_reader.patiently(partial(self._permits.settle, partition, permit))
            self._end("out of file descriptors")
            return
        except (BusAway, asyncio.CancelledError):
            with contextlib.suppress(BusAway):  # then its lease ends by itself
                await self._permits.settle(partition, permit)
            raise
        give_back = partial(self._permits.settle, partition, permit, attempted.settlement, why=attempted.why)
        before, after = await journal_reader.patiently(give_back)
        if is_ours:
            self._deliverer.conclude(attempted, before=before, after=after)
        else:
            line.stop("moved by another task")
        if attempted.outcome.is_delivered:
            line.events += len(parcel.rows) - attempted.named
        if not self._is_passed(parcel, attempted):
            line.stop(NAMED if attempted.failed else attempted.settlement.what)
        if after > 0:
            self._end("failing")

    def _load(self, parcel: ShardBatch, permit: Permit) -> DeliveryLoad:
        """What is posted, to the receiver as it is registered now."""
        message = parcel.message_id if self._receiver.signing else ""
        return replace(parcel.load, receiver=self._receiver, failures=permit.failures, message=message)

    async def _take_permit(self, partition: Partition) -> Permit | None:
        """Get a permit to call the receiver; None when the round is over before there is one."""
        at = partition.index
        bounds = {"limit": self._limits[at], "anew_since": self._subscriber.anew_since}
        take = partial(self._permits.take, partition, every_ms=self._every_ms[at], **bounds)
        while not self._why_over:
            if self._version is None:
                await self._look()
                continue
            permit = await journal_reader.patiently(partial(take, version=self._version))
            if permit.answer is Answer.GO:
                return permit
            if permit.answer is Answer.FAILING:
                self._end("failing")
            elif permit.answer is Answer.PAUSED:
                self._end("paused")
            elif permit.answer is Answer.STALE:
                self._version = None
            else:
                await asyncio.sleep(min(_PERMIT_S, permit.wait_ms / 1000))
        return None

    async def _look(self) -> None:
        """See which version the registry has; the round is over when the receiver is not what it was.

        Its credentials may have changed, and are read here alone: it goes on with those of now.
        """
        home, token = self._bus.home, self._subscriber.token
        version = await journal_reader.patiently(partial(registry.version, home))
        known = await journal_reader.patiently(partial(subscribers.load_many, home, [token]))
        receiver = known.get(token)
        if receiver is None or receiver.bare != self._subscriber.bare:
            self._end("changed")
        else:
            self._receiver = receiver
        self._version = version

    async def _write(self, line: ShardLine, parcel: ShardBatch, attempted: Attempted) -> bool:
        """Record an attempt; returns whether the shard was still this task's to move."""
        is_passed = self._is_passed(parcel, attempted)
        checkpoint = (
            Checkpoint(parcel.last) if is_passed else line.checkpoint.failed(retry_at=_retry_at(attempted.settlement))
        )
        step = BulkStep(
            line.shard,
            line.checkpoint,
            checkpoint,
            passed=parcel.topics if is_passed else {},
            attempt=attempted.entry,
            counts=attempted.counts,
            aside=self._aside(parcel, attempted),
        )
        is_ours = await journal_reader.patiently(partial(bulk.settle, self._bus.home, self._posting.ledger, step))
        if is_ours:
            line.checkpoint = checkpoint
        return is_ours

    def _is_passed(self, parcel: ShardBatch, attempted: Attempted) -> bool:
        """Whether the shard goes on: all events were taken, or those that were not are with the workers."""
        is_taken = attempted.outcome.is_delivered and not attempted.failed
        return is_taken or self._aside(parcel, attempted) is not None

    def _aside(self, parcel: ShardBatch, attempted: Attempted) -> BatchAside | None:
        """What a worker would put aside, split or give up: a batch, or those of its events that were named as failed.

        A replay has headers that workers do not send.
        """
        what, load = attempted.settlement, attempted.load
        is_blamed = what.is_split or what.dead or (load.failures == 0 and what.retry_ms != FIRST)
        is_left = attempted.failed if attempted.outcome.is_delivered else is_blamed
        if self._posting.is_replayed or not is_left:
            return None
        delay_ms = 0 if what.is_split or what.dead else what.retry_ms
        lines = parts.chosen(load.parts, attempted.failed) if attempted.failed else load.parts
        return BatchAside(self._subscriber.token, parcel.rows[0].ms, load.attempts + 1, lines, delay_ms)

    def _end(self, why: str) -> None:
        self._why_over = self._why_over or why
        for line in self.lines.values():
            if not line.is_through:
                line.stop(self._why_over)
        self._progress.set()

    async def _keep_permits(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / _BEATS_PER_LEASE)
            await self._permits.renew()


def _retry_at(settlement: Settlement) -> int:
    """When a shard goes on: by its own schedule, or first of all when the receiver is called next."""
    first_ms = max(settlement.probe_ms, settlement.pause_ms)
    wait_ms = first_ms if settlement.retry_ms == FIRST else settlement.retry_ms
    return clock.now_ms() + wait_ms
