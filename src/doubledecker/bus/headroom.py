"""Headroom: how much memory the servers have left, for publishing: whether to refuse, and how far journals may grow."""

import asyncio

from doubledecker import log
from doubledecker.bus import relief
from doubledecker.bus.relief import MemoryRules
from doubledecker.errors import MemoryFull, SettingInvalid
from doubledecker.store import journal, memory
from doubledecker.store.events import PublishLimits
from doubledecker.store.partitions import Partition, Partitions

# As often as the registry is looked at; in between a publisher may outrun the bound a little.
_LOOK_S = 0.5
# While memory is full, so often: a flood of publishes that are refused must not be a flood of looks at the servers.
_LOOK_FULL_S = 0.05

_log = log.get("bus")


class Headroom:
    """The memory of every server, as last looked at by this process."""

    def __init__(self, partitions: Partitions, rules: MemoryRules) -> None:
        self.rules = rules
        self._partitions = partitions
        self._looked_s = float("-inf")
        self._limits: dict[int, int] = {}
        self._full: set[int] = set()
        self._events_max: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether some server used more than its limit when this process last looked."""
        return bool(self._full)

    async def admit(self, partition: Partition) -> PublishLimits:
        """What a publish call may do in a partition; raises MemoryFull when its server uses more than its limit."""
        # A look that failed half-way has not reached every server.
        is_looked_at = partition.index in self._events_max
        if not is_looked_at or (partition.index in self._full and self._age_s() > _LOOK_FULL_S):
            await self.refresh()
        if partition.index in self._full:
            raise MemoryFull
        return PublishLimits(journal_bytes_max=self._events_max[partition.index] if self.rules.journal_refuses else 0)

    async def tidy(self, partition: Partition, journal_bytes: int) -> None:
        """Cut the event journal if a publish call took it over its bound; look again if that was long ago."""
        if self._age_s() > _LOOK_S:
            await self.refresh()
        bytes_max = self._events_max[partition.index]
        if journal_bytes > bytes_max:
            await journal.trim(partition, "events", bytes_max=bytes_max, is_forced=not self.rules.journal_refuses)

    async def refresh(self) -> None:
        """Look at all servers."""
        for partitions in self._partitions.by_server():
            await self._look(partitions)
        self._looked_s = asyncio.get_running_loop().time()

    def check(self) -> None:
        """Log what bounds memory; raises SettingInvalid when a server's limit leaves nothing to the bus."""
        for limit in sorted(set(self._limits.values())):
            journals_max = self.rules.journals_max(limit)
            if limit == 0:
                _log.warning("memory.unbounded", journal_bytes_max=journals_max)
            else:
                _log.info("memory.bounded", limit_bytes=limit, journal_bytes_max=journals_max)
            if 0 < limit <= self.rules.reserve_bytes:
                raise SettingInvalid(
                    f"the server may use {limit} bytes (its maxmemory, or DOUBLEDECKER_REDIS_MAX_MEM_BYTES), and "
                    f"DOUBLEDECKER_REDIS_MIN_FREE_BYTES keeps {self.rules.reserve_bytes} of them free: "
                    "nothing is left for events; raise the first or lower the second"
                )

    def _age_s(self) -> float:
        """How long ago this process looked."""
        return asyncio.get_running_loop().time() - self._looked_s

    async def _look(self, partitions: list[Partition]) -> None:
        usage = await memory.usage(partitions[0])
        limit = self.rules.limit_of(usage.bytes_max)
        states = [await journal.state(partition) for partition in partitions]
        sizes = [int(state.get(f"{name}_bytes", 0)) for state in states for name in journal.NAMES]
        bounds = relief.journal_bounds(sizes, self.rules.journals_max(limit))
        for at, partition in enumerate(partitions):
            self._limits[partition.index] = limit
            self._events_max[partition.index] = bounds[at * len(journal.NAMES)]
            if limit and usage.used_bytes > limit:
                self._full.add(partition.index)
            else:
                self._full.discard(partition.index)
