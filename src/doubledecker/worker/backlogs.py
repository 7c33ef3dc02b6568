"""Measures how many bytes wait for each client, and logs who has too many.

Queues know how many messages they hold, not how large these are: to keep count would cost every pull and ack. So it is
estimated here from a few messages of each queue and a few batches of each subscriber, beside what is published and
pulled. However many there are, measuring takes at most a tenth of the time.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from doubledecker import log
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.registry import LiveRegistry
from doubledecker.store import backlogs, batches, dead_letters, fanouts, memory, queue_contents
from doubledecker.store.partitions import Partition, Partitions

_PAUSE_TIMES = 10

_log = log.get("worker")


class BacklogMeter:
    """Measures the backlogs of all clients, at most so often as the bus can afford."""

    def __init__(self, partitions: Partitions, live: LiveRegistry, rules: MemoryRules) -> None:
        self._partitions = partitions
        self._live = live
        self._rules = rules
        self._not_before_s = 0.0
        self._most = 0

    async def run(self) -> None:
        """Measure, unless the last time took long and was not long ago."""
        time = asyncio.get_running_loop().time
        started_s = time()
        if started_s >= self._not_before_s:
            await self.measure()
            self._not_before_s = time() + _PAUSE_TIMES * (time() - started_s)

    async def measure(self) -> None:
        """Measure what waits for every client, and write it down."""
        await self._live.refresh()
        waiting: Counter[str] = Counter()
        for partition in self._partitions.all:
            waiting.update(await self._in_queues(partition))
            waiting.update(await self._in_fanouts(partition))
            _, counts = await batches.gauges(partition)
            held = {token: count for token, count in counts.items() if count > 0}
            waiting.update(self._by_client(await backlogs.of_subscribers(partition, held)))
        home = self._partitions.home
        _, before = await backlogs.overfull(home, self._most)
        self._most = most = await self._bytes_max()
        await backlogs.save(home, waiting, most=most)
        now = {client: size for client, size in waiting.items() if 0 < most < size}
        for client in sorted(now.keys() - before.keys()):
            _log.warning("backlog.exceeded", client=client, bytes=now[client], bytes_max=most)
        for client in sorted(before.keys() - now.keys()):
            _log.info("backlog.relieved", client=client, bytes=waiting[client], bytes_max=most)

    async def _in_queues(self, partition: Partition) -> Counter[str]:
        """What messages and dead letters take, by owner; root has no bound."""
        known = self._live.snapshot.queues
        names = [
            name for name in await queue_contents.names_held(partition) if name in known and not known[name].is_roots
        ]
        sizes = (await dead_letters.sizes(partition)).items()
        found = self._by_client({token: size for token, size in sizes if not token.startswith("@")})
        for name, usage in (await memory.of_queues(partition, names)).items():
            found[known[name].owner] += usage.bytes
        return found

    def _by_client(self, sizes: Mapping[str, int]) -> Counter[str]:
        """What subscribers hold, by client; of one that is gone it is nobody's, and goes soon."""
        found: Counter[str] = Counter()
        for token, size in sizes.items():
            found[self._live.snapshot.owner_of(token) or token] += size
        return found

    async def _in_fanouts(self, partition: Partition) -> Counter[str]:
        """What copies will take that are yet to be made: own ones count for the publisher, others for the owner."""
        known = self._live.snapshot.queues
        found: Counter[str] = Counter()
        for line, sizes in (await fanouts.waiting(partition)).items():
            kind, _, publisher = line.partition(":")
            for name, size in sizes.items():
                queue = known.get(name.removeprefix("@"))
                if kind != "others":
                    found[publisher] += size
                elif queue is not None:
                    found[queue.owner] += size
        return found

    async def _bytes_max(self) -> int:
        firsts = [partitions[0] for partitions in self._partitions.by_server()]
        limits = [self._rules.limit_of((await memory.usage(first)).bytes_max) for first in firsts]
        return self._rules.client_bytes_max(limits, self._live.quotas.client_waiting_bytes_max)
