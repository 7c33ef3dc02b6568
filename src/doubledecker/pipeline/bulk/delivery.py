"""Deliver in bulk: the pipeline's step that serves every subscriber of the bulk tier, from the lake.

Each look finds who has something to go through (scan_ranges.py) and has it posted (posting.py), a thread and a Spark
job for each subscriber. A subscriber that is slow or fails is served apart from the others, waits by itself, and goes
on from its own ledger. Tasks hold a core while they wait for a receiver; so subscribers that fare well share all
cores but one, and those that fail a third.
"""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from doubledecker import clock, log
from doubledecker.assembly.settings import Settings
from doubledecker.lake import snapshots
from doubledecker.model import moment
from doubledecker.model.position import Checkpoint, Shard
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline import session, steps
from doubledecker.pipeline.bulk import posting, scan_ranges
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.bulk.posting import Posted
from doubledecker.pipeline.bulk.scan_ranges import Bounds, FileSpan, ScanRange
from doubledecker.pipeline.lake import frames, versions
from doubledecker.pipeline.lake.versions import Version
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.steps import Round
from doubledecker.store import bulk, receivers, registry
from doubledecker.store.bulk import Progress
from doubledecker.store.partitions import Partitions

# How long one look waits for what is under way; then it looks again who else can be served.
_WAIT_S = 0.5
# Subscribers that are being served at a time, whatever the number of cores.
_SERVED_MAX = 16

_log = log.get("bulk")


@dataclass(frozen=True)
class BulkState:
    """A subscriber, how far it has come, and, by partition where it fails, when it is to be probed."""

    subscriber: Subscriber
    progress: Progress
    probes: Mapping[int, int]

    @property
    def probe_at(self) -> int | None:
        """When what it failed to take may be tried again; None while it fails nothing that has to be delivered."""
        held_up = {
            shard.partition for shard, checkpoint in self.progress.checkpoints.items() if checkpoint.attempts > 0
        }
        return max((at for partition, at in self.probes.items() if partition in held_up), default=None)

    @property
    def is_failing(self) -> bool:
        return self.probe_at is not None


@dataclass(frozen=True)
class _Served:
    events: int
    took_ms: int


@dataclass
class _Trouble:
    """Rounds of a subscriber that broke, for no fault of its receiver."""

    failures: int = 0
    again_s: float = 0.0
    error: str = ""


@dataclass
class Bulk:
    """Serves all subscribers of the bulk tier, for as long as the pipeline runs."""

    spark: SparkSession
    settings: Settings
    root: str
    _known: Registry = field(default_factory=Registry)
    _running: dict[str, tuple[int, bool, Future[_Served]]] = field(default_factory=dict)
    _troubles: dict[str, _Trouble] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(_SERVED_MAX, thread_name_prefix="bulk")

    def act(self) -> Round:
        """One look: see who is done, serve who is due, and wait a moment."""
        found = asyncio.run(self._look())
        table = landing.table_of(self.root, "events")
        waiting = self._start(found, versions.of(table, partitions=self.settings.partitions))
        if self._running:
            wait([future for _, _, future in self._running.values()], timeout=_WAIT_S, return_when=FIRST_COMPLETED)
        # A subscriber that is through a round may have more to go through.
        has_more = waiting or bool(self._running)
        done = self._collect()
        took_ms = max((each.took_ms for each in done), default=0)
        return Round(sum(each.events for each in done), has_more, took_ms=took_ms, trouble=self._trouble())

    def close(self) -> None:
        """Serve nobody else; what is under way ends with its Spark job."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> list[BulkState]:
        """Everyone that bulk delivery has to do with; those that are live again are ended, or seen to their end."""
        async with journal_reader.connected(Access.by(self.settings)) as bus:
            await registry.refresh(bus.home, self._known)
            tokens = [token for token in await bulk.tokens(bus.home) if token in self._known.subscribers]
            by_token = await bulk.progress_of(bus.home, tokens)
            for token, progress in by_token.items():
                if not self._known.subscribers[token].is_bulk:
                    await self._see_off(bus, token, progress)
            states = [(partition.index, await receivers.states(partition, tokens)) for partition in bus.all]
        return [
            BulkState(
                self._known.subscribers[token],
                progress,
                {index: int(of[token].retry_at) for index, of in states if of[token].failures > 0},
            )
            for token, progress in by_token.items()
        ]

    async def _see_off(self, bus: Partitions, token: str, progress: Progress) -> None:
        if not progress.until:
            # The process that made it live died before it wrote where bulk delivery ends.
            await registry.copy_version(bus, await registry.version(bus.home))
            await bulk.end(bus, token)
        elif scan_ranges.is_through(progress) and token not in self._running:
            await bulk.forget(bus.home, token)

    def _start(self, found: list[BulkState], seen: Version) -> bool:
        """Serve those who are due, who waited longest first; returns whether someone has to wait for a core."""
        landed = snapshots.landed(seen, self.settings.partitions)
        is_left = False
        for whose in sorted(found, key=lambda each: self._served_at.get(each.subscriber.token, 0.0)):
            token = whose.subscriber.token
            if token in self._running or not self._is_due(whose):
                continue
            ends = scan_ranges.ends(whose.progress, landed)
            due = scan_ranges.due(whose.progress, ends, now_ms=clock.now_ms())
            if not due:
                continue
            cores = self._cores_for(whose)
            if cores == 0:
                is_left = True
                continue
            since = moment.from_ms(min(checkpoint.place.ms for checkpoint in due.values()))
            held = seen.parts(since=since, topics=whose.progress.topics)
            files = [FileSpan.of(part, now_ms=clock.now_ms()) for part in held]
            bounds = Bounds(rows_max=scan_ranges.PROBE_ROWS_MAX) if whose.is_failing else Bounds()
            planned = scan_ranges.plan(due, ends, files, bounds)
            self._served_at[token] = time.monotonic()
            future = self._threads.submit(self._serve, whose, planned, seen, cores)
            self._running[token] = (cores, whose.is_failing, future)
        return is_left

    def _is_due(self, whose: BulkState) -> bool:
        if whose.subscriber.halt:
            return False
        trouble = self._troubles.get(whose.subscriber.token)
        if trouble is not None and trouble.again_s > time.monotonic():
            return False
        return whose.probe_at is None or whose.probe_at <= clock.now_ms()

    def _cores_for(self, whose: BulkState) -> int:
        """How many tasks a subscriber gets now; none when too many are under way."""
        cores = session.cores(self.spark)
        if whose.is_failing:
            probing = sum(1 for _, is_failing, _ in self._running.values() if is_failing)
            return 1 if probing < max(1, cores // 3) else 0
        taken = sum(each for each, is_failing, _ in self._running.values() if not is_failing)
        return min(whose.subscriber.concurrency, max(1, cores - 1) - taken)

    def _serve(self, whose: BulkState, planned: list[ScanRange], seen: Version, tasks: int) -> _Served:
        """One round of one subscriber, in a thread of its own."""
        began_s = time.monotonic()
        ledger = bulk.ledger_of(whose.subscriber.token)
        full = [scan for scan in planned if not scan.is_empty]
        posted = Posted(0, {}, {})
        if full:
            frame = reduce(DataFrame.unionByName, [self._rows(whose.progress, scan, seen) for scan in full])
            frame = frames.seen_by(frame, whose.subscriber.client)
            work = Posting(self.settings, whose.subscriber, ledger)
            posted = posting.post(frame, work, tasks=tasks)
        passing: dict[Shard, tuple[Checkpoint, Checkpoint]] = {}
        for scan in planned:
            passing |= scan_ranges.passing(scan, posted.stopped.keys(), posted.stood)
        asyncio.run(self._pass(ledger, passing))
        return _Served(posted.events, int((time.monotonic() - began_s) * 1000))

    def _rows(self, progress: Progress, scan: ScanRange, seen: Version) -> DataFrame:
        table = landing.table_of(self.root, "events")
        since, until = moment.from_ms(scan.since_ms), moment.from_ms(scan.until_ms)
        frame = frames.landed(self.spark, table, seen, since=since, until=until, topics=progress.topics)
        least = min(checkpoint.place for checkpoint in scan.checkpoints.values())
        for topic, starts in progress.topics.items():
            if any(start.place > least for start in starts):
                frame = posting.beginning(frame, topic, [start.place for start in starts])
        return posting.remaining(frame, scan.checkpoints, scan.upto)

    async def _pass(self, ledger: str, passing: Mapping[Shard, tuple[Checkpoint, Checkpoint]]) -> None:
        async with journal_reader.connected(Access.by(self.settings)) as bus:
            await bulk.pass_(bus.home, ledger, passing)

    def _collect(self) -> list[_Served]:
        """See what is done; a round that broke is tried again after a pause that doubles."""
        served = []
        for token, (_, _, future) in list(self._running.items()):
            if not future.done():
                continue
            del self._running[token]
            error = future.exception()
            if error is None:
                self._troubles.pop(token, None)
                served.append(future.result())
                continue
            trouble = self._troubles.setdefault(token, _Trouble())
            trouble.failures += 1
            trouble.again_s = time.monotonic() + steps.pause_s(trouble.failures)
            trouble.error = steps.text_of(error)
            _log.error("bulk.failed", subscriber=token, failures=trouble.failures, error=trouble.error)
        return served

    def _trouble(self) -> str:
        """The subscribers whose rounds break, and why."""
        return "; ".join(f"subscriber {token!r}: {trouble.error}" for token, trouble in self._troubles.items())
