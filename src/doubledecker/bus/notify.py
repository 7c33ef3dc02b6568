"""Notifying those who listen on Redis channels, after their events are written.

The publish script says whether anyone listens; when nobody does, nothing more happens. Otherwise the events are sent
to their channels by calls of their own, a bounded number at a time, while requests are answered and the next group is
written. A listener gets each accepted event at most once: what cannot be sent in time is counted and left out;
the journal has it. In a cluster the script sees the listeners of one node only, so all nodes are asked.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum

from doubledecker import log
from doubledecker.errors import BusAway
from doubledecker.store import counters, events
from doubledecker.store.events import PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition

# Events in one call, and copies that listeners get: beyond these it holds the server for more than two milliseconds.
_CALL_MAX = 1_000
_HEARD_MAX = 4_000
# The first call's, when the number of listeners is not yet known.
_CALL_FIRST = 100
# What may wait to be sent; more means that the server cannot keep up with its listeners.
WAITING_BYTES_MAX = 16_777_216
# How long a stopping process goes on telling.
_FINISH_S = 1.0
MISSED = "notifications.missed"

_log = log.get("notify")


class Notify(Enum):
    """Which events are sent to channels: those that someone listens to, all (for listeners on replicas), or none."""

    HEARD = "heard"
    ALWAYS = "always"
    NEVER = "never"


class Notifier:
    """Sends one partition's events to their channels, in order."""

    def __init__(self, partition: Partition, notify: Notify) -> None:
        self._partition = partition
        self._notify = notify
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._missed = 0
        self._call_max = _CALL_FIRST
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def channels(self, routed: Sequence[RoutedEvent]) -> list[str]:
        """The channels that the publish script is to look at for listeners; none when that does not matter."""
        if self._notify is not Notify.HEARD or self._partition.is_clustered:
            return []
        return [route.kind.routing_key for route in {routed_event.route for routed_event in routed}]

    def add(self, routed: Sequence[RoutedEvent], reply: PublishReply) -> None:
        """Take the events of a publish call that was carried out, but repeats and those that a full queue refused."""
        is_heard = reply.is_heard or self._partition.is_clustered or self._notify is Notify.ALWAYS
        if not is_heard or self._notify is Notify.NEVER:
            return
        for i, routed_event in enumerate(routed):
            if i in reply.repeats or i in reply.refused:
                continue
            if self._bytes + len(routed_event.message) > WAITING_BYTES_MAX:
                self._missed += 1
                continue
            self._bytes += len(routed_event.message)
            self._waiting.append((routed_event.route.kind.routing_key, routed_event.message))
        self._is_idle.clear()
        self._has_work.set()

    async def run(self) -> None:
        """Notify for as long as the process lives."""
        while True:
            await self._has_work.wait()
            while self._waiting:
                await self._send()
            if self._missed:
                await self._report()
            if not self._waiting:
                self._has_work.clear()
                self._is_idle.set()

    async def finish(self) -> None:
        """Wait until everything is sent, for a moment at most."""
        try:
            async with asyncio.timeout(_FINISH_S):
                await self._is_idle.wait()
        except TimeoutError:
            _log.warning("notifications.missed", partition=self._partition.index, events=len(self._waiting))

    async def _send(self) -> None:
        part = [self._waiting.popleft() for _ in range(min(self._call_max, len(self._waiting)))]
        self._bytes -= sum(len(message) for _, message in part)
        try:
            if await self._is_worth(part):
                heard = await events.notify(self._partition, part)
                self._call_max = min(_CALL_MAX, max(1, _HEARD_MAX * len(part) // max(1, heard)))
        except BusAway:
            self._missed += len(part)

    async def _is_worth(self, part: Sequence[tuple[str, bytes]]) -> bool:
        if self._notify is Notify.ALWAYS or not self._partition.is_clustered:
            return True
        return await events.is_listened_to(self._partition, sorted({channel for channel, _ in part}))

    async def _report(self) -> None:
        missed, self._missed = self._missed, 0
        _log.warning("notifications.missed", partition=self._partition.index, events=missed)
        try:
            await counters.add(self._partition, MISSED, missed)
        except BusAway:
            return  # the log line has it
