"""Prefetch: pulls messages while others are handled, and no more of them than will be started at once.

What is pulled too early waits here while other consumers are idle, and its waiting is charged to its tenant as if it
were work. So a consumer takes what it has free slots for, and beyond that only what it will start within a moment at
the rate at which it works: nothing when a message takes a second, some hundred when it takes microseconds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from doubledecker.client.ack_buffer import AckBuffer
from doubledecker.client.backoff import Pauses
from doubledecker.client.errors import BusAway
from doubledecker.client.message import Message, MessageSource

# What one pull brings at most; the bus has the same bound.
PULL_MAX = 200
# How long a pull waits for a message. A stop may have to wait that long too: a pull that is abandoned may still take
# messages, and nobody would give them back before their leases end.
WAIT_MS = 1_000
# What is pulled ahead will be started within this time...
_AHEAD_S = 0.03
# ... and is at most two pulls.
_AHEAD_MAX = 400
# With so many messages waiting to be settled it is the bus that is slow; more would not help.
_UNSETTLED_MAX = 4_000
# Of a lease; when messages were asked for longer ago than this, it asks once more whether they are ours.
_FRESH_SHARE = 0.5

_log = logging.getLogger("doubledecker.client")


class Prefetch:
    """Messages that were pulled and not started yet, and the task that pulls them."""

    def __init__(
        self,
        source: MessageSource,
        ack_buffer: AckBuffer,
        *,
        concurrency: int,
        lease_ms: int | None,
        lease_s: float,
        is_ahead: bool,
    ) -> None:
        self.ready: deque[Message] = deque()
        self.running = 0
        self.on_arrival: Callable[[], None] = _nobody_waits
        self._source = source
        self._ack_buffer = ack_buffer
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._fresh_s = lease_s * _FRESH_SHARE
        self._is_ahead = is_ahead
        self._low = 0
        self._room = asyncio.Event()
        self._is_stopping = False
        # Messages handled, and the time in which at least one was, both fading with every pull.
        self._handled = 0.0
        self._busy_s = 0.0
        self._busy_since_s = 0.0

    def start_one(self, now_s: float) -> Message:
        """The next message, which is handled from now on."""
        if not self.running:
            self._busy_since_s = now_s
        self.running += 1
        message = self.ready.popleft()
        if len(self.ready) <= self._low:
            self._room.set()
        return message

    def finish_one(self, now_s: float) -> None:
        """A message has been handled; there is room for another."""
        self.running -= 1
        self._handled += 1
        if not self.running:
            self._busy_s += now_s - self._busy_since_s
        if not self.ready:
            self._room.set()

    def stop(self) -> None:
        """Pull no more; what is under way still comes in."""
        self._is_stopping = True
        self._room.set()
        self._source.hurry()

    async def run(self) -> None:
        """Pull whenever there is room, until stopped; a bus that is away is asked again and again."""
        loop = asyncio.get_running_loop()
        pauses = Pauses()
        while not self._is_stopping:
            most = self._most(loop.time())
            if most <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            asked_s = loop.time()
            try:
                messages = await self._source.pull(most=most, wait_ms=WAIT_MS, lease_ms=self._lease_ms)
            except BusAway as error:
                _log.warning("pull.failed queue=%s error=%s", self._source.name, error)
                await asyncio.sleep(pauses.next_s())
                continue
            pauses = Pauses()
            if messages:
                await self._admit(messages, asked_s, loop.time())

    async def _admit(self, messages: list[Message], asked_s: float, now_s: float) -> None:
        """Take what is ours in hand.

        Their leases began after we had asked, but when exactly only the bus knows: the pull may have waited there, or
        the answer here, while a handler blocked the loop. So when a lease may be over, the bus is asked. The heartbeat
        has them before: what is ours when the bus looks stays ours, however late we learn of it.
        """
        self._ack_buffer.take(messages, now_s)
        if now_s - asked_s > self._fresh_s:
            messages = await self._ack_buffer.keep(messages, lease_ms=self._lease_ms)
        if messages:
            self.ready.extend(messages)
            self.on_arrival()

    def _most(self, now_s: float) -> int:
        """How many messages to ask for now."""
        if self._ack_buffer.unsettled > _UNSETTLED_MAX:
            asyncio.get_running_loop().call_later(_AHEAD_S, self._room.set)
            return 0
        ahead = self._ahead(now_s)
        self._low = ahead // 2
        if len(self.ready) > self._low:
            return 0
        return min(PULL_MAX, self._concurrency + ahead - self.running - len(self.ready))

    def _ahead(self, now_s: float) -> int:
        if not self._is_ahead:
            return 0
        if self.running:
            self._busy_s += now_s - self._busy_since_s
            self._busy_since_s = now_s
        rate = self._handled / self._busy_s if self._busy_s > 0 else 0.0
        self._handled /= 2
        self._busy_s /= 2
        return min(_AHEAD_MAX, int(rate * _AHEAD_S))


def _nobody_waits() -> None:
    """What arrives before anyone waits for it stays ready."""
