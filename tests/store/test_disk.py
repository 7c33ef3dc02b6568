"""The embedded server on a disk that runs short: it takes no writes, and takes them again when there is room."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from doubledecker.errors import BusAway
from doubledecker.store import embedded
from doubledecker.store.embedded import DiskReserve, EmbeddedServer
from doubledecker.store.partitions import Partitions


async def takes_writes(url: str) -> bool:
    async with Redis.from_url(url) as client:
        try:
            await client.set("stop", "Oxford Street")
        except RedisError:
            return False
        return True


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_writes_are_refused_while_the_disk_is_short_also_after_a_restart(data_dir: Path):
    left, told = {"bytes": 1_000}, []
    reserve = DiskReserve(2_000, told.append, lambda _: left["bytes"])
    server = await EmbeddedServer.start(data_dir, reserve=reserve)
    try:
        await until(lambda: len(told) == 1)
        before = await takes_writes(server.url)
        server.kill()
        await server.wait()
        await server.restart()
        await until_refused(server.url)
        left["bytes"] = 3_000
        await until(lambda: len(told) == 2)

        assert not before
        assert await takes_writes(server.url)
        assert ["nothing is accepted" in told[0], "room again" in told[1]] == [True, True]
    finally:
        await server.stop()


async def until_refused(url: str) -> None:
    async with asyncio.timeout(10):
        while await takes_writes(url):
            await asyncio.sleep(0.01)


async def test_whoever_waits_for_a_server_that_refuses_writes_leaves_no_connections(data_dir: Path):
    server = await EmbeddedServer.start(data_dir)
    try:
        async with Redis.from_url(server.url) as client:
            await client.config_set("min-replicas-to-write", 1)
            for _ in range(5):
                with pytest.raises(BusAway, match="NOREPLICAS"):
                    await Partitions.connect(server.url, namespace="rm:", count=1)
            async with asyncio.timeout(10):
                while len(await client.client_list()) > 1:
                    await asyncio.sleep(0.01)
    finally:
        await server.stop()


async def test_a_file_that_cannot_be_flushed_does_not_end_the_flushing(data_dir: Path, monkeypatch):
    monkeypatch.setattr(embedded, "FLUSH_S", 0.001)
    rounds: list[str] = []
    real = embedded.flush
    monkeypatch.setattr(embedded, "flush", lambda directory: (rounds.append("begun"), real(directory)))
    parts = data_dir / "appendonlydir"
    parts.mkdir(parents=True)
    (parts / "loop.incr.aof").symlink_to(parts / "loop.incr.aof")

    async with embedded.flushing(data_dir):
        await until(lambda: len(rounds) > 2)
