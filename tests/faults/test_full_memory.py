"""A server at its maxmemory: publishing is refused whole, and everything that frees memory works, down to empty."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from doubledecker.store import batches, jobs, scripts
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from small_memory import MAXMEMORY_BYTES, a_small_server, a_worker, ask, publish_until_full, pull, settle

# Without a reserve, nothing is freed by autodrop before the server itself refuses.
NO_RESERVE = {"redis_min_free_bytes": 0}


async def keyspace(url: str) -> dict[bytes, bytes]:
    """Every key with what it holds, but those that end by themselves."""
    async with Redis.from_url(url) as client:
        keys = [key for key in await client.keys("*") if b":processes" not in key]  # those report by themselves
        return {key: await client.dump(key) for key in keys if await client.ttl(key) == -1}


@pytest.mark.parametrize("who", ["server", "web"])
async def test_a_refused_publish_writes_nothing(data_dir: Path, who: str):
    """The server knows its maxmemory; a limit that only the settings name is kept by web."""
    bytes_max = MAXMEMORY_BYTES if who == "server" else 0
    limit = {"redis_max_mem_bytes": 0 if who == "server" else MAXMEMORY_BYTES, **NO_RESERVE}
    async with (
        a_small_server(data_dir, maxmemory_bytes=bytes_max) as topology,
        a_bus(topology, workers=0, **limit) as bus,
    ):
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("mail"), "http://127.0.0.1:9/", "widgets", timeout=3_600_000)
        await publish_until_full(bus, publisher)
        before = await keyspace(topology.url)

        for topic in ("widgets", "unclaimed"):
            events = [an_event(n, topic=topic, id=f"given-{n}") for n in range(3)]
            status, answer, _ = await ask(bus, "POST", "/events", publisher, events)
            assert (status, answer["title"]) == (503, "Service unavailable")

        assert await keyspace(topology.url) == before


async def test_without_a_worker_a_full_memory_is_said_to_be_full(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0, redis_min_free_bytes=1_000_000) as bus:
        publisher = await bus.token("publisher")
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})
        before = (await ask(bus, "GET", "/readyz", publisher, None))[1]["memory"]
        await publish_until_full(bus, publisher)
        after = (await ask(bus, "GET", "/readyz", publisher, None))[1]["memory"]

        assert (before, after.partition(":")[0]) == ("ok", "full")


async def test_a_full_bus_is_drained_by_its_consumers(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0, **NO_RESERVE) as bus:
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


@asynccontextmanager
async def a_full_bus(data_dir: Path) -> AsyncIterator[tuple[TestBus, Receiver, str, list[str]]]:
    """A bus without a worker, a receiver with as much to get as the bus can hold, a publisher's secret, and the ids."""
    async with (
        a_small_server(data_dir) as topology,
        a_bus(topology, workers=0, **NO_RESERVE) as bus,
        Receiver() as receiver,
    ):
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0, max=5)
        yield bus, receiver, publisher, await publish_until_full(bus, publisher)


async def test_a_full_bus_is_drained_by_a_worker_and_publishing_goes_on(data_dir: Path):
    async with a_full_bus(data_dir) as (bus, receiver, publisher, accepted), a_worker(bus):
        await receiver.until(lambda: set(accepted) <= set(receiver.ids), within_s=30)
        async with asyncio.timeout(30):
            while await batches.oldest(bus.partitions.home) is not None:
                await asyncio.sleep(0.05)
            while (await ask(bus, "POST", "/events", publisher, [an_event(-1)]))[0] != 202:
                await asyncio.sleep(0.05)


async def test_a_worker_lives_and_retries_while_memory_is_full(data_dir: Path):
    async with a_full_bus(data_dir) as (bus, receiver, _, accepted):
        receiver.plan = lambda _: 500

        async with a_worker(bus):
            await receiver.until_attempts(3, within_s=30)
            assert len(await jobs.alive(bus.partitions.home, silent_ms_max=60_000)) > 0
            receiver.plan = lambda _: 204
            await receiver.until(lambda: set(accepted) <= set(receiver.ids), within_s=30)

        assert set(receiver.ids) == set(accepted)


def test_only_what_takes_something_in_is_refused_when_memory_is_full():
    first_lines = {name: scripts.load(name).text.splitlines()[0] for name in scripts.all_names()}

    takes_in = {"event_publish", "idempotency_claim", "topic_claim", "topic_save"}
    expected = {name: "#!lua" if name in takes_in else "#!lua flags=allow-oom" for name in first_lines}
    assert first_lines == expected
