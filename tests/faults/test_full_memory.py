"""A server at its maxmemory: publishing is refused whole, and everything that frees memory works, down to empty."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from conftest import Topology
from doubledecker.store import batches, jobs, journal, scripts
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.worker import process
from harness import TestBus, a_bus, an_event, basic, until_ready
from receiver import Receiver

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


async def keyspace(url: str) -> dict[bytes, bytes]:
    """Every key with what it holds."""
    async with Redis.from_url(url) as client:
        return {key: await client.dump(key) for key in await client.keys("*")}


async def test_a_refused_publish_writes_nothing(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0) as bus:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("mail"), "http://127.0.0.1:9/", "widgets", timeout=3_600_000)
        await publish_until_full(bus, publisher)
        before = await keyspace(topology.url)

        for topic in ("widgets", "unclaimed"):
            events = [an_event(n, topic=topic, id=f"given-{n}") for n in range(3)]
            status, answer, _ = await ask(bus, "POST", "/events", publisher, events)
            assert (status, answer["title"]) == (503, "Service unavailable")

        assert await keyspace(topology.url) == before


async def test_a_full_bus_is_drained_by_its_consumers(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0) as bus:
        publisher = await bus.token("publisher")
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})
        accepted = await publish_until_full(bus, publisher)

        first, second = await pull(bus, publisher, most=2)
        assert await settle(bus, publisher, "extend", [first, second], lease_ms=60_000) == 2
        assert await settle(bus, publisher, "nack", [first]) == 1
        assert await settle(bus, publisher, "nack", [second], reject=True) == 1
        acked: list[str] = []
        while held := await pull(bus, publisher, most=10):
            assert await settle(bus, publisher, "ack", held) == len(held)
            acked += [message["event"]["id"] for message in held]

        assert acked == [accepted[0], *accepted[2:]]
        assert (await bus.get("/queues/jobs", publisher))["dead"] == 1  # type: ignore[index]
        assert (await ask(bus, "POST", "/events", publisher, [an_event(-1)]))[0] == 202


async def test_a_full_bus_is_drained_by_a_worker_and_publishing_goes_on(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0, max=5)
        accepted = await publish_until_full(bus, publisher)

        async with a_worker(bus):
            await receiver.until_events(len(accepted))
            async with asyncio.timeout(20):
                while (await ask(bus, "POST", "/events", publisher, [an_event(-1)]))[0] != 202:
                    await asyncio.sleep(0.05)

        assert set(accepted) <= set(receiver.ids)
        assert await batches.oldest(bus.partitions.home) is None


async def test_a_worker_lives_and_retries_while_memory_is_full(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0, max=5)
        accepted = await publish_until_full(bus, publisher)
        receiver.plan = lambda _: 500

        async with a_worker(bus):
            await receiver.until_attempts(3)
            assert len(await jobs.alive(bus.partitions.home, silent_ms_max=60_000)) > 0
            receiver.plan = lambda _: 204
            await receiver.until_events(len(accepted))

        assert set(receiver.ids) == set(accepted)


@pytest.mark.parametrize("name", scripts.all_names())
def test_only_what_takes_something_in_is_refused_when_memory_is_full(name: str):
    first_line = scripts.load(name).text.splitlines()[0]

    takes_in = {"event_publish", "idempotency_claim", "topic_claim"}
    assert first_line == ("#!lua" if name in takes_in else "#!lua flags=allow-oom")


async def pull(bus: TestBus, secret: str, *, most: int) -> list[dict[str, Any]]:
    status, answer, _ = await ask(bus, "POST", "/queues/jobs/pull", secret, {"max": most})
    assert status == 200, answer
    return list(answer["messages"])


async def settle(bus: TestBus, secret: str, how: str, held: list[dict[str, Any]], **fields: object) -> int:
    """Settle messages; says how many of them were still the consumer's."""
    named = [{"id": message["id"], "attempt": message["attempt"]} for message in held]
    status, answer, _ = await ask(bus, "POST", f"/queues/jobs/{how}", secret, {"messages": named, **fields})
    assert status == 200, answer
    return len(answer["ids"])
