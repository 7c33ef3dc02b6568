"""Landing: what the bus accepted is in the lake, once, whatever was cut short on the way."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

import mixed
from conftest import Topology
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import ArchiveTaken, LakeUnfit
from doubledecker.lake import commits, snapshots
from doubledecker.model import audit as records
from doubledecker.model.audit import AuditFilter
from doubledecker.model.position import Position
from doubledecker.model.token import Caller
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import JournalFill, JournalSlice
from doubledecker.pipeline.land.landing import Lander, Pace
from doubledecker.store import audit, journal
from doubledecker.store.journal import Extent
from feed import a_feed
from lakes import Lake, a_lake

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_every_accepted_event_is_in_the_lake_once_with_its_fields(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(400, call=30)
        first = await mine.land()
        await feed.publish(250, call=7)
        second = await mine.land()
        third = await mine.land()

    found = {row["id"]: row for row in mine.rows()}
    assert [first.rows, second.rows, third.rows] == [400, 250, 0]
    assert mine.ids == feed.ids
    for event in feed.events:
        row = found[event.id]
        assert [row[name] for name in ("topic", "type", "tenant", "key", "url", "timestamp", "publisher")] == [
            event.topic,
            event.type,
            event.tenant,
            event.key,
            event.url,
            event.t,
            feed.publisher,
        ]
        assert str(row["data"]).encode() == bytes(event.data)
        assert row["date"] == row["at"].date()
    assert second.size.rows == len(feed.events)


async def test_events_land_as_they_were_accepted_however_the_journal_keeps_them(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        accepted = await mixed.write(feed.bus.partitions.home)
        await mine.land()

    found = sorted(mine.rows(), key=lambda row: str(row["id"]))
    assert [(row["publisher"], row["id"], row["data"], row["bytes"]) for row in found] == [
        (each.publisher, each.event.id, bytes(each.event.data).decode(), len(each.message)) for each in accepted
    ]


async def test_a_round_without_news_makes_no_commit(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(10)
        await mine.land()
        version = mine.table().version()
        await mine.land()

    assert mine.table().version() == version


async def test_the_bus_forgets_what_has_landed_and_nothing_else(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(200, call=10)
        await mine.land()
        fresh = await feed.publish(60, call=10)
        for partition in feed.bus.partitions.all:
            while (await journal.trim(partition, "events", bytes_max=10**9)).removed:
                pass
        kept = [await journal.read_extent(partition, "events") for partition in feed.bus.partitions.all]
        lost = [(await journal.state(partition)).get("events_lost") for partition in feed.bus.partitions.all]
        await mine.land()

    assert sum(extent.entries for extent in kept) < 200 / 10
    assert set(lost) == {None}
    assert {event.id for event in fresh} <= set(mine.ids)
    assert mine.ids == feed.ids


async def test_files_without_a_commit_are_never_seen_and_their_rows_land_once(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(120)
        table = landing.table_of(mine.root, "events")
        slices = landing.plan({0: Position(0, 0)}, await journal_reader.extents(mine.access, "events"), cores=2)
        # A driver that dies here has written everything and committed nothing.
        written = await asyncio.to_thread(landing._write, spark, mine.access, "events", table, slices)
        before = mine.rows()
        await mine.land()

    assert sum(file.rows for file in written) == 120
    assert before == []
    assert mine.ids == feed.ids


async def test_a_commit_that_the_bus_was_not_told_of_is_told_by_the_next_round(
    spark: SparkSession, one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def dies(*_: object) -> None:
        raise OSError("the driver died")

    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(50)
        with monkeypatch.context() as patched:
            patched.setattr(landing, "_confirm", dies)
            with pytest.raises(OSError, match="died"):
                await mine.land()
        told_before = (await journal.state(feed.bus.partitions.home)).get("events_confirmed")
        again = await mine.land()
        told_after = (await journal.state(feed.bus.partitions.home)).get("events_confirmed")
        last = (await journal.read_extent(feed.bus.partitions.home, "events")).last

    assert told_before is None
    assert again.rows == 0
    assert told_after == last
    assert mine.ids == feed.ids


async def test_of_two_that_land_the_same_range_one_commits(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(80)
        table = landing.table_of(mine.root, "events")
        slices = landing.plan({0: Position(0, 0)}, await journal_reader.extents(mine.access, "events"), cores=2)
        both = [table.open(), table.open()]
        for opened in both:
            written = await asyncio.to_thread(landing._write, spark, mine.access, "events", table, slices)
            if opened is both[0]:
                table.commit(opened, written, snapshots.reaches(landing._ends(slices)))
            else:
                with pytest.raises(CommitFailedError):
                    table.commit(opened, written, snapshots.reaches(landing._ends(slices)))

    assert mine.ids == feed.ids


async def test_a_bus_keeps_to_its_archive_until_another_takes_over(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        first = await a_lake(spark, feed, tmp_path / "a")
        second = Lake(spark, feed, tmp_path / "b")
        with pytest.raises(ArchiveTaken, match="--take-over"):
            await second.register()
        await landing.register(second.access, second.root, second.archive, takes_over=True)
        await feed.publish(5)
        await second.land()

        with pytest.raises(ArchiveTaken, match="another archive"):
            await first.land()


async def test_what_was_cut_before_it_landed_is_a_gap_and_the_rest_lands(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(100, call=10)
        lost = await feed.halve()
        await mine.land()

    assert lost > 0
    assert mine.ids == sorted(event.id for event in feed.events[lost * 10 :])


async def test_rows_lie_by_topic_and_date_and_a_reader_can_skip_files_by_time(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(30)
        await mine.land()
    table = mine.table()
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    earlier = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")

    assert {part["topic"] for part in table.partitions()} == {"orders", "users", "clicks"}
    assert table.file_uris(file_pruning_predicate=f"at > '{later}'") == []
    assert len(table.file_uris(file_pruning_predicate=f"at > '{earlier}'")) == len(table.file_uris())


async def test_spark_reads_the_table_too(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(90)
        await mine.land()

    frame = spark.read.option("basePath", f"{mine.root}/events").parquet(*mine.table().file_uris())
    assert sorted(row.id for row in frame.select("id", "topic").collect()) == feed.ids


async def test_a_journal_lands_by_bytes_or_by_time_and_at_once_when_it_is_half_full(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)

        async def landed(lander: Lander) -> int:
            return (await asyncio.to_thread(lander.round)).rows

        def paced(pace: Pace) -> Lander:
            return Lander(spark, mine.access, mine.root, "events", mine.archive, pace)

        tight = paced(Pace(interval_s=3600, bytes_min=10**9, rules=MemoryRules(journal_bytes_max=400_000)))
        await feed.publish(5)
        at_start = await landed(tight)
        await feed.publish(3)
        below_half = await landed(tight)
        await feed.publish(8, data_bytes=60_000)
        half_full = await landed(tight)
        patient = paced(Pace(interval_s=3600, bytes_min=10**6))
        await feed.publish(10)
        first = await landed(patient)
        while (await journal.trim(feed.bus.partitions.home, "events", bytes_max=10**9)).removed:
            pass
        await feed.publish(20)
        few = await landed(patient)
        await feed.publish(40, data_bytes=50_000)
        many = await landed(patient)

    # A pipeline that has just started knows of no commit of its own, and makes one.
    assert [first, few, many] == [10, 0, 60]
    assert [at_start, below_half, half_full] == [5, 0, 11]
    assert mine.ids == feed.ids


async def test_what_came_since_the_last_landing_counts_while_the_journal_shrinks(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        lander = Lander(spark, mine.access, mine.root, "events", mine.archive, Pace(interval_s=3600, bytes_min=10**6))
        await feed.publish(40, data_bytes=50_000)
        first = await asyncio.to_thread(lander.round)
        await feed.publish(40, data_bytes=50_000)
        while (await journal.trim(feed.bus.partitions.home, "events", bytes_max=10**9)).removed:
            pass
        second = await asyncio.to_thread(lander.round)

    assert [first.rows, second.rows] == [40, 40]


def test_a_landing_is_due_by_bytes_by_time_or_when_the_journals_are_half_full():
    pace = Pace(interval_s=10, bytes_min=1000)

    assert not pace.is_due(JournalFill(999, 0.4), since_s=9.9)
    assert pace.is_due(JournalFill(0, 0.0), since_s=10)
    assert pace.is_due(JournalFill(1000, 0.4), since_s=0)
    assert pace.is_due(JournalFill(0, 0.5), since_s=0)


def test_a_lake_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(LakeUnfit, match="set DOUBLEDECKER_LAKE"):
        landing.archive_of(str(tmp_path / "file"))


def test_a_round_takes_a_bounded_part_of_a_huge_journal_and_every_core_has_some():
    huge = Extent("0-0", "1000-0", "9000-0", entries=10**6, bytes=2**40)
    small = Extent("0-0", "1000-0", "9000-0", entries=10, bytes=1000)
    start = {0: Position(0, 0)}

    assert len(landing.plan(start, {0: huge}, cores=4)) == 64
    assert len(landing.plan(start, {0: small}, cores=4)) == 1
    for mebibytes, cores, slices in ((5, 2, 2), (200, 2, 4), (200, 4, 4), (400, 4, 8), (200, 3, 6)):
        middling = Extent("0-0", "1000-0", "9000-0", entries=1000, bytes=mebibytes * 2**20)
        assert len(landing.plan(start, {0: middling}, cores=cores)) == slices
    assert landing.plan({0: Position(9000, 0)}, {0: huge}, cores=4) == []
    assert landing.plan(start, {0: small}, cores=4) == [JournalSlice(0, Position(0, 0), Position(9000, 0))]
    assert commits.is_local("/data/lake")
    assert not commits.is_local("s3://bucket/lake")


async def test_the_audit_trail_lands_once_and_stays_on_the_bus(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        home = feed.bus.partitions.home

        async def record(number: int) -> None:
            begun = records.begun(f"r{number}", number, "queue.purged", Caller("ann-1", "ann"), "jobs")
            await audit.begin(home, begun)
            await audit.end(
                home, begun, records.ended(begun, "done", status=200, target="jobs", detail="", count=number)
            )

        await record(1)
        first = await mine.land("audit")
        await record(2)
        second, third = await mine.land("audit"), await mine.land("audit")
        kept = await audit.newest(home, AuditFilter(), limit=9)
    found = landing.table_of(mine.root, "audit").open().to_pyarrow_table().sort_by("count").to_pylist()

    assert [first.rows, second.rows, third.rows] == [1, 1, 0]
    assert [(row["request"], row["action"], row["count"], row["status"], row["fields"]) for row in found] == [
        ("r1", "queue.purged", 1, 200, []),
        ("r2", "queue.purged", 2, 200, []),
    ]
    assert [each.record.count for each in kept.records] == [2, 1]
