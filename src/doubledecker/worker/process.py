"""The worker process: slots and their fetchers, the bell, heartbeats and tickers, from start to clean stop."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from doubledecker import log
from doubledecker.assembly import build
from doubledecker.assembly.build import Bus
from doubledecker.assembly.launch import Launch, launch
from doubledecker.assembly.settings import Settings
from doubledecker.bus.presence import Presence
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.verdict import Backoff
from doubledecker.delivery.chains import Chains
from doubledecker.delivery.record import ChainsTold
from doubledecker.errors import BusAway
from doubledecker.model.job import AUX, MAIN, RETRY, Job
from doubledecker.model.uid import uid
from doubledecker.store import chains, jobs
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.backlogs import BacklogMeter
from doubledecker.worker.chores import ChoreRules, Chores
from doubledecker.worker.deliver import Deliverer, DeliveryRules
from doubledecker.worker.fetch import Fetcher
from doubledecker.worker.monitor import Adapter, Monitor, PrintAdapter, StatsdAdapter

# Safety net for what a crash left behind; nothing that is on time waits for it.
_REPAIR_S = 1.0
_SWEEP_S = 30.0
# Between two looks a client may have more than its bound waiting.
_BACKLOGS_S = 1.0
_RETURN_S = 5.0
# What a call takes beyond its own deadline: loading, settling.
_LEASE_MARGIN_S = 5
# A third of the time after which a silent slot counts as dead, so that two beats may be lost.
_BEATS_PER_DEATH = 3
# This share of the slots may take retries; the others serve first tries alone, so failing receivers cannot hold them.
_RETRY_SHARE = 0.3
_PAUSE_S = 0.5

_log = log.get("worker")


@dataclass(frozen=True)
class Rhythm:
    """How many slots, and how often what happens."""

    slots: int
    sleep_s_max: float
    dead_s: float
    shutdown_s: float
    scrub_s: float
    tickers: dict[str, float]


async def run(settings: Settings, stop: asyncio.Event, launched: Launch | None = None) -> None:
    """Work until `stop` is set."""
    launched = launched or launch("worker")
    async with build.open_bus(settings, stop=stop) as bus, build.open_chains(settings) as receivers:
        bus.headroom.check()
        presence = Presence(bus.partitions.home, launched.process, kind=launched.kind)
        with contextlib.closing(Monitor(_adapters(settings))) as monitor:
            worker = make_worker(settings, bus, receivers, monitor)
            async with presence.kept():
                await worker.run(stop, launched.ready)


def make_worker(settings: Settings, bus: Bus, receivers: Chains, monitor: Monitor) -> "Worker":
    """The worker for these settings."""
    delivery = DeliveryRules(
        backoff=Backoff(settings.backoff_base_ms, settings.backoff_cap_ms),
        lease_ms=round((build.chain_rules(settings).deadline_s + _LEASE_MARGIN_S) * 1000),
        heal_points=settings.hp_heal_rate,
        damage_points=settings.hp_damage_rate,
    )
    chore = ChoreRules(dead_ms=round(settings.worker_dead_s * 1000), memory=bus.headroom.rules)
    rhythm = Rhythm(
        slots=settings.worker_threads,
        sleep_s_max=settings.acquire_timeout_s,
        dead_s=settings.worker_dead_s,
        shutdown_s=settings.shutdown_s,
        scrub_s=settings.scrub_interval_s,
        tickers={
            "monitor": settings.monitor_interval_s,
            "autodrop": settings.autodrop_interval_s,
            "backlogs": _BACKLOGS_S,
            "repair": _REPAIR_S,
            "sweep": _SWEEP_S,
            "return": _RETURN_S,
        },
    )
    deliverer = Deliverer(bus.partitions, bus.registry, receivers, delivery)
    autodrop = Autodrop(bus.partitions, bus.registry, bus.headroom.rules)
    meter = BacklogMeter(bus.partitions, bus.registry, bus.headroom.rules)
    chores = Chores(bus.partitions, bus.registry, deliverer, monitor, autodrop, meter, chore)
    return Worker(bus.partitions, bus.registry, deliverer, chores, receivers, rhythm)


def _adapters(settings: Settings) -> list[Adapter]:
    adapters: list[Adapter] = []
    if "print" in settings.adapters:
        adapters.append(PrintAdapter())
    if "statsd" in settings.adapters:
        adapters.append(StatsdAdapter(settings.statsd_address))
    return adapters


class Worker:
    """Everything that one worker process does."""

    def __init__(
        self,
        partitions: Partitions,
        registry: LiveRegistry,
        deliverer: Deliverer,
        chores: Chores,
        receivers: Chains,
        rhythm: Rhythm,
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._deliverer = deliverer
        self._chores = chores
        self._rhythm = rhythm
        self._process = process = uid()
        self._told = ChainsTold(partitions.home, process, receivers)
        slots = [uid() for _ in range(rhythm.slots)]
        aux_slot = uid()
        self._slots = [*slots, aux_slot]
        few = max(1, round(rhythm.slots * _RETRY_SHARE))
        retrying, others = slots[:few], slots[few:]
        self._main = Fetcher(
            partitions,
            {RETRY: retrying, MAIN: [*others, *retrying]},
            deliverer.deliver,
            process=process,
            sleep_s_max=rhythm.sleep_s_max,
            busy=deliverer.busy,
            announce=deliverer.announce,
            count=deliverer.count,
        )
        self._aux = Fetcher(
            partitions, {AUX: [aux_slot]}, chores.run, process=f"{process}:aux", sleep_s_max=rhythm.sleep_s_max
        )

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop` is set; then finish or give back what is held. Calls `ready` when it begins."""
        # Before it takes anything: a slot that was never heard of counts as dead.
        while not await self._try_beat():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await stop.wait()
                    return
        _log.info("worker.started", slots=self._rhythm.slots, partitions=len(self._partitions.all))
        ready()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._registry.follow()),
                tasks.create_task(self._beat_forever()),
                tasks.create_task(self._scrub_forever()),
                *(tasks.create_task(self._listen(partition)) for partition in self._partitions.all),
                *(tasks.create_task(self._tick(name, every_s)) for name, every_s in self._rhythm.tickers.items()),
            ]
            fetching = [tasks.create_task(fetcher.run()) for fetcher in (self._main, self._aux)]
            await stop.wait()
            self._deliverer.wind_down()
            stops = (fetcher.stop(patience_s=self._rhythm.shutdown_s) for fetcher in (self._main, self._aux))
            await asyncio.gather(*stops)
            await asyncio.gather(*fetching)
            for task in background:
                task.cancel()
        await self._sign_off()
        _log.info("worker.stopped")

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rhythm.dead_s / _BEATS_PER_DEATH)
            await self._try_beat()

    async def _try_beat(self) -> bool:
        try:
            await asyncio.gather(*(jobs.beat(partition, self._slots) for partition in self._partitions.all))
            await self._told.tell()
        except BusAway as error:
            _log.warning("heartbeat.missed", error=str(error))
            return False
        return True

    async def _listen(self, partition: Partition) -> None:
        """Wake the fetchers whenever a partition's bell rings."""
        last = "0-0"
        while True:
            try:
                heard = await jobs.bell(partition, last)
            except BusAway:
                await asyncio.sleep(_PAUSE_S)
                heard = "0-0"  # a server that lost its bell starts counting anew
            if heard != last:
                last = heard
                self._main.wake()
                self._aux.wake()

    async def _tick(self, name: str, every_s: float) -> None:
        """Add a recurring job; of many workers' ticks only one in a period counts."""
        while True:
            try:
                await jobs.push(self._partitions.home, AUX, Job(name), every_ms=round(every_s * 1000 * 0.9))
            except BusAway:
                _log.debug("tick.missed", job=name)
            await asyncio.sleep(every_s)

    async def _scrub_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rhythm.scrub_s)
            try:
                await self._chores.scrub()
            except BusAway:
                _log.debug("scrub.missed")

    async def _sign_off(self) -> None:
        with contextlib.suppress(BusAway):
            await chains.forget(self._partitions.home, [self._process])
        for partition in self._partitions.all:
            try:
                await jobs.sign_off(partition, self._slots)
            except BusAway:
                _log.debug("worker.unsigned", partition=partition.index)
