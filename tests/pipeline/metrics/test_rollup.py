"""Measuring: every landed row is counted once, as another engine counts it, whatever happened in between."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

import recount
from conftest import Topology
from doubledecker.lake import snapshots
from doubledecker.pipeline.lake import frames, versions
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import latest, measures, rollup, sketches, summaries
from doubledecker.pipeline.metrics.measures import MEASURES, SPANS
from doubledecker.store import journal
from doubledecker.store import pipeline as told
from feed import a_feed
from harness import a_bus, an_event
from lakes import Lake, a_lake
from receiver import Receiver
from traffic import BEGAN_MS, Traffic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 3
ERA = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))


def measure_all(spark: SparkSession, root: str, *, partitions: int = PARTITIONS) -> int:
    """Rounds on every table until there is no more; says how many rows they added."""
    added = 0
    for name in MEASURES:
        has_more = True
        while has_more:
            done = rollup.measure(spark, root, name, partitions=partitions)
            added, has_more = added + done.rows, done.has_more
    return added


def everything(root: str) -> dict[tuple[str, str], recount.Rows]:
    return {(name, span): recount.measured(root, name, span=span) for name in MEASURES for span in SPANS}


def check(root: str) -> None:
    """The tables hold what DuckDB counts from the lake: sums to the last digit, sketches within their error."""
    for span in SPANS:
        assert recount.measured(root, "attempts", span=span) == recount.recount(root, "attempts", span=span)
        assert recount.measured(root, "settlements", span=span) == recount.recount(root, "settlements", span=span)
        mine, theirs = (count(root, "events", span=span) for count in (recount.measured, recount.recount))
        assert mine.keys() == theirs.keys()
        for about, (*sums, keys) in mine.items():
            *true_sums, true_keys = theirs[about]
            assert sums == true_sums
            assert keys == true_keys if true_keys < 1024 else abs(keys - true_keys) <= 3 * true_keys / 1022**0.5
        _check_durations(root, span)


def _check_durations(root: str, span: str) -> None:
    histograms: dict[tuple[object, ...], dict[int, int]] = {}
    for (at, subscriber, kind, bucket), (count,) in recount.measured(root, "durations", span=span).items():
        histograms.setdefault((at, subscriber, kind), {})[bucket] = count
    true = recount.durations(root, span=span)
    assert histograms.keys() == true.keys()
    for about, counts in true.items():
        values = sorted(ms for ms, count in counts.items() for _ in range(count))
        found = sketches.spread(histograms[about])
        assert found.count == len(values)
        for percent, told_ms in ((50, found.p50), (95, found.p95), (99, found.p99)):
            true_ms = values[-(-len(values) * percent // 100) - 1]
            assert abs(told_ms - true_ms) <= true_ms / 128


def test_measures_are_what_another_engine_counts_though_partitions_land_at_different_speeds(
    spark: SparkSession, tmp_path: Path
):
    root, traffic = str(tmp_path), Traffic(7)
    for number in range(4):
        for name in journal.NAMES:
            traffic.land(root, name, partition=0, entries=200)
            # This one is behind by minutes, and then by none.
            traffic.land(root, name, partition=1, entries=20 if number < 3 else 700)
            if number == 2:
                traffic.land(root, name, partition=2, entries=300)
        measure_all(spark, root)
        check(root)

    assert len(recount.recount(root, "events", span="hour")) > 10
    assert max(row[-1] for row in recount.recount(root, "events", span="hour").values()) > 1024


def test_a_round_without_news_changes_nothing(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(8)
    for name in journal.NAMES:
        traffic.land(root, name, partition=0, entries=100)
    first = measure_all(spark, root)
    numbers = [measures.table_of(root, name).open().version() for name in MEASURES]
    before = everything(root)

    again = measure_all(spark, root)

    assert first > 0
    assert again == 0
    assert [measures.table_of(root, name).open().version() for name in MEASURES] == numbers
    assert everything(root) == before


def test_an_empty_lake_has_empty_measures(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)

    assert measure_all(spark, root) == 0
    assert all(rows == {} for rows in everything(root).values())
    assert summaries.summarize(root, span="hour", since=ERA[0], until=ERA[1]).moments == []


def test_files_of_a_round_that_died_before_its_commit_are_never_seen(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(9)
    traffic.land(root, "events", partition=0, entries=100)
    wanted, source = MEASURES["events"], landing.table_of(root, "events")
    table = measures.table_of(root, "events")
    table.open()
    written = rollup._write_spans(spark, table, wanted, frames.landed(spark, source, versions.of(source)))
    before = everything_of(root, "events")
    rollup.measure(spark, root, "events", partitions=1)

    assert sum(file.rows for file in written) > 0
    assert before == {}
    check_events(root)


def test_of_two_that_measure_the_same_one_commits(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(10)
    traffic.land(root, "events", partition=0, entries=100)
    source, table = landing.table_of(root, "events"), measures.table_of(root, "events")
    slower = table.open()
    stretch = rollup.plan(snapshots.landed(slower, 1), snapshots.landed(source.open(), 1), versions.of(source))
    frame = frames.landed(spark, source, versions.of(source))
    written = rollup._write_spans(spark, table, MEASURES["events"], frame)
    rollup.measure(spark, root, "events", partitions=1)

    with pytest.raises(CommitFailedError):
        table.commit(slower, written, snapshots.reaches(stretch.upto))
    check_events(root)


def test_a_backlog_is_taken_a_day_at_a_time(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(11, pace_ms=2_000_000)
    traffic.land(root, "events", partition=0, entries=300)
    rounds = []
    while not rounds or rounds[-1].has_more:
        rounds.append(rollup.measure(spark, root, "events", partitions=1))

    assert 3 <= len(rounds) <= 5
    check_events(root)


def test_joining_files_and_erasing_rows_count_nothing_twice_and_take_nothing_away(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(12)
    for _ in range(3):
        traffic.land(root, "events", partition=0, entries=60)
    rollup.measure(spark, root, "events", partitions=1)
    before = everything_of(root, "events")
    table = DeltaTable(f"{root}/events")
    table.optimize.compact()
    table.delete("tenant = 't1'")
    rollup.measure(spark, root, "events", partitions=1)
    after_erasure = everything_of(root, "events")
    traffic.land(root, "events", partition=0, entries=60)
    left = DeltaTable(f"{root}/events").count()
    rollup.measure(spark, root, "events", partitions=1)

    total = sum(row[0] for row in everything_of(root, "events").values())
    erased = sum(row[0] for about, row in before.items() if about[2] == "t1")
    assert after_erasure == before
    assert erased > 0
    assert total == left + erased


def test_what_was_erased_before_it_was_measured_is_not_counted(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(13)
    traffic.land(root, "events", partition=0, entries=60)
    DeltaTable(f"{root}/events").delete()

    done = rollup.measure(spark, root, "events", partitions=1)

    assert (done.rows, done.has_more) == (0, False)
    assert everything_of(root, "events") == {}
    assert snapshots.landed(DeltaTable(f"{root}/events"), 1) == snapshots.landed(
        measures.table_of(root, "events").open(), 1
    )


def test_parts_about_the_same_are_folded_to_one_row(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(14, pace_ms=50)
    files = []
    for _ in range(12):
        traffic.land(root, "events", partition=0, entries=10)
        files.append(rollup.measure(spark, root, "events", partitions=1).size.files)
    table, wanted = measures.table_of(root, "events"), MEASURES["events"]
    folded = [rollup.fold(spark, table, versions.of(table), wanted, files_min=2) for _ in range(2)]
    rows = pa.table(table.open().scan(columns=["span", "at", "topic", "tenant"])).to_pylist()

    check_events(root)
    assert max(files) < 40
    assert folded[0] > 0
    assert folded[1] == 0
    assert len({tuple(row.values()) for row in rows}) == len(rows)


def test_of_two_that_fold_the_same_one_commits(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(15, pace_ms=50)
    for _ in range(2):
        traffic.land(root, "events", partition=0, entries=10)
        rollup.measure(spark, root, "events", partitions=1)
    table, wanted = measures.table_of(root, "events"), MEASURES["events"]
    slower = versions.of(table)
    rollup.fold(spark, table, versions.of(table), wanted, files_min=2)

    assert rollup.fold(spark, table, slower, wanted, files_min=2) == 0
    check_events(root)


def test_measuring_goes_on_while_it_is_folded(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(16, pace_ms=50)
    table, wanted = measures.table_of(root, "events"), MEASURES["events"]
    for _ in range(3):
        traffic.land(root, "events", partition=0, entries=10)
        rollup.measure(spark, root, "events", partitions=1)
    behind = versions.of(table)
    traffic.land(root, "events", partition=0, entries=10)
    rollup.measure(spark, root, "events", partitions=1)
    rollup.fold(spark, table, behind, wanted, files_min=2)

    check_events(root)


def test_a_sum_is_that_of_the_rows_and_hours_of_minutes(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(17)
    for name in journal.NAMES:
        for index in range(PARTITIONS):
            traffic.land(root, name, partition=index, entries=500)
    measure_all(spark, root)
    by_minute, by_hour = (summaries.summarize(root, span=span, since=ERA[0], until=ERA[1]) for span in SPANS)
    served: dict[tuple[object, object], int] = {}
    for (_, queue, tenant), (pulled, *_) in recount.recount(root, "settlements", span="hour").items():
        served[queue, tenant] = served.get((queue, tenant), 0) + pulled
    minutes = len({about[0] for name in journal.NAMES for about in recount.recount(root, name, span="minute")})

    assert by_minute.total == by_hour.total
    assert by_minute.topics == by_hour.topics
    assert by_minute.subscribers == by_hour.subscribers
    assert [queue.shares for queue in by_minute.queues] == [queue.shares for queue in by_hour.queues]
    assert len(by_minute.moments) == minutes
    assert sum(moment.events for moment in by_minute.moments) == DeltaTable(f"{root}/events").count()
    assert sum(moment.attempts for moment in by_hour.moments) == DeltaTable(f"{root}/attempts").count()
    for queue in by_hour.queues:
        amounts = [amount for (name, _), amount in served.items() if name == queue.name]
        # What was asked for was not sampled here.
        assert queue.jain is None
        assert queue.shares == pytest.approx(
            {tenant: amount / sum(amounts) for (name, tenant), amount in served.items() if name == queue.name}
        )


async def test_the_latest_in_redis_are_what_the_tables_say(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(300, call=30)
        for name in journal.NAMES:
            await mine.land(name)
        await asyncio.to_thread(measure_all, spark, mine.root, partitions=topology.partitions)
        nothing = await told.measures(feed.bus.partitions.home)
        asked_ms = await feed.bus.partitions.home.time_ms()
        await asyncio.to_thread(latest.report, mine.access, mine.root)
        found = await told.measures(feed.bus.partitions.home)

    assert nothing == {}
    assert set(found) == set(SPANS)
    for span, summary in found.items():
        since, until = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (summary.since, summary.until))
        assert until - since == latest.LATEST[span]
        assert summary == summaries.summarize(
            mine.root, span=span, since=since, until=until, complete_until=summary.complete_until
        )
        assert (summary.total.events, summary.total.tenants) == (300, 5)
        assert summary.total.keys == len({(event.tenant, event.key) for event in feed.events})
        assert {flow.name: flow.events for flow in summary.topics} == dict.fromkeys(("orders", "users", "clicks"), 100)
        assert summary.complete_until >= asked_ms


async def test_what_has_not_landed_yet_holds_the_watermark_back(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(30)
        await mine.land()
        await asyncio.to_thread(measure_all, spark, mine.root, partitions=1)
        reached = snapshots.landed(mine.table(), 1)[0]
        await feed.publish(30)
        await asyncio.to_thread(latest.report, mine.access, mine.root)
        found = await told.measures(feed.bus.partitions.home)

    assert found["minute"].complete_until == reached.ms
    assert found["minute"].total.events == 30


async def test_real_deliveries_are_measured_by_subscriber(spark: SparkSession, one: Topology, tmp_path: Path):
    failing = iter([500, 500])
    async with (
        Receiver() as good,
        Receiver(plan=lambda _: next(failing, 200)) as bad,
        a_bus(one) as bus,
    ):
        publisher, well, sick = [await bus.token(name) for name in ("shop", "well", "sick")]
        await bus.subscribe(well, good.url, "widgets", timeout=0, max=10)
        await bus.subscribe(sick, bad.url, "widgets", timeout=0, max=10)
        await bus.publish(publisher, [an_event(n) for n in range(40)])
        async with asyncio.timeout(30):
            while len(good.events) < 40 or len(bad.events) < 40:
                await asyncio.sleep(0.05)
        mine = await Lake(spark, _Client(one), tmp_path).register()
        for name in journal.NAMES:
            await mine.land(name)
        await asyncio.to_thread(measure_all, spark, mine.root, partitions=1)

    check(mine.root)
    summary = summaries.summarize(mine.root, span="hour", since=ERA[0], until=ERA[1])
    found = {each.name.rpartition("-")[0]: each for each in summary.subscribers}
    assert set(found) == {"well", "sick"}
    assert found["well"].outcomes["refused"] == 0
    assert found["sick"].outcomes["refused"] == 2
    assert found["sick"].retries > 0
    assert found["well"].age.count == found["sick"].age.count == 40
    assert 0 <= found["well"].age.p50 <= 30_000


class _Client:
    """What a lake needs to know of a bus that runs elsewhere."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology


def everything_of(root: str, name: str) -> recount.Rows:
    return recount.measured(root, name, span="minute")


def check_events(root: str) -> None:
    for span in SPANS:
        assert recount.measured(root, "events", span=span) == recount.recount(root, "events", span=span)


def test_the_first_round_reads_only_what_is_new(spark: SparkSession, tmp_path: Path):
    root, traffic = str(tmp_path), Traffic(18, pace_ms=400_000)
    for _ in range(4):
        traffic.land(root, "events", partition=0, entries=300)
    source = landing.table_of(root, "events")
    done = snapshots.landed(source.open(), 1)
    traffic.land(root, "events", partition=0, entries=5)
    seen = versions.of(source, partitions=1)
    stretch = rollup.plan(done, snapshots.landed(seen, 1), seen)
    frame = frames.landed(spark, source, seen, since=stretch.since, until=stretch.until)
    fresh = rollup.only(frame, stretch)

    assert len(frame.inputFiles()) < seen.size.files / 2
    assert fresh.select("entry").distinct().count() == 5
    assert rollup.minutes(MEASURES["events"], fresh).count() > 0
    assert stretch.since > datetime.fromtimestamp(BEGAN_MS / 1000, UTC) + timedelta(days=1)
