"""Aux jobs: chores and other work of the worker, one after the other, in a slot of their own."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from doubledecker import log
from doubledecker.background import sleep_until
from doubledecker.errors import BusAway, RetryLater
from doubledecker.store import jobs
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition, Partitions

# After an absence of Redis, or an error that nobody foresaw: soon enough to heal, slow enough not to spin.
_PAUSE_S = 0.2
_ERROR_DELAY_MS = 5_000

_log = log.get("worker")


class AuxJobs:
    """Runs the aux jobs of all partitions in turn.

    When a reply from Redis is lost, the slot may hold a job there that nobody here knows of. Then that partition alone
    is asked, whose script gives it the job that it holds.
    """

    def __init__(
        self,
        partitions: Partitions,
        slot: str,
        execute: Callable[[Taken], Awaitable[None]],
        *,
        process: str,
        sleep_s_max: float,
    ) -> None:
        self._partitions = partitions
        self._slot = slot
        self._execute = execute
        self._process = process
        self._sleep_s_max = sleep_s_max
        self._in_doubt: Partition | None = None
        self._is_wanted = asyncio.Event()
        self._is_stopping = False
        self._running: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._is_wanted.set()

    async def run(self) -> None:
        """Run jobs until asked to stop."""
        self._running = asyncio.create_task(self._run_forever())
        try:
            await asyncio.wait([self._running])
        finally:
            self._running.cancel()

    async def stop(self, *, patience_s: float) -> None:
        """Take nothing more; let what runs finish, and give it back if it does not in time."""
        self._is_stopping = True
        self.wake()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=patience_s)
            self._running.cancel()

    async def _run_forever(self) -> None:
        first = 0
        while not self._is_stopping:
            self._is_wanted.clear()
            first += 1
            wait_s = await self._visit(first)
            await sleep_until(self._is_wanted, wait_s)

    async def _visit(self, first: int) -> float:
        """Run a job of each partition, beginning with another one each time; returns how long to sleep."""
        count = len(self._partitions.all)
        in_turn = [self._partitions.all[(first + i) % count] for i in range(count)]
        wait_s = self._sleep_s_max
        for partition in [self._in_doubt] if self._in_doubt else in_turn:
            try:
                take = await jobs.take(partition, [self._slot], process=self._process)
                self._in_doubt = None
                for taken in take.taken:
                    await self._run_job(taken)
                    wait_s = 0.0
            except BusAway as error:
                _log.warning("jobs.unreachable", partition=partition.index, error=str(error))
                self._in_doubt = partition
                return _PAUSE_S
            except Exception:  # noqa: BLE001 - a job that cannot even be read may end nothing but its own partition's
                _log.exception("jobs.failed", partition=partition.index)
                self._in_doubt = None
                wait_s = min(wait_s, _ERROR_DELAY_MS / 1000)
                continue
            if take.wait_ms is not None:
                wait_s = min(wait_s, take.wait_ms / 1000)
        return wait_s

    async def _run_job(self, taken: Taken) -> None:
        """Run one job; whatever it raises but that Redis is away, nothing ends and the job is not lost."""
        try:
            await self._execute(taken)
        except RetryLater as later:
            await jobs.nack(taken, delay_ms=later.delay_ms)
        except BusAway as error:
            _log.warning("job.interrupted", job=taken.job.name, slot=taken.slot, error=str(error))
            raise
        except asyncio.CancelledError:
            with contextlib.suppress(BusAway):  # then it is scrubbed
                await jobs.nack(taken, delay_ms=0)
            raise
        except Exception:  # noqa: BLE001 - the edge of a job: nothing in it may end the process
            _log.exception("job.failed", job=taken.job.name, args=taken.job.args)
            await jobs.nack(taken, delay_ms=_ERROR_DELAY_MS)
