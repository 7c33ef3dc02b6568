"""Growth of the attempt journal: a worker that writes much of it cuts the journals to their bound at once.

The job `repair` cuts them each second. In between one client's attempts can be a hundred megabytes: each names its
events, ten thousand at most, whose ids are their publisher's.
"""

import contextlib
from collections.abc import Awaitable, Callable

from doubledecker.errors import BusAway

# What a process writes before it has the journals cut: thousands of ordinary attempts, 1 % of the default bound.
_BYTES = 8_388_608


class JournalGrowth:
    """Counts what this process has written since the journals were cut."""

    def __init__(self, trim: Callable[[], Awaitable[None]]) -> None:
        self._trim = trim
        self._bytes = 0

    async def add(self, size: int) -> None:
        """Count an attempt that is about to be written; the one that goes too far waits until the journals are cut."""
        self._bytes += size
        if self._bytes >= _BYTES:
            self._bytes = 0
            with contextlib.suppress(BusAway):  # then the next one does, or the job
                await self._trim()
