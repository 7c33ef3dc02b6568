"""A queue on a real bus, consumed over HTTP or directly on Redis, with what tests ask about it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from conftest import Topology
from doubledecker.client import AsyncBus, AsyncQueue, QueueView
from doubledecker.client.consumer import Consumer
from doubledecker.queues import consume
from harness import TestBus, a_bus

QUICK = 300  # milliseconds of a lease that a test outlasts


@dataclass
class Place:
    """A bus with the queue `jobs`: whoever consumes it, and whoever looks after it."""

    bus: TestBus
    http: AsyncBus
    queue: AsyncQueue
    consumer: Consumer
    publisher: str

    async def publish(self, count: int, *, tenants: int = 1, first: int = 0) -> list[str]:
        """Events with the numbers from `first` on."""
        events = [
            {"topic": "jobs", "type": "run", "tenant": f"t{n % tenants}", "data": {"n": n}}
            for n in range(first, first + count)
        ]
        return await self.bus.publish(self.publisher, events)

    async def until(self, holds: Callable[[QueueView], bool], *, within_s: float = 15.0) -> QueueView:
        """Wait until the queue looks like that."""
        async with asyncio.timeout(within_s):
            while not holds(view := await self.queue.get()):
                await asyncio.sleep(0.02)
        return view

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """The consumer at work; stopped in good order with the block."""
        task = asyncio.create_task(self.consumer.run())
        try:
            yield task
        finally:
            self.consumer.stop()
            async with asyncio.timeout(20):
                await task


def is_empty(view: QueueView) -> bool:
    return not view.waiting + view.in_flight + view.delayed


@asynccontextmanager
async def a_place(source: str, topology: Topology, **options: object) -> AsyncIterator[Place]:
    """A bus, its queue `jobs`, and a consumer of it on the source: `http` or `redis`."""
    async with a_bus(topology, workers=0) as bus:
        secret, publisher = await bus.token("consumer"), await bus.token("publisher")
        async with AsyncBus(bus.url, secret) as http:
            queue = http.queue("jobs")
            await queue.register(".*:jobs:.*", **options)  # type: ignore[arg-type]
            if source == "http":
                yield Place(bus, http, queue, queue, publisher)
                return
            settings = bus.settings
            async with consume.connected(settings.redis_url, partitions=settings.partitions) as local:
                yield Place(bus, http, queue, await local.queue("jobs"), publisher)
