"""Whether a client may publish now: not while too many bytes wait for it, and so many events a second.

The events a second of all processes come from a token bucket in Redis, taken from in blocks.

A process takes a twentieth of a second's worth at a time and spends it without asking again, so that a busy publisher
pays one call in many requests for it. What a process has taken and not spent is at most one block.
"""

import asyncio
import math
from weakref import WeakValueDictionary

from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import QuotaExceeded
from doubledecker.model.quota import WAITING_RETRY_S
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions

_BLOCKS_PER_S = 20
# Clients whose blocks are kept; beyond, all are forgotten, and taken anew.
_CLIENTS_MAX = 10_000


class Pacer:
    """Admits events of clients, or says how long to wait."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry) -> None:
        self._partitions = partitions
        self._registry = registry
        self._left: dict[str, int] = {}
        self._taking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _rate(self) -> int:
        return self._registry.quotas.client_events_per_s

    async def wait_ms(self, client: str, events: int) -> int:
        """0 when the events may be published now, and are counted; else in how many milliseconds to ask again."""
        if self._rate == 0:
            return 0
        if not self._spend(client, events):
            # One request takes a block for all that come meanwhile. If each took its own, twenty-one at a time would
            # ask for more blocks than the bucket holds.
            async with self._taking.setdefault(client, asyncio.Lock()):
                wait_ms = await self._take(client, events)
            if wait_ms > 0:
                return wait_ms
            self._left[client] = self._left.get(client, 0) - events
        return 0

    async def wait(self, client: str, events: int) -> None:
        await self._registry.look_at_backlogs()
        while client in self._registry.overfull:
            await asyncio.sleep(WAITING_RETRY_S)
            await self._registry.look_at_backlogs()
        wait_ms = await self.wait_ms(client, events)
        while wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = await self.wait_ms(client, events)

    async def admit(self, client: str, events: int) -> None:
        """Raise QuotaExceeded, with when to try again, unless the events may be published now."""
        self._registry.check_backlog(client)
        await self.pace(client, events)

    async def pace(self, client: str, events: int) -> None:
        """The same for events that add nothing to the bytes that wait for the client."""
        if self._spend(client, events):
            return
        wait_ms = await self.wait_ms(client, events)
        if wait_ms > 0:
            wait_s = math.ceil(wait_ms / 1000)
            raise QuotaExceeded(
                "client_events_per_s",
                self._rate,
                self._rate + events,
                noun="events a second of this client",
                remedy=f"send these again in {wait_s} s",
                retry_after_s=wait_s,
            )

    def _spend(self, client: str, events: int) -> bool:
        """Spend what is left of the client's block; False when it is not enough."""
        left = self._left.get(client, 0) - events
        if left < 0:
            return False
        self._left[client] = left
        return True

    async def _take(self, client: str, events: int) -> int:
        """Take a block unless another request just did; returns 0 when there is enough, else as `wait_ms`."""
        missing = events - self._left.get(client, 0)
        if missing <= 0:
            return 0
        block = max(missing, self._rate // _BLOCKS_PER_S)
        wait_ms = await quotas.take(self._partitions.home, client, count=block, rate=self._rate)
        if wait_ms == 0:
            if client not in self._left and len(self._left) >= _CLIENTS_MAX:
                self._left.clear()
            self._left[client] = self._left.get(client, 0) + block
        return wait_ms
