"""What tests of the watch share: queues with a callback, watches on the test's own loop, and a look at what is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.store import facets
from doubledecker.store.facets import QueueRecord
from doubledecker.store.partitions import Partitions
from doubledecker.worker import watch

ROOT = Caller("", "root", is_root=True)


def a_queue(callback: str, name: str = "hooks", pattern: str = ".*:widgets:.*", **fields: object) -> RegisteredQueue:
    return RegisteredQueue(name=name, owner="", patterns=(pattern,), callback=callback, **{"timeout_ms": 20, **fields})


async def register(settings: Settings, queue: RegisteredQueue) -> None:
    async with build.open_bus(settings) as bus:
        await bus.registry.register_queue(queue, caller=ROOT)


async def forget(settings: Settings, name: str) -> None:
    async with build.open_bus(settings) as bus:
        await bus.registry.delete_queue(await bus.registry.queue(name, caller=ROOT), discard=True)


@asynccontextmanager
async def watching(settings: Settings, count: int = 1, **changes: object) -> AsyncIterator[None]:
    """Watches on the test's own loop, until the block ends."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(watch.run(replace(settings, **changes), stop))
        try:
            yield
        finally:
            stop.set()


async def look(partitions: Partitions, queue: RegisteredQueue) -> QueueRecord:
    """A queue over all partitions."""
    parts = [(await facets.look(partition, [queue]))[0] for partition in partitions.all]
    return QueueRecord(
        *(sum(getattr(part, name) for part in parts) for name in ("length", "in_flight", "delayed", "dead")),
        counters={},
    )


async def until_empty(partitions: Partitions, queue: RegisteredQueue, *, within_s: float = 10.0) -> QueueRecord:
    """Wait until nothing is left to deliver."""
    async with asyncio.timeout(within_s):
        while (view := await look(partitions, queue)).length:
            await asyncio.sleep(0.02)
    return view


async def counters(partitions: Partitions) -> dict[str, int]:
    from doubledecker.store import counters as store

    total: dict[str, int] = {}
    for partition in partitions.all:
        for name, value in (await store.read(partition)).items():
            total[name] = total.get(name, 0) + value
    return total
