"""The embedded server's `maxmemory`: how much memory there is, and how much of it the server may use."""

import os
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from doubledecker.errors import ServerUnfit
from doubledecker.store import cgroup

_ANSWER_S_MAX = 10.0  # it has just answered a ping; one that is silent for so long hangs
# Where a group's limit is, and in which hierarchy: of version 2, which has no name, and of version 1.
_LIMITS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}


@dataclass(frozen=True)
class MemoryLimit:
    """The `maxmemory` that is asked for (0: none), and how much a server must have beyond what its data takes."""

    asked_bytes: int
    headroom_bytes: int

    async def apply(self, url: str) -> int:
        """Bound the memory of a server that has loaded its data; returns the bound. Raises ServerUnfit if it died."""
        if self.asked_bytes == 0:
            return 0
        try:
            async with Redis.from_url(url, socket_timeout=_ANSWER_S_MAX, decode_responses=True) as client:
                used = int((await client.info("memory"))["used_memory"])
                bound = max(self.asked_bytes, used + self.headroom_bytes)
                await client.config_set("maxmemory", bound)
        except (RedisError, OSError) as error:
            raise ServerUnfit(f"valkey-server went away while its memory was being bounded: {error}") from error
        return bound


def machine_bytes(root: Path = cgroup.ROOT) -> int:
    """The machine's memory, or less if a control group that we are in, such as a container's, allows less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = map(_limit, cgroup.files(_LIMITS, root))
    return min([physical, *(limit for limit in limits if limit is not None)])


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None  # none here, or `max`
