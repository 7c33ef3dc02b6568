"""Posting in a Spark task: rows come in order, each strand makes batches of its own and has one on its way at a time.

1. Rows become the very messages that a worker would have sent, and wait in their strand's line.
2. A line with a full batch, or with all there is, asks for a place among the calls to the receiver. Places are in
   Redis, so the receiver's `concurrency` holds over all tasks, and beside workers.
3. The batch goes through the receiver's chain; what came of it, and how far the strand has come, is one atom in Redis.
4. When the receiver fails, or the round is over, lines stop where they are. The rest of the rows is passed over.

Lines hold a bounded number of bytes; when these are used up, the next rows wait with Spark.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.bus import parking, verdict
from doubledecker.bus.verdict import Backoff, Retry
from doubledecker.delivery.chains import Chains
from doubledecker.delivery.record import ChainsTold
from doubledecker.errors import BusAway, CallRejected
from doubledecker.model.outcome import Outcome
from doubledecker.model.strand import BULK_SLOT, Reach, Strand
from doubledecker.model.uid import uid
from doubledecker.pipeline import reading
from doubledecker.pipeline.batching import Line, Parcel, strands_in, to_rows
from doubledecker.pipeline.reading import Access
from doubledecker.store import bulk, receivers, subscribers
from doubledecker.store.bulk import Settlement
from doubledecker.store.partitions import Partitions
from doubledecker.store.receivers import Place
from doubledecker.store.subscribers import Entry

if TYPE_CHECKING:
    from doubledecker.pipeline.posting import Posting

# What the lines of one task hold; more than the largest batch, and little beside what Python itself takes.
_HELD_BYTES_MAX = 67_108_864
# Rows that become messages before the calls under way get a turn: a few milliseconds' worth.
_PIECE_ROWS = 500
# Lines with a batch ready or on its way, for each call that may be made at a time: none has to wait for the next rows.
_SUPPLIES = 2
# How often a place is asked for that others have.
_PLACE_S = 0.02
# A lease may miss two beats.
_BEATS_PER_LEASE = 3

_log = log.get("bulk")


def post_rows(batches: Iterable[pa.RecordBatch], *, posting: "Posting", schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """In a task: post the rows, and tell of each strand how far it came."""
    with asyncio.Runner() as runner:
        lines = runner.run(_post(batches, posting))
    told = [
        {
            "partition": line.strand.partition,
            "strand": line.strand.number,
            "reach": line.reach.text,
            "events": line.events,
            "why": line.why,
        }
        for line in lines
    ]
    yield pa.RecordBatch.from_pylist(told, schema=schema)


async def _post(batches: Iterable[pa.RecordBatch], posting: "Posting") -> list[Line]:
    settings = posting.settings
    log.configure(level=settings.log_level, as_json=settings.log_json)
    access = Access.by(settings)
    async with reading.connected(access) as bus, build.open_chains(settings) as chains:
        reaches = await reading.patiently(partial(bulk.reaches, bus.home, posting.ledger))
        poster = Poster(posting, bus, chains, reaches)
        await poster.run(batches)
        with contextlib.suppress(BusAway):
            await poster.told.tell()
    return list(poster.lines.values())


class Poster:
    """Posts one task's rows."""

    def __init__(self, posting: "Posting", bus: Partitions, chains: Chains, reaches: dict[Strand, Reach]) -> None:
        self.lines: dict[Strand, Line] = {}
        self._posting = posting
        self._subscriber = posting.subscriber
        self._bus = bus
        self._chains = chains
        context = TaskContext.get()
        # The same each round, so that what the last one told is replaced.
        process = f"{posting.ledger}:{context.partitionId() if context else 0}"
        self.told = ChainsTold(bus.home, process, chains)
        self._reaches = reaches
        self._lease_ms = round(posting.settings.watch_lease_s * 1000)
        self._backoff = Backoff(posting.settings.backoff_base_ms, posting.settings.backoff_cap_ms)
        self._slots: set[str] = set()
        # As many lines as may call at a time ask Redis for a place; the others wait here, where it costs nothing.
        self._doors = asyncio.Semaphore(posting.subscriber.concurrency)
        self._why_over = ""
        self._progress = asyncio.Event()

    async def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Until all rows are posted, or the round is over."""
        beating = asyncio.create_task(self._beat())
        deadline: asyncio.TimerHandle | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for arrow in batches:
                    # From the first rows on: until then Spark reads and sorts.
                    deadline = deadline or self._time_out()
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
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _time_out(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._posting.round_s, self._end, "cut short")

    def _take_in(self, arrow: pa.RecordBatch, tasks: asyncio.TaskGroup) -> None:
        for strand, row in to_rows(arrow):
            line = self.lines.get(strand)
            if line is None:
                line = self._line(strand)
                tasks.create_task(self._serve(line))
            line.add(row)
        for line in self.lines.values():
            line.news.set()

    def _pass_over(self, arrow: pa.RecordBatch) -> None:
        """Post nothing of these rows, but let it be known whose they are: their strands are not through."""
        for strand in strands_in(arrow) - self.lines.keys():
            self._line(strand).stop(self._why_over)

    def _line(self, strand: Strand) -> Line:
        reach = self._reaches.get(strand, Reach())
        line = self.lines[strand] = Line(strand, reach, self._posting.ledger, self._subscriber)
        return line

    async def _until_wanted(self) -> None:
        """Wait while there is enough to post, so that making messages does not keep those under way from their turn.

        When the lines hold too much, and none of it is a full batch, they go without.
        """
        await asyncio.sleep(0)
        while not self._why_over:
            supplied = sum(line.is_supplied for line in self.lines.values())
            is_full = sum(line.bytes for line in self.lines.values()) > _HELD_BYTES_MAX
            if not is_full and supplied < _SUPPLIES * self._subscriber.concurrency:
                return
            self._progress.clear()
            if supplied == 0:
                for line in self.lines.values():
                    line.hurry()
            await self._progress.wait()

    async def _serve(self, line: Line) -> None:
        """Post what a line holds, a batch at a time, for as long as it may go on."""
        while (parcel := await line.next()) is not None:
            line.is_calling = True
            async with self._doors:
                why = self._why_over or await self._deliver(line, parcel)
            line.is_calling = False
            if why:
                line.stop(why)
            self._progress.set()

    async def _deliver(self, line: Line, parcel: Parcel) -> str:
        """Post one batch and write it down; returns why the line cannot go on, if it cannot."""
        slot = BULK_SLOT + uid()
        place = await self._enter(slot)
        if place is None:
            return self._why_over
        try:
            dialled_at = clock.now_ms()
            outcome = await self._chains.attempt(self._subscriber, parcel.messages, self._posting.headers)
        except CallRejected as rejected:
            await self._leave(slot)
            self._end(f"not let through by the {rejected.stage}")
            return self._why_over
        finally:
            self._slots.discard(slot)
        chance = random.random()  # noqa: S311 - jitter, not a secret
        what = verdict.decide(outcome, attempts=place.failures + 1, backoff=self._backoff, chance=chance)
        delay_ms = what.delay_ms if isinstance(what, Retry) else 0
        is_ours = await self._settle(line, parcel, outcome, dialled_at, chance)
        _log_attempt(self._subscriber.token, line, parcel, outcome, delay_ms)
        await self._leave(slot, outcome, delay_ms)
        if not outcome.is_delivered:
            self._end("failing")
            return "failed"
        line.events += len(parcel.rows)
        return "" if is_ours else "moved by another task"

    async def _enter(self, slot: str) -> Place | None:
        """Get a place among the calls to the receiver; None when the round is over before there is one."""
        ask = partial(receivers.enter, self._bus.home, self._subscriber, slot=slot, lease_ms=self._lease_ms)
        while not self._why_over:
            place = await reading.patiently(ask)
            if place.entry is Entry.GO:
                self._slots.add(slot)
                return place
            if place.entry is not Entry.FULL:
                self._end(place.entry.value)
                return None
            await asyncio.sleep(min(_PLACE_S, place.wait_ms / 1000))
        return None

    async def _settle(self, line: Line, parcel: Parcel, outcome: Outcome, dialled_at: int, chance: float) -> bool:
        """Write down what came of an attempt; says whether the strand was still this task's to move."""
        former, home = line.reach, self._bus.home
        if outcome.is_delivered:
            reach = Reach(parcel.last)
        else:
            delay_ms = verdict.delay_after(former.attempts + 1, backoff=self._backoff, chance=chance)
            reach = former.failed(retry_at=clock.now_ms() + delay_ms)
        settled = Settlement(
            line.strand,
            former,
            reach,
            passed=parcel.topics if outcome.is_delivered else {},
            attempt=parcel.entry(outcome, line=line, dialled_at=dialled_at),
            counts=parcel.counts(outcome, line=line, dialled_at=dialled_at),
        )
        is_ours = await reading.patiently(partial(bulk.settle, home, self._posting.ledger, settled))
        if is_ours:
            line.reach = reach
        return is_ours

    async def _leave(self, slot: str, outcome: Outcome | None = None, delay_ms: int = 0) -> None:
        """Free the place and keep score; workers' jobs of a subscriber that was live before may go on then."""
        settings, token = self._posting.settings, self._subscriber.token
        points, took_ms = 0, 0
        if outcome is not None:
            points = settings.hp_heal_rate if outcome.is_delivered else -settings.hp_damage_rate
            took_ms = outcome.took_ms
        leave = partial(subscribers.leave, self._bus.home, self._subscriber, slot=slot, points=points)
        left = await reading.patiently(partial(leave, delay_ms=delay_ms, took_ms=took_ms))
        if left.failures_before == 0 and left.failures > 0:
            _log.warning("subscriber.failing", subscriber=token, callback=self._subscriber.callback)
        if left.failures_before > 0 and left.failures == 0:
            _log.info("subscriber.recovered", subscriber=token, failures=left.failures_before)
        if left.invited.count > 0:
            await parking.unpark(self._bus, token, left.waiting, invited=left.invited)

    def _end(self, why: str) -> None:
        """Begin no further batch."""
        self._why_over = self._why_over or why
        for line in self.lines.values():
            if not line.is_through:
                line.stop(self._why_over)
        self._progress.set()

    async def _beat(self) -> None:
        """Keep the places for as long as the calls take, and tell how the chain stands."""
        while True:
            await asyncio.sleep(self._lease_ms / 1000 / _BEATS_PER_LEASE)
            with contextlib.suppress(BusAway):
                await receivers.renew(self._bus.home, self._subscriber, self._slots, lease_ms=self._lease_ms)
                await self.told.tell()


def _log_attempt(token: str, line: Line, parcel: Parcel, outcome: Outcome, delay_ms: int) -> None:
    _log.info(
        "delivery.attempted",
        subscriber=token,
        batch=parcel.batch,
        partition=line.strand.partition,
        events=len(parcel.messages),
        attempt=parcel.attempt,
        outcome=outcome.kind.value,
        status=outcome.status,
        detail="" if outcome.is_delivered else outcome.detail,
        took_ms=outcome.took_ms,
        retry_ms=delay_ms,
    )
