"""Bulk delivery in a test: a bus and its web, a lake in a folder, and the step, run when the test says so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.model.position import Shard
from doubledecker.pipeline.bulk.delivery import Bulk
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.store import bulk
from harness import ROOT_KEY, TestBus, a_bus, basic


@dataclass
class Ground:
    """A bus, its lake, and the step."""

    bus: TestBus
    access: Access
    root: str
    spark: SparkSession
    step: Bulk
    archive: str
    tokens: dict[str, str] = field(default_factory=dict)

    async def client(self, name: str) -> str:
        """The secret of a client, made when there is none."""
        if name not in self.tokens:
            self.tokens[name] = await self.bus.token(name)
        return self.tokens[name]

    async def subscribe(self, name: str, url: str, *topics: str, **fields: object) -> None:
        await self.bus.subscribe(await self.client(name), url, *topics, **{"tier": "bulk", **fields})

    async def publish(self, events: list[dict[str, object]]) -> list[str]:
        return await self.bus.publish(await self.client("publisher"), events)

    async def seen(self, name: str) -> dict[str, object]:
        """A subscriber as the bus shows it."""
        [found] = await self.bus.get("/subscribers", await self.client(name))
        return found

    async def id(self, name: str) -> str:
        return str((await self.seen(name))["subscriber"])

    async def ask(self, method: str, path: str, secret: str) -> None:
        async with self.bus.http.request(method, self.bus.url + path, headers=basic(secret)) as response:
            assert response.status == 204, await response.text()

    async def metrics(self) -> str:
        async with self.bus.http.get(f"{self.bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
            return await response.text()

    async def land(self) -> None:
        for name in ("events", "attempts"):
            await asyncio.to_thread(landing.land, self.spark, self.access, self.root, name, archive=self.archive)

    async def round(self) -> bool:
        """One look of the step; says whether there is more to do at once."""
        return (await asyncio.to_thread(self.step.act)).has_more

    async def deliver(self) -> None:
        """Land what there is, and deliver until nothing can be done at once."""
        await self.land()
        while await self.round():
            pass

    async def until(self, is_enough: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Land and deliver again and again."""
        async with asyncio.timeout(within_s):
            while not is_enough():
                await self.deliver()
                await asyncio.sleep(0.02)

    async def progress(self, name: str) -> bulk.Progress | None:
        token = await self.id(name)
        return (await bulk.progress_of(self.bus.partitions.home, [token])).get(token)

    async def places(self, name: str) -> dict[Shard, str]:
        progress = await self.progress(name)
        assert progress is not None
        return {shard: str(checkpoint.place) for shard, checkpoint in progress.checkpoints.items()}


@asynccontextmanager
async def a_ground(
    spark: SparkSession, topology: Topology, folder: Path, *, workers: int = 0, **settings: object
) -> AsyncIterator[Ground]:
    async with a_bus(topology, workers=workers, **settings) as bus:
        root = str(folder / "lake")
        for name in landing.TABLES:
            landing.table_of(root, name).open()
        access = Access(topology.url, "rm:", topology.partitions)
        archive = landing.archive_of(root)
        await landing.register(access, root, archive, takes_over=False)
        yield Ground(bus, access, root, spark, Bulk(spark, bus.settings, root), archive)
