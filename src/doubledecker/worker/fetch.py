"""The fetcher: hands jobs to free slots, and sleeps until the next one is due.

1. Free slots are offered to each partition in turn; the script fills as many as it has jobs for, and says how long to
   wait for the next deadline.
2. Each taken job runs in a task of its own, which may go on to a next job that it got for the slot by itself. The slot
   is free again when the task ends; after a job that was parked and put back it is *sated*, and prefers others.
3. With nothing to take, the fetcher sleeps until the deadline by its own timer, until the bell rings, or until a slot
   becomes free with work left over.

When a reply from Redis is lost, a slot may hold a job there that nobody here knows of. Such a slot is *in doubt*: it is
offered only to that partition, whose script gives it the job that it holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from doubledecker import log
from doubledecker.errors import BusAway, RetryLater
from doubledecker.store import jobs
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition, Partitions

# After an absence of Redis, or an error that nobody foresaw: soon enough to heal, slow enough not to spin.
_PAUSE_S = 0.2
_ERROR_DELAY_MS = 5_000
# Slots offered in one call: enough to keep busy, few enough that an idle call costs next to nothing.
_OFFER_MAX = 8

_log = log.get("worker")


class Fetcher:
    """Keeps a set of slots busy; `queues` says which slots may take from which queue, in order of preference."""

    def __init__(
        self,
        partitions: Partitions,
        queues: dict[str, Sequence[str]],
        execute: Callable[[Taken], Awaitable[Taken | None]],
        *,
        process: str,
        sleep_s_max: float,
        busy: Callable[[], Awaitable[Sequence[str]]] | None = None,
        announce: Callable[[Partition, str], Awaitable[None]] | None = None,
        count: Callable[[int], None] | None = None,
    ) -> None:
        self._partitions = partitions
        self._queues = queues
        self._execute = execute
        self._process = process
        self._sleep_s_max = sleep_s_max
        self._busy = busy
        self._announce = announce
        self._count = count
        self._free = {slot for slots in queues.values() for slot in slots}
        self._sated: set[str] = set()
        self._doubts: dict[str, Partition] = {}
        self._running: dict[asyncio.Task[None], Taken] = {}
        self._is_wanted = asyncio.Event()
        self._is_stopping = False

    def wake(self) -> None:
        """There may be something to take."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Fetch until told to stop."""
        turn = 0
        while not self._is_stopping:
            self._is_wanted.clear()
            turn += bool(self._free)
            wait_s = await self._round(turn)
            await self._sleep(wait_s)

    async def stop(self, *, patience_s: float) -> None:
        """Take nothing more; let what runs finish, and give back what does not in time."""
        self._is_stopping = True
        self.wake()
        if self._running:
            await asyncio.wait(self._running, timeout=patience_s)
        cut = dict(self._running)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        for taken in cut.values():
            await self._give_back(taken, 0)

    async def _round(self, turn: int) -> float:
        """Offer the free slots to every partition, starting with another one each time; returns how long to sleep."""
        wait_s = self._sleep_s_max
        count = len(self._partitions.all)
        for i in range(count):
            partition = self._partitions.all[(turn + i) % count]
            busy = await self._busy() if self._busy else ()
            offers = self._offers(partition)
            if not offers:
                continue
            free = frozenset(self._free)
            sated = tuple(free & self._sated)
            try:
                take = await jobs.take(partition, offers, process=self._process, busy=busy, sated=sated)
            except BusAway as error:
                _log.warning("jobs.unreachable", partition=partition.index, error=str(error))
                self._doubt(partition, offers)
                wait_s = min(wait_s, _PAUSE_S)
                continue
            # Of these alone: a job that ended in doubt while the call was on its way was not part of it.
            for slot in {slot for slots in offers.values() for slot in slots}:
                self._doubts.pop(slot, None)
            for taken in take.taken:
                self._start(taken)
            if self._count:
                self._count(len(free & self._free))  # not those that became free meanwhile
            if take.parked_for or len(take.taken) >= min(len(slots) for slots in offers.values() if slots):
                wait_s = 0.0  # there may be more
            await self._say(partition, take.parked_for)
            if take.wait_ms is not None:
                wait_s = min(wait_s, take.wait_ms / 1000)
        return wait_s

    async def _say(self, partition: Partition, parked_for: Sequence[str]) -> None:
        """Have it known that jobs were parked; what is not said now, the repair chore finds."""
        for token in parked_for:
            assert self._announce is not None, "who names the busy hears of what was parked for them"
            try:
                await self._announce(partition, token)
            except BusAway as error:
                _log.warning("jobs.unreachable", partition=partition.index, error=str(error))

    def _offers(self, partition: Partition) -> dict[str, list[str]]:
        """Some free slots for each queue; those in doubt all, since they may hold a job there."""
        usable = {slot for slot in self._free if self._doubts.get(slot, partition) is partition}
        offers = {}
        for queue, slots in self._queues.items():
            free = [slot for slot in slots if slot in usable]
            offers[queue] = [slot for slot in free if slot in self._doubts]
            offers[queue] += [slot for slot in free if slot not in self._doubts][:_OFFER_MAX]
        return offers if any(offers.values()) else {}

    def _doubt(self, partition: Partition, offers: dict[str, list[str]]) -> None:
        for slots in offers.values():
            self._doubts.update(dict.fromkeys(slots, partition))

    def _start(self, taken: Taken) -> None:
        self._free.discard(taken.slot)
        task = asyncio.create_task(self._run_jobs(taken), name=f"{taken.queue}:{taken.job.name}")
        self._running[task] = taken
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        taken = self._running.pop(task)
        self._free.add(taken.slot)
        if taken.is_called:
            self._sated.add(taken.slot)
        else:
            self._sated.discard(taken.slot)
        self.wake()

    async def _run_jobs(self, taken: Taken) -> None:
        task = asyncio.current_task()
        assert task is not None, "started as one"
        current: Taken | None = taken
        while current is not None:
            self._running[task] = current
            current = await self._run_job(current)

    async def _run_job(self, taken: Taken) -> Taken | None:
        """Run one job and return what the slot has next; whatever it raises, nothing ends and the job is not lost."""
        try:
            return await self._execute(taken)
        except RetryLater as later:
            await self._give_back(taken, later.delay_ms)
        except BusAway as error:
            _log.warning("job.interrupted", job=taken.job.name, slot=taken.slot, error=str(error))
            self._doubts[taken.slot] = taken.partition
        except Exception:  # noqa: BLE001 - the edge of a job: nothing in it may end the process
            _log.exception("job.failed", job=taken.job.name, args=taken.job.args)
            await self._give_back(taken, _ERROR_DELAY_MS)
        return None

    async def _give_back(self, taken: Taken, delay_ms: int) -> None:
        try:
            await jobs.nack(taken, delay_ms=delay_ms)
        except BusAway:
            self._doubts[taken.slot] = taken.partition

    async def _sleep(self, wait_s: float) -> None:
        if not self._free:
            await self._is_wanted.wait()
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._is_wanted.wait()
        except TimeoutError:
            return
