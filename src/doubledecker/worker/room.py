"""Room for large batches: bounds the bytes that a worker process has under way, so that no receiver fills its memory.

A batch is read when there is room for it. A client has a quarter of the room at most, so that one whose receivers take
long leaves the rest to others; and one batch of a client waits at a time, those who have waited longest first. So no
client waits for more than the calls that are under way. Small batches need no room: slots bound them.

Batches of queues are made here, so none has to wait: where a client has its share in hand, its next one is small.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

# Eight batches of the largest size. Each is held up to three times: as lines, as a body, and by its connection.
_BYTES_MAX = 134_217_728
_SHARES = 4
# A client that has less than this in hand takes a batch of a queue whatever others have: a few of the largest messages.
_ALWAYS_BYTES = 1_048_576


@dataclass(frozen=True)
class _Waiting:
    size: int
    admitted: "asyncio.Future[None]"


class Room:
    """How many bytes are under way in this process, and who waits."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._left = bytes_max
        self._share_max = bytes_max // _SHARES
        self._held: dict[str, int] = {}
        # By client, those who have waited longest first.
        self._waiting: dict[str, _Waiting] = {}

    def has_turn(self, client: str) -> bool:
        """Whether the next batch of a client may be taken, or wait."""
        return client not in self._waiting

    @asynccontextmanager
    async def taken(self, client: str, size: int) -> AsyncIterator[None]:
        """Wait until there is room, and hold it; for a client that `has_turn`. One batch always fits, however large."""
        size = min(size, self._share_max)
        waiting = self._waiting[client] = _Waiting(size, asyncio.get_running_loop().create_future())
        self._admit()
        try:
            await waiting.admitted
            yield
        finally:
            if self._waiting.get(client) is waiting:
                del self._waiting[client]
            else:
                self._give_back(client, size)
            self._admit()

    def _admit(self) -> None:
        """Let in who has waited longest, but nobody beyond its share."""
        for client, waiting in list(self._waiting.items()):
            held = self._held.get(client, 0)
            if held + waiting.size > self._share_max:
                continue
            if waiting.size > self._left:
                return
            del self._waiting[client]
            self._left -= waiting.size
            self._held[client] = held + waiting.size
            # One that was cancelled gives it back.
            if not waiting.admitted.done():
                waiting.admitted.set_result(None)

    def _give_back(self, client: str, size: int) -> None:
        self._left += size
        self._held[client] -= size
        if self._held[client] == 0:
            del self._held[client]


class HeldBytes:
    """What messages of queues hold that are in hand in this process, by client."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._total = 0
        self._held: dict[str, int] = {}

    def add(self, client: str, size: int) -> None:
        """Count what was pulled, or, by a negative number, what is let go."""
        self._total += size
        self._held[client] = self._held.get(client, 0) + size
        if self._held[client] == 0:
            del self._held[client]

    def is_enough(self, client: str) -> bool:
        """Whether a client has its share, or more than little while all is taken: it takes one message at a time."""
        held = self._held.get(client, 0)
        return held >= self._bytes_max // _SHARES or (self._total >= self._bytes_max and held >= _ALWAYS_BYTES)
