"""Kill -9 of the pipeline's processes in mid-load: what was accepted is in the lake, once.

What must hold in any order: the ids in the lake are exactly the accepted ones, and none is there twice. Where Valkey is
killed too, an event that nobody could answer for may be there as well.
"""

import asyncio
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.commands import children
from conftest import Topology
from doubledecker.store import journal
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions, wait_for
from harness import ROOT_KEY, an_event, basic, until_ready
from processes import Fleet, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Each costs a start of Spark.
KILLS = 3


@dataclass
class Ground:
    """A store of our own, a web process on it, a pipeline and its lake; and a ledger of what was answered 202."""

    server: EmbeddedServer
    fleet: Fleet
    pipeline: Process
    partitions: Partitions
    lake: Path
    accepted: set[str] = field(default_factory=set)
    in_flight_at_kills: list[int] = field(default_factory=list)

    def landed(self) -> list[str]:
        """The ids in the lake, each as often as it is there."""
        if not DeltaTable.is_deltatable(str(self.lake / "events")):
            return []
        table = DeltaTable(self.lake / "events")
        return [str(id_) for id_ in pa.table(table.scan())["id"].to_pylist()] if table.count() else []

    def spark(self, words: str) -> list[int]:
        """The processes of the running pipeline whose command line has these words."""
        return [pid for pid, line in children(self.pipeline.pid).items() if words in line]


@asynccontextmanager
async def a_ground(tmp_path: Path, *, partitions: int, **more: object) -> AsyncIterator[Ground]:
    server = await EmbeddedServer.start(tmp_path / "store")
    topology = Topology("own", server.url, partitions, (server.url,))
    often = {"pipeline_interval_s": 0.1, "land_interval_s": 0}
    settings = {"lake": tmp_path / "lake", **often, "spark_master": "local[2]", **more}
    async with Fleet(topology, tmp_path, workers=0, **settings) as fleet:
        piped = Process("pipeline", "pipeline", "run", environment=fleet.environment, logs=tmp_path)
        found = await wait_for(server.url, namespace="rm:", count=partitions, patience_s=9)
        try:
            yield Ground(server, fleet, piped, found, tmp_path / "lake")
        finally:
            await piped.kill()
            await found.close()
    await server.stop()


@asynccontextmanager
async def publishing(ground: Ground, *, pause_s: float = 0.02) -> AsyncIterator[None]:
    """Publish again and again while the block runs; at its end every request has been answered."""
    over = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        await until_ready(http, ground.fleet.url, path="/version")
        body, root = {"name": "shop"}, basic(ROOT_KEY)
        async with http.post(f"{ground.fleet.url}/api_tokens", json=body, headers=root) as answer:
            secret = str((await answer.json())["token"])
        task = asyncio.create_task(_publish(ground, http, secret, over, pause_s))
        try:
            yield
        finally:
            over.set()
            await task


async def _publish(
    ground: Ground, http: aiohttp.ClientSession, secret: str, over: asyncio.Event, pause_s: float
) -> None:
    for number in itertools.count():
        if over.is_set():
            return
        mine = [an_event(n, topic=f"topic_{'abc'[n % 3]}", tenant=f"t{n % 7}", id=f"{number}-{n}") for n in range(40)]
        try:
            async with http.post(f"{ground.fleet.url}/events", json=mine, headers=basic(secret)) as answer:
                if answer.status == 202:
                    ground.accepted |= set((await answer.json())["ids"])
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(pause_s)


async def until_landing(ground: Ground) -> None:
    """Until the running pipeline has added rows to the lake."""
    before = len(ground.landed())
    async with asyncio.timeout(240):
        while len(ground.landed()) <= before:
            await asyncio.sleep(0.1)


async def land_the_rest(ground: Ground) -> Counter[str]:
    """A last pass that ends by itself; returns how often each id is in the lake then."""
    words = ("pipeline", "run", "--once")
    once = Process("once", *words, environment=ground.fleet.environment, logs=ground.lake.parent)
    await once.start()
    assert await once.wait(within_s=240) == 0, once.log
    for partition in ground.partitions.all:
        assert "events_lost" not in await journal.state(partition)
    return Counter(ground.landed())


async def kill_under_load(ground: Ground, kills: list[Callable[[], Awaitable[None]]]) -> Counter[str]:
    """Start, wait for rows, kill at a random moment, again and again while events come in; then land the rest."""
    async with publishing(ground):
        for kill in kills:
            await ground.pipeline.start()
            await until_landing(ground)
            await asyncio.sleep(random.uniform(0.0, 1.0))
            ground.in_flight_at_kills.append(len(ground.accepted) - len(ground.landed()))
            await kill()
            await ground.pipeline.kill()
    found = await land_the_rest(ground)
    assert [id_ for id_, count in found.items() if count > 1] == []
    assert len(ground.accepted) > 1000
    assert sum(count > 0 for count in ground.in_flight_at_kills) > len(kills) // 2
    return found


async def test_nothing_is_lost_or_doubled_when_driver_jvm_or_all_of_spark_is_killed(tmp_path: Path):
    async with a_ground(tmp_path, partitions=3) as ground:

        async def kill_driver() -> None:
            await ground.pipeline.kill()

        async def kill_jvm() -> None:
            [jvm] = ground.spark("org.apache.spark.deploy.SparkSubmit")
            os.kill(jvm, signal.SIGKILL)
            # There is nothing to go on with: it ends, and whoever keeps it starts it again.
            assert await ground.pipeline.wait(within_s=30) == 1

        async def kill_all() -> None:
            for pid in [*children(ground.pipeline.pid), ground.pipeline.pid]:
                os.kill(pid, signal.SIGKILL)

        found = await kill_under_load(ground, [kill_driver, kill_jvm, kill_all])

        assert set(found) == ground.accepted


async def test_nothing_is_lost_or_doubled_when_valkey_is_killed_too(tmp_path: Path):
    async with a_ground(tmp_path, partitions=1) as ground:

        async def kill_valkey_and_driver() -> None:
            ground.server.kill()
            await ground.pipeline.kill()
            await ground.server.wait()
            await ground.server.restart()

        async def kill_valkey_alone() -> None:
            ground.server.kill()
            await ground.server.wait()
            await ground.server.restart()
            await until_landing(ground)

        found = await kill_under_load(ground, [kill_valkey_and_driver, kill_valkey_alone])

        assert ground.accepted - set(found) == set()


async def test_a_pipeline_whose_tasks_are_killed_goes_on_by_itself(tmp_path: Path):
    """Executors' Pythons die in mid-task; Spark starts them again, or the step is tried again: no restart needed."""
    async with a_ground(tmp_path, partitions=1) as ground:
        killed = 0
        async with publishing(ground):
            await ground.pipeline.start()
            await until_landing(ground)
            async with asyncio.timeout(120):
                while killed < KILLS * 5:
                    # The first is the one that starts the others.
                    for pid in ground.spark("pyspark.daemon")[1:]:
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
                    await asyncio.sleep(random.uniform(0.1, 0.6))
            await until_landing(ground)
        await ground.pipeline.stop()
        found = await land_the_rest(ground)

        assert set(found) == ground.accepted
        assert set(found.values()) == {1}
