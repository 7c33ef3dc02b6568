"""A bus or its lake is put back from a backup: what was accepted is in the lake once, or the pipeline says why not."""

import shutil
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.errors import LakeUnfit
from doubledecker.pipeline.land import landing
from doubledecker.store import journal
from doubledecker.store.embedded import EmbeddedServer
from feed import Feed, a_feed
from lakes import PlainLake, a_plain_lake

pytestmark = pytest.mark.slow


async def trim(feed: Feed) -> None:
    """As a worker does once a second."""
    for partition in feed.bus.partitions.all:
        while (await journal.trim(partition, "events", bytes_max=10**9)).removed:
            pass


@pytest.fixture
async def lake(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        yield await a_plain_lake(feed, tmp_path), feed


async def test_a_lake_that_is_ahead_of_its_bus_gets_each_event_once(data_dir: Path, tmp_path: Path):
    server = await EmbeddedServer.start(data_dir, port=0)
    async with a_feed(Topology("own", server.url, 1, (server.url,))) as feed:
        lake = await a_plain_lake(feed, tmp_path)
        await feed.publish(10)
        shutil.copytree(data_dir / "valkey", tmp_path / "backup")
        await feed.publish(10)
        await lake.land()
        server.kill()
        await server.wait()
        shutil.rmtree(data_dir / "valkey")
        shutil.copytree(tmp_path / "backup", data_dir / "valkey")
        await server.restart()
        held = await journal.read(feed.bus.partitions.home, "events")
        await lake.register()
        await feed.publish(10)
        await lake.land()
    await server.stop()

    assert len(held) == 1
    assert lake.ids == feed.ids


async def test_a_lake_that_is_older_than_what_its_bus_deleted_is_refused(lake: tuple[PlainLake, Feed], tmp_path: Path):
    mine, feed = lake
    await feed.publish(10)
    await mine.land()
    shutil.copytree(mine.root, tmp_path / "backup")
    await feed.publish(10)
    await mine.land()
    await trim(feed)
    shutil.rmtree(mine.root)
    shutil.copytree(tmp_path / "backup", mine.root)

    with pytest.raises(LakeUnfit, match=r"older than its bus: its table 'events' ends at 20.*--take-over"):
        await mine.register()
    await landing.register(mine.access, mine.root, mine.archive, takes_over=True)
    await mine.register()
    late = await feed.publish(10)
    await mine.land()

    assert mine.ids == sorted(event.id for event in feed.events[:10] + late)


async def test_a_lake_that_is_older_lands_again_what_its_bus_still_has(lake: tuple[PlainLake, Feed], tmp_path: Path):
    mine, feed = lake
    await feed.publish(10)
    await mine.land()
    await trim(feed)
    shutil.copytree(mine.root, tmp_path / "backup")
    await feed.publish(10)
    await mine.land()
    shutil.rmtree(mine.root)
    shutil.copytree(tmp_path / "backup", mine.root)
    await mine.register()
    await mine.land()

    assert mine.ids == feed.ids


async def test_a_bus_whose_clock_is_behind_its_lake_is_refused(lake: tuple[PlainLake, Feed]):
    mine, feed = lake
    table = landing.table_of(mine.root, "events")
    ahead_ms = await feed.bus.partitions.home.time_ms() + 60_000
    table.commit(table.open(), [], {"journal:0:ms": ahead_ms, "journal:0:seq": 0})

    with pytest.raises(LakeUnfit, match="clock of Redis says"):
        await mine.register()
