"""A bus whose server has little memory, and ways to fill it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from conftest import Topology
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.worker import process
from harness import TestBus, an_event, basic, until_ready

MAXMEMORY_BYTES = 8_000_000
# Its scripts alone take more than a megabyte of a server.
DATA = "x" * 10_000


@asynccontextmanager
async def a_small_server(directory: Path, *, maxmemory_bytes: int = MAXMEMORY_BYTES) -> AsyncIterator[Topology]:
    server = await EmbeddedServer.start(directory, maxmemory_bytes=maxmemory_bytes)
    try:
        yield Topology("small", server.url, 1, (server.url,))
    finally:
        await server.stop()


@asynccontextmanager
async def a_worker(bus: TestBus) -> AsyncIterator[None]:
    """A worker that begins when the bus is full already."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(process.run(bus.settings, stop))
        try:
            await until_ready(bus.http, bus.url)
            yield
        finally:
            stop.set()


async def ask(bus: TestBus, method: str, path: str, secret: str, body: object) -> tuple[int, Any, dict[str, str]]:
    async with bus.http.request(method, bus.url + path, json=body, headers=basic(secret)) as response:
        text = await response.read()
        return response.status, await response.json() if text else None, dict(response.headers)


async def publish_until_full(bus: TestBus, secret: str) -> list[str]:
    """Publish until it is refused; returns the ids of what was accepted."""
    accepted: list[str] = []
    while True:
        status, answer, headers = await ask(bus, "POST", "/events", secret, [an_event(len(accepted), data=DATA)])
        if status == 503:
            assert answer["detail"].startswith("memory is full")
            assert int(headers["Retry-After"]) > 0
            return accepted
        assert status == 202, answer
        accepted += answer["ids"]


async def publish_all(bus: TestBus, secret: str, calls: int) -> list[str]:
    """Publish ten events a call, as often as asked; a call that is refused is repeated, as a publisher would."""
    accepted: list[str] = []
    async with asyncio.timeout(60):
        for call in range(calls):
            events = [an_event(10 * call + n, data=DATA) for n in range(10)]
            while (reply := await ask(bus, "POST", "/events", secret, events))[0] == 503:
                await asyncio.sleep(0.05)
            assert reply[0] == 202, reply
            accepted += reply[1]["ids"]
    return accepted


async def pull(bus: TestBus, secret: str, *, most: int) -> list[dict[str, Any]]:
    """Pull from the queue `jobs`."""
    status, answer, _ = await ask(bus, "POST", "/queues/jobs/pull", secret, {"max": most})
    assert status == 200, answer
    return list(answer["messages"])


async def settle(bus: TestBus, secret: str, how: str, held: list[dict[str, Any]], **fields: object) -> int:
    """Settle messages of the queue `jobs`; returns how many of them were still the consumer's."""
    named = [{"id": message["id"], "attempt": message["attempt"]} for message in held]
    status, answer, _ = await ask(bus, "POST", f"/queues/jobs/{how}", secret, {"messages": named, **fields})
    assert status == 200, answer
    return len(answer["ids"])
