"""Snapshots of what grows with the number of topics and queues, made no more often than the bus can afford.

One of few rows is made for every request, so that a caller sees what it has just written. One of many is kept for
ten times as long as it took, and made by one request at a time: making it takes at most a tenth of the time, however
many ask.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

ROWS_MAX = 500
_KEPT_TIMES = 10


class SnapshotCache(Generic[T]):
    """The snapshot of one thing, kept while it has many rows."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._kept: list[T] = []
        self._until_s = 0.0

    async def get(self, *, rows: int) -> T:
        """The value, made now if it has few rows, or if the last one is too old."""
        if rows <= ROWS_MAX:
            return await self._make()
        return await self.shared(least_s=0.0)

    async def shared(self, *, least_s: float) -> T:
        """The value that all who look get for so long at least, however few rows it has."""
        async with self._making:
            time = asyncio.get_running_loop().time
            if not self._kept or time() >= self._until_s:
                started_s = time()
                self._kept = [await self._make()]
                self._until_s = time() + max(least_s, _KEPT_TIMES * (time() - started_s))
            return self._kept[0]
