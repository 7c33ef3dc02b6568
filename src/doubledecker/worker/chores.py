"""Chores: the jobs of the aux queue. Each does a bounded piece of work, and is safe to run twice."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from doubledecker import clock, log
from doubledecker.bus import dead_letters as bus_letters
from doubledecker.bus import overview
from doubledecker.bus.dead_letters import LetterBounds
from doubledecker.bus.history import HistoryWriter
from doubledecker.bus.letter_jobs import NAME as LETTER_JOB
from doubledecker.bus.letter_jobs import LetterJobs
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.notices import NoticeWriter
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import MemoryFull, RetryLater
from doubledecker.model.job import AUX, MAIN
from doubledecker.store import (
    audit,
    batches,
    counters,
    dead_letters,
    deliveries,
    events,
    fanouts,
    jobs,
    queue_contents,
    queues,
    receivers,
    registry,
)
from doubledecker.store.events import Accepted, PublishLimits
from doubledecker.store.fanouts import Parcel
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.backlog_bounds import BacklogBounds
from doubledecker.worker.backlogs import BacklogMeter
from doubledecker.worker.monitor import Monitor

# Batches deleted by one script call, and calls by one run of a chore: some tens of milliseconds of the server's time.
_DROP_MAX = 100
_PASSES_MAX = 100
# Slices of one line before other jobs have their turn: some tens of milliseconds.
_SLICES_MAX = 30
# After a slice, for so many times as long as it took: else publishes beside a flood for a thousand queues took over
# twice as long as beside the same flood without queues.
_PAUSES = 3
# When memory is full, copies wait this long.
_FULL_MS = 1_000
# What was due this long ago in a queue has no consumer who would have brought it back.
_OVERDUE_MS = 1_000

_log = log.get("worker")


@dataclass(frozen=True)
class ChoreRules:
    """The numbers that chores go by."""

    dead_ms: int
    memory: MemoryRules
    letters: LetterBounds = field(default_factory=LetterBounds)


class Chores:
    """Executes aux jobs by name."""

    def __init__(
        self,
        partitions: Partitions,
        live: LiveRegistry,
        monitor: Monitor,
        autodrop: Autodrop,
        meter: BacklogMeter,
        rules: ChoreRules,
    ) -> None:
        self._partitions = partitions
        self._live = live
        self._monitor = monitor
        self._autodrop = autodrop
        self._rules = rules
        self._notices = NoticeWriter(partitions, live)
        self._letter_jobs = LetterJobs(partitions, live)
        self._backlogs = BacklogBounds(partitions, live)
        self._history = HistoryWriter(partitions, live, rules.memory)
        self._by_name: dict[str, Callable[..., Awaitable[None]]] = {
            "monitor": self.monitor,
            "autodrop": self._autodrop.run,
            "backlogs": meter.run,
            "bounds": self.keep_bounds,
            "history": self._history.run,
            "repair": self.repair,
            "schedule": self.repair,  # its name in 0.1.0, whose data may hold such a job
            "sweep": self.sweep,
            "return": self.bring_back,
        }

    async def run(self, taken: Taken) -> None:
        """Run one aux job and remove it; an unknown job is removed too, and logged."""
        name, args = taken.job.name, taken.job.args
        if name in self._by_name:
            await self._by_name[name]()
        elif name == "purge":
            await self.purge(taken.partition, *args)
        elif name == LETTER_JOB:
            await self._letter_jobs.step(*args)
        elif name == "fanout":
            await (self.fan_out if len(args) > 1 else self.adopt)(taken.partition, args[0])
        else:
            _log.error("job.unknown", job=name, args=args)
        await jobs.ack(taken)
        if name == LETTER_JOB:
            await self._letter_jobs.look_again(*args)

    async def monitor(self) -> None:
        """Send telemetry to the metric adapters."""
        await self._live.refresh()
        known = self._live.snapshot.pushed_to
        view = await overview.look(self._partitions, known, now_ms=clock.now_ms(), rules=self._rules.memory)
        growth: dict[str, int] = {}
        for partition in self._partitions.all:
            for name, by in (await counters.take_growth(partition)).items():
                growth[name] = growth.get(name, 0) + by
        self._monitor.send(view, growth)

    async def scrub(self, partition: Partition) -> None:
        """Take jobs back from slots that died, and forget those slots.

        This one is not a job but run by every worker's ticker: as a job, one held by a dead slot would keep all others
        out of the queue, and nobody would ever take it back.
        """
        for queue, scrub in ((MAIN, deliveries.scrub), (AUX, jobs.scrub)):
            slots, returned = await scrub(partition, dead_ms=self._rules.dead_ms)
            if returned:
                _log.warning("slots.scrubbed", partition=partition.index, queue=queue, slots=slots, jobs=returned)
        # Ten times the patience: a slot that only stumbled must find its name when it comes back.
        alive = await jobs.alive(partition, silent_ms_max=10 * self._rules.dead_ms)
        await jobs.forget(partition, [slot for slot in await jobs.beats(partition) if slot not in alive])

    async def repair(self) -> None:
        """Mend what a crash may have left behind: old versions, long journals, actions without a record, notices."""
        await registry.copy_version(self._partitions, await registry.version(self._partitions.home))
        await self._autodrop.trim_journals()
        if left := await audit.end_left(self._partitions.home, now_ms=clock.now_ms()):
            _log.warning("audit.unknown", records=left)
        with contextlib.suppress(MemoryFull):  # they wait on
            await self._notices.run()

    async def keep_bounds(self) -> None:
        """Drop what is beyond bounds: batches that wait for subscribers, dead letters of receivers."""
        await self._backlogs.run()
        known = self._live.snapshot
        for receiver, lost in (await bus_letters.drop_beyond(self._partitions, known, self._rules.letters)).items():
            _log.warning("letters.dropped", receiver=receiver, letters=lost.letters, bytes=lost.bytes)

    async def sweep(self) -> None:
        """Mend what a process that died left undone: what waits for nobody, receivers that changed or are gone."""
        await self._live.refresh()
        for token in await self._live.subscriptions.end_orphans():
            _log.warning("subscriber.orphaned", subscriber=token)
        known = self._live.snapshot
        for partition in self._partitions.all:
            await receivers.reconcile(partition, known.pushed_to, version=known.version)
            _, waiting = await batches.gauges(partition)
            for token in waiting.keys() - known.subscribers.keys():
                if await self._live.subscriptions.retire(partition, token):
                    _log.warning("subscriber.swept", partition=partition.index, subscriber=token)
            await self._sweep_queues(partition)
            await self._sweep_letters(partition)
        for name in await registry.deleted_topics(self._partitions.home):
            await registry.end_topic(self._partitions, name)
        await self._letter_jobs.sweep()

    async def bring_back(self) -> None:
        """Bring back what is due in queues that nobody pulls from: it shows as waiting, or as dead, and not as held."""
        await self._live.refresh()
        known = self._live.snapshot.queues
        for partition in self._partitions.all:
            held = sorted(known.keys() & await queue_contents.names_held(partition))
            for name in await queues.overdue(partition, held, by_ms=_OVERDUE_MS):
                await queues.pull(partition, known[name], most=0, lease_ms=known[name].lease_ms, is_alone=False)

    async def _sweep_queues(self, partition: Partition) -> None:
        orphans = await queue_contents.names_held(partition) - self._live.snapshot.queues.keys()
        if not orphans:
            return
        # One that was registered since the last look holds messages by right.
        await self._live.refresh()
        for name in orphans - self._live.snapshot.queues.keys():
            if await self._live.destroy_queue(partition, name):
                _log.warning("queue.swept", partition=partition.index, queue=name)

    async def _sweep_letters(self, partition: Partition) -> None:
        """Remove the dead letters of receivers that are gone."""
        for receiver in await dead_letters.sizes(partition):
            await self._live.destroy_letters(partition, receiver)

    async def purge(self, partition: Partition, token: str, rid: str) -> None:
        """Delete what waited for a subscriber when it went."""
        for _ in range(_PASSES_MAX):
            if await batches.purge(partition, rid, batches_max=_DROP_MAX, counter="events.purged") == 0:
                break
        else:
            raise RetryLater(1)
        if await self._live.destroy_letters(partition, token):
            await batches.forget_gauges(partition, token)

    async def fan_out(self, partition: Partition, line: str) -> None:
        """Make copies that were left for later, a slice at a time, until none is left in the line."""
        parcel: Parcel | None = None
        time = asyncio.get_running_loop().time
        limits = PublishLimits(tenants_max=self._live.quotas.queue_tenants_max)
        for _ in range(_SLICES_MAX):
            parcel = parcel or await fanouts.first(partition, line)
            if parcel is None:
                return
            share = fanouts.cut(parcel, bytes_max=events.BYTES_MAX)
            began_s = time()
            try:
                reply = await events.fan_out(partition, parcel, share, self._live.snapshot, limits=limits)
            except MemoryFull:
                # The slot must be free for what frees memory.
                raise RetryLater(_FULL_MS) from None
            if reply.outcome is Accepted.STALE:
                await self._live.refresh()
            elif reply.outcome is Accepted.OK and share.at is not None:
                parcel = replace(parcel, at=share.at)
            else:
                parcel = None
            # Publishes and pulls get the rest of the time: the busier the server, the longer a slice takes.
            await asyncio.sleep((time() - began_s) * _PAUSES)
        raise RetryLater(1)

    async def adopt(self, partition: Partition, fid: str) -> None:
        """Put a wide event that was kept the former way into its line, which has a job of its own."""
        while (topic := await events.former_topic(partition, fid)) is not None:
            [rights] = await registry.topic_rights(self._partitions.home, [topic])
            version = self._live.snapshot.version
            await events.adopt(partition, fid, publisher=rights.owner if rights else "", version=version)
            await self._live.refresh()
