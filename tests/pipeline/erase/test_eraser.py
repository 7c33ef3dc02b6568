"""Erasure: what is named is gone from the table, from its files and from the disk, and nothing else is."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.lake import reads, snapshots
from doubledecker.model.erasure import Erasure
from doubledecker.model.event import AcceptedEvent
from doubledecker.pipeline.erase import eraser, tombstones
from doubledecker.pipeline.lake import maintenance, versions
from doubledecker.pipeline.land import landing
from feed import Feed, a_feed
from lakes import Lake, a_lake
from replays import Desk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def on_disk(mine: Lake) -> Iterator[dict[str, object]]:
    """Every row of every file under the table's folder, whether the table has the file or not."""
    for path in Path(mine.root, "events").rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            yield from pq.ParquetFile(path).read().to_pylist()


async def found(mine: Lake) -> list[str]:
    return sorted(str(row["id"]) for row in await mine.find(limit=10_000))


def ids(events: list[AcceptedEvent]) -> list[str]:
    return sorted(event.id for event in events)


def without(feed: Feed, **fields: str) -> list[str]:
    return ids([each for each in feed.events if any(getattr(each, name) != value for name, value in fields.items())])


async def test_a_tenants_events_are_gone_from_table_files_search_and_replay(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        for _ in range(4):
            await feed.publish(30, call=10)
            await mine.land()
        reached = snapshots.landed(mine.table(), topology.partitions)
        desk = Desk(mine, topology)
        counted = await desk.erase(tenant="tenant-1", dry_run=True)
        before = mine.ids
        done = await desk.erase(tenant="tenant-1")
        after = await feed.publish(5, tenant="tenant-1")
        await mine.land()
        counted_again = await desk.replay(to_topic="orders", tenant="tenant-1", dry_run=True)

        left = without(Feed(feed.bus, topology, feed.publisher, feed.events[:120]), tenant="tenant-1")
        assert (counted.state, counted.total, counted.done) == ("done", 24, 0)
        assert len(before) == 120
        assert (done.state, done.total, done.done) == ("done", 24, 24)
        assert mine.ids == sorted(left + ids(after))
        assert sorted(str(row["id"]) for row in on_disk(mine)) == mine.ids
        assert await found(mine) == mine.ids
        assert counted_again.total == 5
        assert snapshots.landed(mine.table(), topology.partitions).keys() == reached.keys()


async def test_what_has_not_landed_is_not_seen_and_goes_when_it_lands(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(60)
        await mine.land()
        await feed.publish(60)
        desk = Desk(mine, one)
        asked = await desk.ask_erasure(key="key-3", topic="users")
        for _ in range(3):
            await asyncio.to_thread(desk.eraser.round)
        held = await desk.read(asked, "erasures")
        unseen = await found(mine)
        replayed = await desk.replay(to_topic="users", dry_run=True)
        await mine.land()
        still_unseen = await found(mine)
        await desk.run_erasures(asked)
        done = await desk.read(asked, "erasures")

    left = without(feed, key="key-3", topic="users")
    gone = len(feed.events) - len(left)
    assert gone > 1
    assert (held.state, held.total) == ("running", gone)
    assert 0 < held.done < gone
    assert "has landed" in held.note
    assert unseen == still_unseen == left
    assert replayed.total == len(left)
    assert (done.state, done.done) == ("done", gone)
    assert mine.ids == left == sorted(str(row["id"]) for row in on_disk(mine))


async def test_files_that_were_joined_before_go_too(spark: SparkSession, one: Topology, tmp_path: Path):
    """Delta keeps what it replaced for readers of older versions; an erasure cannot, in however long a log."""
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        for _ in range(20):
            await feed.publish(5, topic="orders")
            await mine.land()
        joined = (await asyncio.to_thread(maintenance.tend, spark, mine.root)).joined
        held = len(list(on_disk(mine)))
        await feed.publish(50, topic="orders")
        await mine.land()
        mine.table().create_checkpoint()
        await Desk(mine, one).erase(tenant="tenant-4")

    assert (joined, held) == (20, 200)
    assert mine.ids == without(feed, tenant="tenant-4") == sorted(str(row["id"]) for row in on_disk(mine))


async def test_landing_and_tending_beside_an_erasure_undo_nothing(spark: SparkSession, one: Topology, tmp_path: Path):
    """Whatever the others commit between a look at the files and their replacement, no row is lost or doubled."""
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        for _ in range(18):
            await feed.publish(10, topic="orders")
            await mine.land()
        table = landing.table_of(mine.root, "events")
        erasure = Erasure(before_ms=10**13, tenant="tenant-2")
        ground = Desk(mine, one).ground
        held = await asyncio.to_thread(eraser._holding, ground, table, erasure)
        parts = [part for part, _ in held]
        written = await asyncio.to_thread(eraser._rewrite, ground, table, erasure, parts)
        await feed.publish(10, topic="orders")
        await mine.land()
        await asyncio.to_thread(maintenance.tend, spark, mine.root)
        is_replaced_over_joining = versions.swap(table, parts, written)
        before = mine.ids
        gone = await asyncio.to_thread(eraser.leave_out, ground, erasure)

    assert len(parts) == 18
    assert not is_replaced_over_joining
    assert before == feed.ids
    assert gone == 38
    assert mine.ids == without(feed, tenant="tenant-2")


async def test_landing_goes_on_while_erasures_run(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(60)
        await mine.land()
        desk = Desk(mine, topology)
        erasing = asyncio.create_task(desk.erase(tenant="tenant-0"))
        kept = []
        while not erasing.done():
            kept += await feed.publish(20, tenant="newcomer")
            await mine.land()
        await mine.land()

    assert erasing.result().state == "done"
    assert mine.ids == sorted(ids(kept) + without(Feed(feed.bus, topology, "", feed.events[:60]), tenant="tenant-0"))


def test_a_tombstone_is_written_once(tmp_path: Path):
    root = str(tmp_path)
    for _ in range(2):
        tombstones.write(root, "an-id", Erasure(before_ms=1_794_740_000_123, key="k", topic="orders"))
    tombstones.write(root, "another", Erasure(before_ms=5, tenant="t"))

    assert sorted(reads.erased(root), key=lambda each: each.before_ms) == [
        Erasure(before_ms=5, tenant="t"),
        Erasure(before_ms=1_794_740_000_123, key="k", topic="orders"),
    ]
