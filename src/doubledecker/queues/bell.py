"""The bell: wakes those who wait for a queue when it has something to serve. One connection a partition, for all."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from doubledecker import log
from doubledecker.errors import BusAway
from doubledecker.store import queues
from doubledecker.store.partitions import Partition, Partitions

_PAUSE_S = 0.5

_log = log.get("queues")


class Bell:
    """Who waits for which queue in this process."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.is_stopped = False

    async def run(self) -> None:
        """Listen for as long as the process lives."""
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions.all:
                tasks.create_task(self._listen(partition))

    def stop(self) -> None:
        """Wake everyone for good: the process is about to end."""
        self.is_stopped = True
        for waiting in self._waiting.values():
            for rung in waiting:
                rung.set()

    @contextmanager
    def waiting(self, name: str, rung: asyncio.Event) -> Iterator[asyncio.Event]:
        """The event is set whenever the queue may have something; ask the queue after entering, then wait."""
        self._waiting[name].add(rung)
        try:
            yield rung
        finally:
            self._waiting[name].discard(rung)
            if not self._waiting[name]:
                del self._waiting[name]

    async def _listen(self, partition: Partition) -> None:
        last = "0-0"
        while True:
            try:
                last, names = await queues.bell(partition, last)
            except BusAway as error:
                _log.debug("bell.unreachable", partition=partition.index, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                # A server that lost its bell starts counting anew; what rang meanwhile is anyone's guess.
                last, names = "0-0", list(self._waiting)
            for name in names:
                for rung in self._waiting.get(name, ()):
                    rung.set()
