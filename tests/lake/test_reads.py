"""Reads without Spark: lake and journal are one, an event is found once wherever it is, and a live bus does no harm."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest

import mixed
from conftest import Topology
from doubledecker.errors import LakeUnfit, ReadTooLarge
from doubledecker.lake import arrow, engine, rows, snapshots
from doubledecker.lake.queries import Found
from doubledecker.lake.snapshots import TableSnapshot
from doubledecker.model.erasure import Erasure
from doubledecker.model.event import draft
from doubledecker.model.position import Position
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.land import landing
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry
from feed import Feed, a_feed
from lakes import PlainLake, a_plain_lake
from unreadable import FAR, LONG, some_events

pytestmark = pytest.mark.slow

_ENDLESS = "select sum(a.range + b.range) from range(10000000) a, range(10000000) b"


def ids(found: Found) -> list[str]:
    return [str(row["id"]) for row in found]


async def trim(feed: Feed) -> None:
    for partition in feed.bus.partitions.all:
        while (await journal.trim(partition, "events", bytes_max=10**9)).removed:
            pass


async def test_what_has_landed_and_what_has_not_is_found_once(topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        nothing = await mine.find()
        await feed.publish(60, call=10)
        fresh = await mine.find()
        await mine.land()
        landed = await mine.find()
        await trim(feed)
        trimmed = await mine.find()
        await feed.publish(30, call=10)
        both = await mine.find()
        few = await mine.find(limit=7)

    assert nothing == []
    assert fresh == landed == trimmed
    assert sorted(ids(both)) == feed.ids
    assert [row["at"] for row in both] == sorted(str(row["at"]) for row in both)
    assert few == both[:7]


async def test_events_are_found_and_landed_as_they_were_accepted_however_they_are_kept(
    topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        accepted = [each for partition in feed.bus.partitions.all for each in await mixed.write(partition)]
        fresh = await mine.find(limit=10_000)
        lives = [await mine.life(each.event.id) for each in accepted[::50]]
        await mine.land()
        await trim(feed)
        landed = await mine.find(limit=10_000)

    def told(found: Found) -> list[tuple[object, ...]]:
        return sorted((row["publisher"], row["id"], row["data"], row["bytes"]) for row in found)

    assert told(fresh) == sorted(
        (each.publisher, each.event.id, bytes(each.event.data).decode(), len(each.message)) for each in accepted
    )
    assert [[row["id"] for row in life.events] for life in lives] == [[each.event.id] for each in accepted[::50]]
    assert landed == fresh


async def test_time_topic_tenant_and_condition_narrow_it(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(60, call=10)
        await mine.land()
        await feed.publish(60, call=10)
        whole = await mine.find()
        middle = str(whole[60]["at"])

        assert await mine.find(start=middle) == [row for row in whole if str(row["at"]) >= middle]
        assert await mine.find(end=middle) == [row for row in whole if str(row["at"]) < middle]
        assert await mine.find(topic="orders", tenant="tenant-2") == [
            row for row in whole if (row["topic"], row["tenant"]) == ("orders", "tenant-2")
        ]
        assert await mine.find(where="key = 'key-3' or timestamp < 4") == [
            row for row in whole if row["key"] == "key-3" or int(str(row["timestamp"])) < 4
        ]
        assert ids(await mine.find(where="data.number >= 118")) == ids(whole[118:])


async def test_numbers_that_no_reader_can_hold_stop_no_search(one: Topology, tmp_path: Path):
    data = [b'{"n":7}', FAR, LONG, b'{"n":0.%b}' % (b"1" * 60_000), b'{"n":8}']
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        events = some_events("jobs", data)
        drafts = [draft(event, is_id_given=False, index=i) for i, event in enumerate(events)]
        await feed.bus.publisher.publish(feed.publisher, drafts)
        wanted = ({"where": "data.n between 7 and 8"}, {"where": "data.n = '1e999'"}, {})
        fresh = [await mine.find(**each) for each in wanted]
        await mine.land()
        landed = [await mine.find(**each) for each in wanted]

    assert fresh == landed
    few, far, every = landed
    assert ids(few) == [events[0].id, events[4].id]
    assert ids(far) == [events[1].id]
    assert [str(row["data"]).encode() for row in every] == data


async def test_a_lake_that_is_not_there_is_not_made(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        mine.root = str(tmp_path / "elsewhere")
        await feed.publish(5)
        found = await mine.find()

    assert sorted(ids(found)) == feed.ids
    assert not (tmp_path / "elsewhere").exists()


def after_the_snapshot(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> list[str]:
    """Have something happen once, between a read's look at the table and the rest of the read; returns when it did."""
    read, happened, loop = snapshots.read, [], asyncio.get_running_loop()

    def read_then_act(root: str, name: str, *, partitions: int) -> TableSnapshot:
        found = read(root, name, partitions=partitions)
        if not happened:
            happened.append(name)
            asyncio.run_coroutine_threadsafe(act(), loop).result(60)
        return found

    monkeypatch.setattr(snapshots, "read", read_then_act)
    return happened


async def test_a_trim_behind_a_landing_is_read_from_the_lakes_newer_version(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(30, call=5)

        async def land_and_trim() -> None:
            await mine.land()
            await trim(feed)

        happened = after_the_snapshot(monkeypatch, land_and_trim)
        found = await mine.find()

    assert happened == ["events"]
    assert sorted(ids(found)) == feed.ids


async def test_what_was_cut_before_it_landed_is_a_gap_and_no_failure(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(200, call=1)

        async def cut() -> None:
            while (await journal.trim(feed.bus.partitions.home, "events", bytes_max=10_000)).removed:
                pass

        happened = after_the_snapshot(monkeypatch, cut)
        found = await mine.find()
        left = await journal.read(feed.bus.partitions.home, "events", count=1000)

    assert happened == ["events"]
    assert 0 < len(left) < 200
    assert [row["entry"] for row in found] == [entry.id for entry in left]


async def test_reads_beside_publishing_landing_and_trimming_miss_and_double_nothing(topology: Topology, tmp_path: Path):
    """Whatever the order: what was accepted before a read began is in it, once."""
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        seen: list[tuple[list[str], list[str]]] = []

        async def live() -> None:
            for _ in range(12):
                await feed.publish(10, call=2)
                await mine.land()
                await trim(feed)

        living = asyncio.create_task(live())
        while not living.done():
            before = feed.ids
            seen.append((before, ids(await mine.find())))
        await living

    assert seen
    for before, found in seen:
        assert len(found) == len(set(found))
        assert set(before) <= set(found)


async def test_files_that_an_erasure_deletes_are_read_from_the_newer_version(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(60, topic="orders")
        await mine.land()
        erasure = Erasure(before_ms=10**13, tenant="tenant-1")

        async def erase() -> None:
            await asyncio.to_thread(mine.erase, erasure)

        happened = after_the_snapshot(monkeypatch, erase)
        found = await mine.find()

    assert happened == ["events"]
    assert sorted(ids(found)) == sorted(each.id for each in feed.events if each.tenant != "tenant-1")


async def test_what_a_tombstone_names_is_not_found_wherever_it_is(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(30)
        await mine.land()
        await feed.publish(30)
        tombstones.write(mine.root, "a", Erasure(before_ms=10**13, tenant="tenant-1"))
        tombstones.write(mine.root, "b", Erasure(before_ms=10**13, key="key-3", topic="users"))
        tombstones.write(mine.root, "c", Erasure(before_ms=1, tenant="tenant-2"))
        found = await mine.find()
        gone = await mine.life(next(each.id for each in feed.events if each.tenant == "tenant-1"))

    def is_erased(topic: str, tenant: str, key: str | None) -> bool:
        return tenant == "tenant-1" or (topic, key) == ("users", "key-3")

    assert sorted(ids(found)) == sorted(
        each.id for each in feed.events if not is_erased(each.topic, each.tenant, each.key)
    )
    assert gone.events == []


def an_old_table(root: str, names: list[str]) -> None:
    """The events table as 0.1.0 made it: without the newer columns and without an index."""
    now = landing.table_of(root, "events")
    kept = pa.schema([column for column in now.schema if column.name not in {"replay", "replay_of", "cloudevent"}])
    old = LakeTable(now.uri, kept, now.partition_by)
    line = b'{"topic":"orders","type":"create","t":%d,"id":"%s"}'
    entries = [
        JournalEntry(f"{1_794_740_000_000 + n}-0", (("p", line % (n, id_.encode())),)) for n, id_ in enumerate(names)
    ]
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    old.commit(old.open(), list(files.write(old, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)}))


async def test_a_lake_of_an_older_version_is_searched_whole(one: Topology, tmp_path: Path):
    old = [f"old-{n}" for n in range(5)]
    an_old_table(str(tmp_path / "lake"), old)
    async with a_feed(one) as feed:
        mine = PlainLake.__new__(PlainLake)
        mine.root, mine.access = str(tmp_path / "lake"), PlainLake(feed, tmp_path / "other").access
        only_old = await mine.find()
        life = await mine.life("old-3")
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(5)
        await mine.land()
        both = await mine.find()

    assert ids(only_old) == old
    assert [row["replay"] for row in only_old] == [None] * 5
    assert ids(life.events) == ["old-3"]
    assert ids(both)[:5] == old
    assert sorted(ids(both)[5:]) == feed.ids


async def test_a_read_that_takes_too_long_ends_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "_READ_S", 0.05)
    with engine.opened() as connection, pytest.raises(ReadTooLarge, match="takes more than"):
        await engine.run(
            connection,
            lambda duck: duck.execute(
                "select sum(a.range + b.range) from range(10000000) a, range(10000000) b"
            ).fetchall(),
        )


async def test_a_file_that_is_broken_for_good_is_an_error_of_one_line(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(5, topic="orders")
        await mine.land()
        [path] = mine.table().file_uris()
        await asyncio.to_thread(Path(path).write_bytes, b"not Parquet")
        with pytest.raises(LakeUnfit, match="cannot be read") as told:
            await mine.find()

    assert "\n" not in str(told.value)
