"""The worker process: deliveries, chores, queues with a callback; heartbeats and tickers; from start to clean stop."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

from doubledecker import log
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.launch import Launch, launch
from doubledecker.assembly.settings import Settings
from doubledecker.background import sleep_until
from doubledecker.bus.dead_letters import LetterBounds
from doubledecker.bus.presence import Presence
from doubledecker.delivery.deliver import Deliverer
from doubledecker.errors import BusAway
from doubledecker.model.job import AUX, MAIN, Job
from doubledecker.model.uid import uid
from doubledecker.store import jobs
from doubledecker.store.partitions import Partition
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.aux_jobs import AuxJobs
from doubledecker.worker.backlogs import BacklogMeter
from doubledecker.worker.chores import ChoreRules, Chores
from doubledecker.worker.deliver import Deliveries
from doubledecker.worker.journal_growth import JournalGrowth
from doubledecker.worker.monitor import Adapter, Monitor, PrintAdapter, StatsdAdapter
from doubledecker.worker.watch import make_watch

# Safety net for what a crash left behind; nothing that is on time waits for it.
_REPAIR_S = 1.0
_SWEEP_S = 30.0
# Between two looks a client may have more than its bound waiting.
_BACKLOGS_S = 1.0
_BOUNDS_S = 1.0
_RETURN_S = 5.0
_HISTORY_S = 1.0
# A third of the time after which a silent slot counts as dead, so that two beats may be lost.
_BEATS_PER_DEATH = 3
_PAUSE_S = 0.5

_log = log.get("worker")


@dataclass
class _Pulse:
    """The heartbeats of this process in a partition: the last one, and the first after the last pause."""

    beat_at_s: float = -math.inf
    resumed_at_s: float = -math.inf

    def note(self, now_s: float, *, beat_s: float) -> None:
        if now_s - self.beat_at_s > 2 * beat_s:
            self.resumed_at_s = now_s
        self.beat_at_s = now_s


async def run(settings: Settings, stop: asyncio.Event, launched: Launch | None = None) -> None:
    launched = launched or launch("worker")
    async with (
        build.open_bus(settings, stop=stop, migrate=build.migrating(settings, stop)) as bus,
        build.open_deliverer(settings, bus.partitions, part="worker") as deliverer,
    ):
        bus.headroom.check()
        presence = Presence(bus.partitions.home, launched.process, kind=launched.kind)
        with contextlib.closing(Monitor(_adapters(settings))) as monitor:
            async with presence.kept():
                await Worker(settings, bus, deliverer, monitor).run(stop, launched.ready)


def _adapters(settings: Settings) -> list[Adapter]:
    adapters: list[Adapter] = []
    if "print" in settings.adapters:
        adapters.append(PrintAdapter())
    if "statsd" in settings.adapters:
        adapters.append(StatsdAdapter(settings.statsd_address))
    return adapters


class Worker:
    def __init__(self, settings: Settings, bus: BusParts, deliverer: Deliverer, monitor: Monitor) -> None:
        self._settings = settings
        self._partitions = partitions = bus.partitions
        self._registry = registry = bus.registry
        memory = bus.headroom.rules
        autodrop, meter = Autodrop(partitions, registry, memory), BacklogMeter(partitions, registry, memory)
        letters = LetterBounds(settings.dead_letters_max)
        rules = ChoreRules(dead_ms=round(settings.worker_dead_s * 1000), memory=memory, letters=letters)
        self._chores = Chores(partitions, registry, monitor, autodrop, meter, rules)
        growth = JournalGrowth(autodrop.trim_journals)
        self._watch = make_watch(settings, bus, deliverer, growth)
        self._tickers = {
            "monitor": settings.monitor_interval_s,
            "autodrop": settings.autodrop_interval_s,
            "backlogs": _BACKLOGS_S,
            "bounds": _BOUNDS_S,
            "repair": _REPAIR_S,
            "sweep": _SWEEP_S,
            "return": _RETURN_S,
            "history": _HISTORY_S,
        }
        self._beat_s = settings.worker_dead_s / _BEATS_PER_DEATH
        self._pulses = [_Pulse() for _ in partitions.all]
        self._process = process = uid()
        slots, aux_slot = [uid() for _ in range(settings.worker_threads)], jobs.aux_slot()
        self._slots = [*slots, aux_slot]
        sleep_s_max = settings.acquire_timeout_s
        self._deliveries = Deliveries(
            partitions, registry, deliverer, slots=slots, process=process, sleep_s_max=sleep_s_max, growth=growth
        )
        self._aux = AuxJobs(partitions, aux_slot, self._chores.run, process=process, sleep_s_max=sleep_s_max)

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop` is set; then finish or give back what is held. Calls `ready` when it begins."""
        # Before it takes anything: a slot without a heartbeat counts as dead.
        while not all(await asyncio.gather(*(self._try_beat(partition) for partition in self._partitions.all))):
            await sleep_until(stop, _PAUSE_S)
            if stop.is_set():
                return
        _log.info("worker.started", slots=self._settings.worker_threads, partitions=len(self._partitions.all))
        ready()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._registry.follow()),
                *(
                    tasks.create_task(forever(partition))
                    for partition in self._partitions.all
                    for forever in (self._beat, self._scrub, self._listen)
                ),
                *(tasks.create_task(self._tick(name, every_s)) for name, every_s in self._tickers.items()),
            ]
            parts = (self._deliveries, self._aux)
            working = [tasks.create_task(each) for each in (*(part.run() for part in parts), self._watch.run(stop))]
            await stop.wait()
            await asyncio.gather(*(part.stop(patience_s=self._settings.shutdown_s) for part in parts))
            await asyncio.gather(*working)
            for task in background:
                task.cancel()
        await self._sign_off()
        _log.info("worker.stopped")

    async def _beat(self, partition: Partition) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            await self._try_beat(partition)

    async def _try_beat(self, partition: Partition) -> bool:
        try:
            await jobs.beat(partition, self._slots)
        except BusAway as error:
            _log.warning("heartbeat.missed", partition=partition.index, error=str(error))
            return False
        self._pulses[partition.index].note(asyncio.get_running_loop().time(), beat_s=self._beat_s)
        return True

    async def _scrub(self, partition: Partition) -> None:
        """Take jobs back from slots that died.

        When Redis was away, the heartbeats of all are old: nobody is dead before there was the time to beat again.
        """
        while True:
            await asyncio.sleep(self._beat_s)
            is_beating = await self._try_beat(partition)
            resumed_at_s = self._pulses[partition.index].resumed_at_s
            if is_beating and asyncio.get_running_loop().time() - resumed_at_s >= self._settings.worker_dead_s:
                try:
                    await self._chores.scrub(partition)
                except BusAway:
                    _log.debug("scrub.missed", partition=partition.index)

    async def _listen(self, partition: Partition) -> None:
        """Look for jobs whenever a partition's bell rings, and after each time that the connection was lost."""

        def on_bell(queue: str) -> None:
            if queue != AUX:
                self._deliveries.wake(partition)
            if queue != MAIN:
                self._aux.wake()

        while True:
            try:
                await jobs.listen(partition, self._process, on_bell)
            except BusAway:
                await asyncio.sleep(_PAUSE_S)

    async def _tick(self, name: str, every_s: float) -> None:
        """Add a recurring job; of many workers' ticks only one in a period counts."""
        while True:
            try:
                await jobs.push(self._partitions.home, Job(name), every_ms=round(every_s * 1000 * 0.9))
            except BusAway:
                _log.debug("tick.missed", job=name)
            await asyncio.sleep(every_s)

    async def _sign_off(self) -> None:
        for partition in self._partitions.all:
            try:
                await jobs.sign_off(partition, self._slots, process=self._process)
            except BusAway:
                _log.debug("worker.unsigned", partition=partition.index)
