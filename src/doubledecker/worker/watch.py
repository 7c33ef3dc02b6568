"""Watch: pushes what queues with a callback hold. Watch, Receive, Deliver, as in the early Routemaster.

Watch looks at the registry, and runs a Receive for each queue that has a callback: a new queue gets one, one that
changed gets another, one that is gone loses it, and one whose Receive failed gets it anew. Every worker watches, and so
does a process that does nothing else; they share queues by pulling from them, and the permits of a receiver are counted
in Redis for all.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from doubledecker import log
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.launch import launch
from doubledecker.assembly.settings import Settings
from doubledecker.background import beside, sleep_until
from doubledecker.bus.presence import Presence
from doubledecker.delivery.deliver import Deliverer
from doubledecker.errors import BusAway
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.uid import uid
from doubledecker.store import processes
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.journal_growth import JournalGrowth
from doubledecker.worker.push import Pusher
from doubledecker.worker.receive import Receive

# The registry's copy is refreshed twice a second; looking at it costs next to nothing.
_LOOK_S = 0.25
# A third of the lease, so that two beats may be lost.
_BEATS_PER_LEASE = 3

_log = log.get("watch")


@dataclass(frozen=True)
class _Served:
    """A queue as it is served by this process."""

    queue: RegisteredQueue
    receive: Receive
    task: "asyncio.Task[None]"


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Watch, and do nothing else, until `stop` is set."""
    async with (
        build.open_bus(settings, stop=stop, migrate=build.migrating(settings, stop)) as bus,
        build.open_deliverer(settings, bus.partitions, part="watch") as deliverer,
    ):
        launched = launch("watch")
        async with (
            Presence(bus.partitions.home, launched.process, kind=launched.kind).kept(),
            beside(bus.registry.follow()),
        ):
            autodrop = Autodrop(bus.partitions, bus.registry, bus.headroom.rules)
            await make_watch(settings, bus, deliverer, JournalGrowth(autodrop.trim_journals)).run(stop)


def make_watch(settings: Settings, bus: BusParts, deliverer: Deliverer, growth: JournalGrowth) -> "Watch":
    lease_ms = round(settings.watch_lease_s * 1000)
    pusher = Pusher(
        bus.partitions, bus.rings, deliverer, slots=settings.worker_threads, lease_ms=lease_ms, growth=growth
    )
    return Watch(bus, pusher, shutdown_s=settings.shutdown_s)


class Watch:
    """Serves the queues that have a callback; the process that it runs in follows the registry."""

    def __init__(self, bus: BusParts, pusher: Pusher, *, shutdown_s: float) -> None:
        self._bus = bus
        self._pusher = pusher
        self._shutdown_s = shutdown_s
        self._name = uid()
        self._served: dict[str, _Served] = {}
        self._ending: list[_Served] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set; then finish or give back what is held."""
        _log.info("watch.started", partitions=len(self._bus.partitions.all))
        async with beside(self._bus.bell.run()), beside(self._beat()):
            while not stop.is_set():
                self._look()
                await sleep_until(stop, _LOOK_S)
            await self._end_all()
        with contextlib.suppress(BusAway):
            await processes.sign_off_watch(self._bus.partitions.home, self._name)
        _log.info("watch.stopped")

    def _look(self) -> None:
        """Bring what is served in line with what is registered."""
        known = self._bus.registry.snapshot.queues.values()
        wanted = {queue.name: queue for queue in known if queue.callback and not queue.receiver.halt}
        for name, served in list(self._served.items()):
            if served.task.done() or wanted.get(name) != served.queue:
                self._end(name)
        for name in wanted.keys() - self._served.keys():
            self._start(wanted[name])
        for served in self._ending:
            if served.task.done() and served.task.exception():
                _log.error("receive.failed", queue=served.queue.name, exc_info=served.task.exception())
        self._ending = [served for served in self._ending if not served.task.done()]

    def _start(self, queue: RegisteredQueue) -> None:
        receive = Receive(queue, self._bus.registry, self._bus.rings, self._bus.bell, self._pusher)
        self._served[queue.name] = _Served(queue, receive, asyncio.create_task(receive.run(), name=queue.name))
        _log.info("queue.watched", queue=queue.name, callback=queue.callback)

    def _end(self, name: str) -> None:
        served = self._served.pop(name)
        served.receive.stop()
        self._ending.append(served)
        _log.info("queue.unwatched", queue=name)

    async def _end_all(self) -> None:
        for name in list(self._served):
            self._end(name)
        if not self._ending:
            return
        _, late = await asyncio.wait([served.task for served in self._ending], timeout=self._shutdown_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*(served.task for served in self._ending), return_exceptions=True)
        for served in self._ending:
            with contextlib.suppress(BusAway):  # then their leases end by themselves
                await served.receive.give_up()

    async def _beat(self) -> None:
        """Report that we live, and renew all leases, for as long as the process does."""
        home, lease_ms = self._bus.partitions.home, self._pusher.lease_ms
        while True:
            try:
                await processes.beat_watch(home, self._name, dead_ms=10 * lease_ms)
                beats = [served.receive.beat() for served in (*self._served.values(), *self._ending)]
                await asyncio.gather(*beats)
            except BusAway as error:
                _log.warning("heartbeat.missed", error=str(error))
            await asyncio.sleep(lease_ms / 1000 / _BEATS_PER_LEASE)
