"""Headroom: how much memory the servers have left, for publishing: whether to refuse, and how far journals may grow.

A background task looks at the servers while something is published. A publish waits for a look only where its result
depends on it, and at its own server alone: before the first publish, while memory is full, before a journal is cut.
"""

import asyncio
import contextlib

from doubledecker import log
from doubledecker.bus import memory_relief
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import BusAway, MemoryFull, SettingInvalid
from doubledecker.store import journal, memory
from doubledecker.store.events import PublishLimits
from doubledecker.store.partitions import Partition, Partitions

# As often as the registry is looked at; in between a publisher may outrun the bound a little.
_LOOK_S = 0.5
_LOOK_OLD_S = 2 * _LOOK_S  # later than the background task looks again while something is published
# While memory is full, so often: a flood of publishes that are refused must not be a flood of looks at the servers.
_LOOK_FULL_S = 0.05
# An empty server with our scripts and connections uses 3 MB; with less than this, autodrop would work on an idle bus.
ROOM_BYTES_MIN = 6 << 20

_log = log.get("bus")


class Headroom:
    """The memory of every server, as last looked at by this process."""

    def __init__(self, partitions: Partitions, rules: MemoryRules, *, tenants_max: int = 0) -> None:
        self.rules = rules
        self._tenants_max = tenants_max
        self._partitions = partitions
        self._looked_s: dict[int, float] = {}
        self._limits: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._full: set[int] = set()
        self._events_max: dict[int, int] = {}
        self._is_publishing = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether some server used more than its limit when this process last looked."""
        return bool(self._full)

    async def run(self) -> None:
        """Look at all servers, again and again while something is published, for as long as the process lives."""
        while True:
            await self._is_publishing.wait()
            self._is_publishing.clear()
            # A server that is away keeps what was last seen of it; the publish that it fails reports that.
            with contextlib.suppress(BusAway):
                await self.refresh()
            await asyncio.sleep(_LOOK_S)

    async def admit(self, partition: Partition) -> PublishLimits:
        """What a publish call may do in a partition; raises MemoryFull when its server uses more than its limit."""
        self._is_publishing.set()
        # A look that failed half-way has not reached every server.
        is_looked_at = partition.index in self._events_max
        if not is_looked_at or (partition.index in self._full and self._age_s(partition) > _LOOK_FULL_S):
            await self._look_at_server_of(partition)
        if partition.index in self._full:
            raise MemoryFull
        journal_bytes_max = self._events_max[partition.index] if self.rules.journal_refuses else 0
        return PublishLimits(journal_bytes_max=journal_bytes_max, tenants_max=self._tenants_max)

    async def tidy(self, partition: Partition, journal_bytes: int) -> None:
        """Cut the event journal if a publish call took it over its bound."""
        if journal_bytes <= self._events_max[partition.index]:
            return
        # An old bound may be too low, if another journal was cut since: events would then be cut for nothing.
        if self._age_s(partition) > _LOOK_OLD_S:
            await self._look_at_server_of(partition)
        bytes_max = self._events_max[partition.index]
        if journal_bytes > bytes_max:
            await journal.trim(partition, "events", bytes_max=bytes_max, is_forced=not self.rules.journal_refuses)

    async def refresh(self) -> None:
        """Look at all servers side by side; raises what the first that failed raised, when all others have answered."""
        looks = (self._look(partitions) for partitions in self._partitions.by_server())
        for failed in await asyncio.gather(*looks, return_exceptions=True):
            if failed is not None:
                raise failed

    def check(self) -> None:
        """Log what bounds memory, and what is beyond; raises SettingInvalid when a limit leaves the bus no room."""
        for limit in sorted(set(self._limits.values())):
            journals_max = self.rules.journals_max(limit)
            if limit == 0:
                _log.warning("memory.unbounded", journal_bytes_max=journals_max)
            else:
                _log.info("memory.bounded", limit_bytes=limit, journal_bytes_max=journals_max)
            if limit and self.rules.bound_of(limit) < ROOM_BYTES_MIN:
                raise SettingInvalid(
                    f"the server may use {limit} bytes (its maxmemory, or DOUBLEDECKER_REDIS_MAX_MEM_BYTES), and "
                    f"DOUBLEDECKER_REDIS_MIN_FREE_BYTES keeps {self.rules.reserve_bytes} of them free: at least "
                    f"{ROOM_BYTES_MIN} must be left for events; raise the first or lower the second"
                )
        for used, limit in sorted(set(zip(self._used.values(), self._limits.values(), strict=True))):
            if limit and used > self.rules.bound_of(limit):
                _log.error(
                    "memory.exceeded",
                    used_bytes=used,
                    limit_bytes=limit,
                    reserve_bytes=self.rules.reserve_bytes,
                    settings="redis_max_mem_bytes, redis_min_free_bytes",
                )

    def _age_s(self, partition: Partition) -> float:
        """How long ago this process looked at the server of a partition."""
        return asyncio.get_running_loop().time() - self._looked_s[partition.index]

    async def _look_at_server_of(self, partition: Partition) -> None:
        for partitions in self._partitions.by_server():
            if partition in partitions:
                await self._look(partitions)

    async def _look(self, partitions: list[Partition]) -> None:
        usage, states = await asyncio.gather(
            memory.usage(partitions[0]), asyncio.gather(*(journal.state(partition) for partition in partitions))
        )
        limit = self.rules.limit_of(usage.bytes_max)
        sizes = [int(state.get(f"{name}_bytes", 0)) for state in states for name in journal.NAMES]
        bounds = memory_relief.journal_bounds(sizes, self.rules.journals_max(limit))
        for at, partition in enumerate(partitions):
            self._looked_s[partition.index] = asyncio.get_running_loop().time()
            self._limits[partition.index] = limit
            self._used[partition.index] = usage.used_bytes
            self._events_max[partition.index] = bounds[at * len(journal.NAMES)]
            if limit and usage.used_bytes > limit:
                self._full.add(partition.index)
            else:
                self._full.discard(partition.index)
