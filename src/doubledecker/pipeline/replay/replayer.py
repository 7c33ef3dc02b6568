"""Replay: past events, from the lake and from the journal, sent again to one target.

1. What fits is counted, by topic and day.
2. The span of time is split into windows of a few seconds' worth of events. Spark reads a window, deals its
   rows to lanes, and sorts each lane; all events of a tenant, or of a key, are in one lane.
3. Each task sends its lane (resend_task.py), fenced, and no faster than all of them together may. A direct replay is
   posted to its subscriber instead.
4. The driver notes how far the replay has come; the next driver begins there, and the fences know what was
   sent of the window that was under way.

Between windows there is time for the other steps, for other replays, for cancelling, and for the target to catch up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import structs
from pyspark.errors import AnalysisException, ArithmeticException, NumberFormatException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as columns

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.settings import Settings
from doubledecker.errors import NotFound, Refused
from doubledecker.lake import arrow
from doubledecker.model import moment
from doubledecker.model import pipeline_job as views
from doubledecker.model.event import DEFAULT_TENANT
from doubledecker.model.pipeline_job import PipelineJob, text_of
from doubledecker.model.position import Checkpoint, Shard
from doubledecker.model.replay import Replay
from doubledecker.model.routing import Registry
from doubledecker.model.scopes import Scopes
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline import search, session
from doubledecker.pipeline.bulk import posting
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.lake import frames
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.replay import resend_task
from doubledecker.pipeline.replay.resend_task import Work
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.steps import Round
from doubledecker.queues import view
from doubledecker.store import batches, bulk, pipeline_jobs, registry, subscribers
from doubledecker.store.pipeline_jobs import REPLAYS

# Cutting a stretch of time into windows of about as many events as wanted, without looking at them all each time.
#
# Events are counted in a thousand bins; only a bin that holds too many is counted again, in a thousand finer ones. So
# the next window costs a count of a small part of the stretch, and often none at all.

_BINS = 1_000


@dataclass(frozen=True)
class Bin:
    """So many events from one millisecond until before another."""

    from_ms: int
    upto_ms: int
    count: int


# Counts the events from one time until before another, in bins of so many milliseconds each, by the bin's number.
Counting = Callable[[int, int, int], Mapping[int, int]]


class Windows:
    """The windows of a stretch, one after the other."""

    def __init__(self, stretch: Bin, count: Counting) -> None:
        self._upto_ms = stretch.upto_ms
        self._bins = deque([stretch] if stretch.count else [])
        self._count = count

    def next(self, most: int) -> int:
        """Where the next window ends: `most` events, or fewer, or one millisecond with however many it has."""
        taken, end_ms = 0, 0
        while self._bins:
            first = self._bins[0]
            if taken + first.count > most and not taken and first.upto_ms - first.from_ms > 1:
                self._bins.popleft()
                self._bins.extendleft(reversed(self._split(first)))
                continue
            if taken and taken + first.count > most:
                break
            self._bins.popleft()
            taken, end_ms = taken + first.count, first.upto_ms
        return end_ms if self._bins else self._upto_ms

    def _split(self, bin_: Bin) -> list[Bin]:
        width = -(-(bin_.upto_ms - bin_.from_ms) // _BINS)
        counts = self._count(bin_.from_ms, bin_.upto_ms, width)
        found = []
        for number in sorted(counts):
            from_ms = bin_.from_ms + number * width
            found.append(Bin(from_ms, min(from_ms + width, bin_.upto_ms), counts[number]))
        return found


# Replays' targets, as the driver sees them: whether one is there, and how much more it can take just now.

# Nothing of a topic waits as such: who listens there has bounds of its own, and the rate holds. Nor does anything of a
# direct replay.
_ANY = 1_000_000_000


@dataclass(frozen=True)
class TargetRoom:
    """How many events a target takes now, and why it takes none."""

    events: int
    note: str = ""
    # What the tokens of who asked and of the target's owner are limited to.
    limits: tuple[Scopes, ...] = ()


def room_of(settings: Settings, replay: Replay, *, owner: str) -> TargetRoom:
    """How much the target takes now; raises NotFound when it, or who asked, is gone."""
    return asyncio.run(_room(settings, replay, owner))


async def _room(settings: Settings, replay: Replay, owner: str) -> TargetRoom:
    async with build.open_bus(settings, patience_s=15.0) as bus:
        limits = _limits(bus.registry.snapshot, replay, owner)
        if replay.target == "topic":
            await _check_publisher(bus, replay)
            return TargetRoom(_ANY, limits=limits)
        if replay.direct and replay.name in bus.registry.snapshot.subscribers:
            return TargetRoom(_ANY, limits=limits)
        waiting, most = await _waiting(bus, replay, settings.replay_backlog_max)
    note = f"{waiting} events wait for {replay.target} {replay.name!r} already; it goes on below {most}"
    return TargetRoom(most - waiting, note if waiting >= most else "", limits)


def _limits(known: Registry, replay: Replay, owner: str) -> tuple[Scopes, ...]:
    if owner and owner not in known.tokens:
        raise NotFound(f"the token of {owner!r}, who asked for this, was revoked")
    limits = [known.scopes_of(owner)]
    if replay.target == "subscriber" and replay.name in known.subscribers:
        limits.append(known.limits_of(replay.name, known.subscribers[replay.name].client))
    elif replay.target == "queue" and replay.name in known.queues:
        limits.append(known.scopes_of(known.queues[replay.name].owner))
    return tuple(scopes for scopes in dict.fromkeys(limits) if scopes.limits_events)


async def _check_publisher(bus: BusParts, replay: Replay) -> None:
    [rights] = await registry.topic_rights(bus.partitions.home, [replay.name])
    if not rights or not rights.allow(replay.publisher) or replay.publisher not in bus.registry.snapshot.tokens:
        raise NotFound(f"{replay.publisher!r} may not publish on topic {replay.name!r} any more")


async def _waiting(bus: BusParts, replay: Replay, most: int) -> tuple[int, int]:
    """What waits for a receiver, and the most that may."""
    if replay.target == "subscriber":
        if replay.name not in bus.registry.snapshot.subscribers:
            raise NotFound(f"there is no subscriber {replay.name!r}")
        gauges = [(await batches.gauges(partition))[0] for partition in bus.partitions.all]
        return sum(gauge.get(replay.name, 0) for gauge in gauges), most
    queue = bus.registry.snapshot.queues.get(replay.name)
    if queue is None:
        raise NotFound(f"there is no queue {replay.name!r}")
    seen = await view.look(bus.partitions, queue)
    # What would not fit would be dropped by the next event, or refused.
    bounds = [most, queue.max_length, *([queue.facet_max_length] if queue.facet_max_length else [])]
    return seen.waiting + seen.in_flight + seen.delayed, min(bounds)


# Replay straight to a subscriber: a window goes from the lake to its callback, as bulk delivery does.
#
# Nothing of it is in Redis but the replay's own ledger, which says how far each shard has come. So a window that was
# cut short, or that the subscriber did not take, goes on from there.

_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Directed:
    """How many events of the replay are delivered now, in all; and why the window is not finished, if it is not."""

    passed: int
    why: str = ""


def send(settings: Settings, id_: str, replay: Replay, window: DataFrame, *, tasks: int) -> Directed:
    """Post what is left of a window, as far as one round comes; no faster, over all windows, than the replay may."""
    ledger = f"replay:ledger:{id_}"
    subscriber, checkpoints = asyncio.run(_begin(settings, replay, ledger))
    left = posting.remaining(window, checkpoints).withColumn("replay", columns.lit(id_))
    work = Posting(settings, subscriber, ledger, is_replayed=True)
    posted = posting.post(left, work, tasks=min(tasks, subscriber.concurrency))
    why = next(iter(posted.stopped.values()), "")
    return Directed(asyncio.run(_end(settings, id_, replay, ledger, posted.events)), why)


async def _begin(settings: Settings, replay: Replay, ledger: str) -> tuple[Subscriber, Mapping[Shard, Checkpoint]]:
    async with build.open_bus(settings, patience_s=_PATIENCE_S) as bus:
        subscriber = bus.registry.snapshot.subscribers.get(replay.name)
        if subscriber is None:
            raise NotFound(f"there is no subscriber {replay.name!r} any more")
        await bulk.open_ledger(bus.partitions, ledger)
        return subscriber, (await bulk.progress(bus.partitions.home, ledger)).checkpoints


async def _end(settings: Settings, id_: str, replay: Replay, ledger: str, events: int) -> int:
    """Wait until the next window may go, and return what is delivered."""
    async with build.open_bus(settings, patience_s=_PATIENCE_S) as bus:
        home = bus.partitions.home
        wait_ms = await pipeline_jobs.keep_turn(home, id_, count=events, rate=replay.rate) if events else 0
        passed = sum((await bulk.progress(home, ledger)).passed.values())
    await asyncio.sleep(wait_ms / 1000)
    return passed


# A window is what goes out in so long, so that landing never waits longer for its cores; and never more than so many.
_WINDOW_S = 5
_WINDOW_ROWS_MAX = 100_000
# Errors of a condition: they come again however often one tries.
_HOPELESS = (AnalysisException, ArithmeticException, NumberFormatException, Refused)

_log = log.get("pipeline")
_decode = msgspec.json.Decoder(Replay).decode


@dataclass(frozen=True)
class Sent:
    """A window's result: events sent now, and before it was cut short; refused; why it is not finished."""

    now: int
    before: int = 0
    refused: int = 0
    why: str = ""


@dataclass
class Replayer:
    """Carries replays out, a window at a time; several take turns."""

    ground: SparkReadContext
    settings: Settings
    _windows: dict[str, tuple[int, Windows]] = field(default_factory=dict)

    def round(self) -> Round:
        """The next window of the replay that has waited longest, of those that can go on."""
        active = [each for each in asyncio.run(self._all()) if each.is_active]
        self._windows = {each.id: self._windows[each.id] for each in active if each.id in self._windows}
        for job in sorted(active, key=lambda each: each.changed_at):
            sent = self._serve(job)
            if sent is not None:
                return Round(sent, has_more=True)
        return Round(0)

    def _serve(self, job: PipelineJob) -> int | None:
        """Count it, or send its next window; None when it has to wait."""
        replay = _decode(job.asked)
        act = self._go_on if job.lanes else self._begin
        try:
            return search.again(lambda: act(job, replay))
        except (PySparkException, Refused) as error:
            self._windows.pop(job.id, None)
            failed = self._change(job, partial(_failed, error=error))
            if failed.is_active:
                raise
            _log.error("replay.failed", replay=job.id, sent=failed.done, error=text_of(error))
            return 0

    def _begin(self, job: PipelineJob, replay: Replay) -> int:
        """Count what there is to do."""
        limits = room_of(self.settings, replay, owner=job.owner).limits
        days = self._fitting(replay, replay.from_ms, replay.upto_ms, limits).groupBy(
            "topic", columns.to_date("at").alias("day")
        )
        first = columns.min(columns.unix_millis("at")).alias("first")
        counted = days.agg(columns.count("*").alias("n"), first).collect()
        total = sum(row["n"] for row in counted)
        is_over = replay.dry_run or not total
        changes = {
            "state": "done" if is_over else "running",
            "total": total,
            "counts": views.condensed((row["topic"], str(row["day"]), row["n"]) for row in counted),
            "cursor": min((row["first"] for row in counted), default=replay.upto_ms),
            "lanes": self._lanes(),
        }
        self._change(job, lambda now: structs.replace(now, **changes) if now.is_active else now)
        _log.info("replay.counted", replay=job.id, events=total, dry_run=replay.dry_run)
        return 0

    def _go_on(self, job: PipelineJob, replay: Replay) -> int | None:
        """Send the next window."""
        room = room_of(self.settings, replay, owner=job.owner)
        if room.events <= 0:
            if job.note != room.note:
                self._change(job, lambda now: structs.replace(now, note=room.note))
            return None
        most = min(replay.rate * _WINDOW_S, _WINDOW_ROWS_MAX, room.events)
        cursor, windows = self._windows.pop(job.id, (-1, None))
        if windows is None or cursor != job.cursor:
            stretch = Bin(job.cursor, replay.upto_ms, max(1, job.total - job.done))
            windows = Windows(stretch, partial(self._count, replay, room.limits))
        end_ms = windows.next(most)
        sent = self._send(job, replay, end_ms, room.limits)
        if sent.why:
            note = f"subscriber {replay.name!r}: {sent.why}"
            self._change(job, partial(_held_up, sent=sent, note=note))
            return sent.now or None
        now = self._change(job, partial(_advanced, former=job, end_ms=end_ms, sent=sent))
        if now.state == "done":
            _log.info("replay.done", replay=job.id, sent=now.done - now.refused, refused=now.refused)
        self._windows[job.id] = (end_ms, windows)
        return sent.now

    def _send(self, job: PipelineJob, replay: Replay, end_ms: int, limits: Sequence[Scopes]) -> Sent:
        # A core is left to landing: a task of ours holds its own for as long as the pace demands.
        tasks = max(1, session.cores(self.ground.spark) - 1)
        frame = self._fitting(replay, job.cursor, end_ms, limits)
        if replay.direct:
            done = send(self.settings, job.id, replay, frame, tasks=tasks)
            return Sent(done.passed - job.done, why=done.why)
        laned = frame.withColumn("lane", _lane(replay, job.lanes))
        dealt = laned.repartitionById(tasks, columns.col("lane") % tasks).sortWithinPartitions(*frames.order())
        work = Work(self.settings, job.id, replay)
        rows = dealt.mapInArrow(partial(resend_task.send, work=work), arrow.ddl(resend_task.SENT)).collect()
        return Sent(*(sum(row[name] for row in rows) for name in resend_task.SENT.names))

    def _count(
        self, replay: Replay, limits: Sequence[Scopes], from_ms: int, upto_ms: int, width: int
    ) -> Mapping[int, int]:
        number = columns.floor((columns.unix_millis("at") - from_ms) / width).alias("number")
        found = self._fitting(replay, from_ms, upto_ms, limits).groupBy(number).count().collect()
        return {row["number"]: row["count"] for row in found}

    def _fitting(self, replay: Replay, from_ms: int, upto_ms: int, limits: Sequence[Scopes]) -> DataFrame:
        since, until = moment.from_ms(from_ms), moment.from_ms(upto_ms)
        whole = search.everything(self.ground, "events", since=since, until=until)
        # To a topic or a queue go none that only some may see: who reads there may change.
        client = self._owner(replay.name) if replay.target == "subscriber" else None
        seen = frames.seen_by(whole, client)
        for scopes in limits:
            seen = frames.within(seen, scopes)
        return search.fitting(seen, search.conditions(topic=replay.topic, tenant=replay.tenant, where=replay.where))

    def _owner(self, subscriber: str) -> str:
        """The client that has a subscriber; one that is gone gets nothing anyway."""

        async def look() -> str:
            async with journal_reader.connected(self.ground.access) as bus:
                found = (await subscribers.load_many(bus.home, [subscriber])).get(subscriber)
                return found.client if found else subscriber

        return asyncio.run(look())

    def _lanes(self) -> int:
        """One for each core, and every partition has as many; stays the same for as long as the replay does."""
        partitions = self.ground.access.partitions
        return partitions * -(-session.cores(self.ground.spark) // partitions)

    async def _all(self) -> list[PipelineJob]:
        async with journal_reader.connected(self.ground.access) as bus:
            return await pipeline_jobs.read_all(bus.home, REPLAYS)

    def _change(self, job: PipelineJob, by: pipeline_jobs.Change) -> PipelineJob:
        async def change() -> PipelineJob:
            async with journal_reader.connected(self.ground.access) as bus:
                return await pipeline_jobs.change(bus.home, REPLAYS, job.id, _stamped(by))

        return asyncio.run(change())


def _stamped(by: pipeline_jobs.Change) -> pipeline_jobs.Change:
    return lambda now: structs.replace(by(now), changed_at=clock.now_ms())


def _failed(now: PipelineJob, *, error: Exception) -> PipelineJob:
    return now.failed(error, now_ms=clock.now_ms(), is_final=isinstance(error, _HOPELESS)) if now.is_active else now


def _advanced(now: PipelineJob, *, former: PipelineJob, end_ms: int, sent: Sent) -> PipelineJob:
    """The job after a window, unless another process has replayed that window too and recorded it first."""
    if now.cursor != former.cursor:
        return now
    is_over = end_ms >= _decode(now.asked).upto_ms and now.state == "running"
    return structs.replace(
        now,
        cursor=end_ms,
        done=now.done + sent.now + sent.before,
        refused=now.refused + sent.refused,
        state="done" if is_over else now.state,
        failures=0,
        note="",
        error="",
    )


def _held_up(now: PipelineJob, *, sent: Sent, note: str) -> PipelineJob:
    """The job after a window that has to go on later."""
    return structs.replace(now, done=now.done + sent.now, note=note) if now.is_active else now


def _lane(replay: Replay, lanes: int) -> Column:
    """What belongs together is in one lane, and a lane in the partition where the bus puts its events."""
    topic = columns.lit(replay.name) if replay.target == "topic" else columns.col("topic")
    own = columns.col("tenant") != DEFAULT_TENANT
    anchor = columns.when(own, columns.col("tenant")).otherwise(columns.coalesce("key", topic))
    return (columns.crc32(anchor.cast("binary")) % lanes).cast("int")
