"""Consuming directly on Redis, for those next to it: the client's runner on another source.

    async with consume.connected("redis://127.0.0.1:6379/0") as bus:
        queue = await bus.queue("mail")

        @queue.handler(concurrency=50)
        async def send(message): ...

        await queue.run()

A program that can reach the bus's Redis can do everything with it: no tokens here. Others use the client over HTTP.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from doubledecker import errors
from doubledecker.client.consumer import Consumer
from doubledecker.client.errors import BusAway, NotFound
from doubledecker.client.message import Back, Leased, Message, Pulse, Terms, readable
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.ring import Bell, Patience, Rings
from doubledecker.store import partitions as store
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import LeasedMessage, Named

_NAMESPACE = "rm:"
_PATIENCE_S = 30.0
# Longer than a Redis that is there takes to answer.
_QUIET_S = 1.0
_NOT_FOUND = 404

_log = logging.getLogger("doubledecker.client")


class LocalBus:
    """The queues of a bus whose Redis is at hand."""

    def __init__(self, partitions: Partitions, rings: Rings, *, url: str, namespace: str) -> None:
        self._partitions = partitions
        self._rings = rings
        self._url = url
        self._namespace = namespace
        self._consumers: list[Consumer] = []

    async def queue(self, name: str) -> Consumer:
        """A registered queue; raises NotFound when there is none of that name."""
        with _translated():
            queue = await _registered(self._partitions, name)
        greeting = {
            "url": self._url,
            "namespace": self._namespace,
            "partitions": len(self._partitions.all),
            "queue": msgspec.to_builtins(queue),
        }
        consumer = Consumer(RedisSource(self._partitions, self._rings, queue, greeting))
        self._consumers.append(consumer)
        return consumer

    async def leave(self) -> None:
        """End what goes on, and give back what is in hand."""
        for consumer in self._consumers:
            await consumer.leave()


@contextlib.asynccontextmanager
async def connected(url: str, *, namespace: str = _NAMESPACE, partitions: int = 1) -> AsyncIterator[LocalBus]:
    """A bus by its Redis; the namespace and the number of partitions are those of its settings.

    A Redis that is away is waited for, half a minute; then BusAway is raised.
    """
    with _translated(), _said(url):
        parts = await store.wait_for(url, namespace=namespace, count=partitions, patience_s=_PATIENCE_S)
    bell = Bell(parts)
    listening = asyncio.create_task(bell.run())
    bus = LocalBus(parts, Rings(parts, bell), url=url, namespace=namespace)
    try:
        yield bus
    finally:
        await bus.leave()
        listening.cancel()
        await asyncio.wait([listening])
        await parts.close()


class RedisSource:
    """One queue, pulled from and settled by scripts."""

    def __init__(
        self, partitions: Partitions, rings: Rings, queue: RegisteredQueue, greeting: dict[str, object]
    ) -> None:
        self.name = queue.name
        self._partitions = partitions
        self._rings = rings
        self._queue = queue
        self._greeting = greeting
        self._patiences: set[Patience] = set()

    async def terms(self) -> Terms:
        return Terms(self._queue.lease_ms, self._queue.attempts_max)

    async def pull(self, *, most: int, wait_ms: int, lease_ms: int | None) -> list[Message]:
        async def take() -> Sequence[Leased]:
            return await self._take(most=most, wait_ms=wait_ms, lease_ms=lease_ms)

        return await readable(self, take)

    async def _take(self, *, most: int, wait_ms: int, lease_ms: int | None) -> Sequence[Leased]:
        patience = Patience()
        self._patiences.add(patience)
        try:
            with _translated():
                pull = await self._rings.pull_waiting(
                    self._queue, most=most, wait_ms=wait_ms, lease_ms=lease_ms, patience=patience
                )
                if not pull.messages:
                    # An idle moment is a good one to learn that the queue was changed or deleted.
                    self._queue = await _registered(self._partitions, self.name)
        finally:
            self._patiences.discard(patience)
        return pull.messages

    def hurry(self) -> None:
        """End all waits: of several handlers of a queue one is rarely stopped without the others."""
        for patience in self._patiences:
            patience.end()

    async def ack(self, messages: Sequence[Message]) -> set[str]:
        with _translated():
            kept = await self._rings.ack(self._queue, messages)
        return _lost(messages, kept)

    async def nack(self, backs: Sequence[Back], *, why: str) -> set[str]:
        held = [LeasedMessage(back.id, back.attempt, back.delay_ms, is_spared=not back.attempted) for back in backs]
        with _translated():
            kept = await self._rings.nack(self._queue, held, why=why)
        return _lost(backs, kept)

    async def reject(self, backs: Sequence[Back], *, why: str) -> set[str]:
        with _translated():
            kept = await self._rings.nack(self._queue, backs, why=why, is_rejected=True)
        return _lost(backs, kept)

    async def extend(self, messages: Sequence[Message], *, lease_ms: int | None) -> set[str]:
        with _translated():
            _, kept = await self._rings.extend(self._queue, messages, lease_ms=lease_ms)
        return _lost(messages, kept)

    def pulse(self) -> Pulse:
        return Pulse([sys.executable, "-P", "-m", "doubledecker.queues.lease_keeper_process"], self._greeting)


async def _registered(partitions: Partitions, name: str) -> RegisteredQueue:
    queue = await registry.queue(partitions.home, name)
    if queue is None:
        raise NotFound(f"no queue named {name[:80]!r}; register it first", status=_NOT_FOUND)
    return queue


def _lost(messages: Sequence[Named], kept: Sequence[str]) -> set[str]:
    """Those that were no longer ours; mostly none, so that counting is enough."""
    return set() if len(kept) == len(messages) else {message.id for message in messages}.difference(kept)


@contextlib.contextmanager
def _said(url: str) -> Iterator[None]:
    """Log that we wait, when it takes a while, and when that is over."""
    parts = urlsplit(url)
    # Not the whole of it: there may be a password.
    where = f"{parts.hostname}:{parts.port}" if parts.hostname else parts.path
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    saying = loop.call_later(_QUIET_S, _log.warning, "bus.away redis=%s", where)
    try:
        yield
    finally:
        saying.cancel()
    if loop.time() - began_s > _QUIET_S:
        _log.warning("bus.back redis=%s", where)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """A Redis that is away is a bus that is away, in the words of the client."""
    try:
        yield
    except errors.BusAway as error:
        raise BusAway(str(error)) from error
