"""Tending: fewer files, the same rows, and landing goes on as if nothing had happened."""

import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.lake import arrow, rows, snapshots
from doubledecker.model.position import Position
from doubledecker.pipeline.lake import files, maintenance, versions
from doubledecker.pipeline.lake.tables import Part
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures
from doubledecker.pipeline.sources import streaming
from doubledecker.pipeline.spark_format import refused_rows
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from doubledecker.store.journal import JournalEntry
from lakes import named_in_log

pytestmark = pytest.mark.slow

DAY_S = 86_400
LINE = b'{"topic":"%s","type":"create","t":%d,"id":"id-%d"}'


def land(root: str, first: int, count: int, *, topic: bytes = b"orders") -> None:
    """What a round of landing leaves in the table, without Spark and without a bus."""
    table = landing.table_of(root, "events")
    entries = [
        JournalEntry(f"{1_794_740_000_000 + n}-0", (("p", LINE % (topic, n, n)),)) for n in range(first, first + count)
    ]
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    opened = table.open()
    table.commit(opened, list(files.write(table, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)}))


def ids(root: str) -> list[str]:
    return sorted(pa.table(DeltaTable(f"{root}/events").scan())["id"].to_pylist())


def test_small_files_are_joined_and_nothing_else_changes(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    for number in range(20):
        land(root, number * 10, 10)
    land(root, 500, 5, topic=b"users")
    before, reached = ids(root), snapshots.landed(DeltaTable(f"{root}/events"), 1)

    done = maintenance.tend(spark, root)
    after = DeltaTable(f"{root}/events")

    assert done.joined == 20
    assert len(after.file_uris()) == 2
    assert ids(root) == before
    assert snapshots.landed(after, 1) == reached
    assert versions.of(landing.table_of(root, "events")).size.rows == 205
    assert maintenance.tend(spark, root) == maintenance.Maintained(0, 0)


def test_what_is_joined_keeps_its_order_and_the_log_names_nobody(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    for number in reversed(range(20)):
        land(root, number * 10, 10)

    maintenance.tend(spark, root)
    [file] = (uri for uri in DeltaTable(f"{root}/events").file_uris())

    assert pq.read_table(file, columns=["id"])["id"].to_pylist() == [f"id-{n}" for n in range(200)]
    assert named_in_log(DeltaTable(f"{root}/events")) == {"at"}


def test_what_was_joined_in_vain_does_not_stay_on_the_disk(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    for number in range(20):
        land(root, number * 10, 10)
    table = landing.table_of(root, "events")
    crowds = maintenance.crowded(versions.of(table).parts())
    maintenance.tend(spark, root)
    before, on_disk = ids(root), sorted(tmp_path.rglob("*.parquet"))

    assert maintenance._join(spark, table, crowds) == 0
    assert sorted(tmp_path.rglob("*.parquet")) == on_disk
    assert ids(root) == before


def test_files_are_joined_up_to_a_size_and_a_large_one_is_left_alone():
    parts = [a_part(f"{n}", size=20 * 2**20) for n in range(20)] + [a_part("large", size=2**26)]

    crowds = maintenance.crowded(parts)

    assert [len(crowd) for crowd in crowds] == [3] * 6 + [2]
    assert sorted(part.path for crowd in crowds for part in crowd) == sorted(f"{n}" for n in range(20))
    assert maintenance.crowded(parts[:15]) == []


def a_part(path: str, *, size: int) -> Part:
    return Part(path, size, 1, {"topic": "orders", "date": "2026-11-15"}, None, None)


def test_the_quarantine_is_joined_too_and_still_knows_how_much_it_holds(spark: SparkSession, tmp_path: Path):
    uri = streaming.quarantine_of(str(tmp_path))
    for batch in range(17):
        refused = RefusedRows(uri, query="q", batch=batch)
        refused.add({"number": batch}, "topic is null", {})
        refused_rows.commit(uri, refused.close(), query="q", batch=batch)

    done = maintenance.tend(spark, str(tmp_path))

    assert done.joined == 17
    assert pa.table(DeltaTable(uri).scan()).num_rows == refused_rows.count(uri, "q") == 17


def test_a_round_that_began_before_the_joining_commits_after_it(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    for number in range(20):
        land(root, number * 10, 10)
    table = landing.table_of(root, "events")
    opened = table.open()
    entries = [JournalEntry("1794740999999-0", (("p", LINE % (b"orders", 999, 999)),))]
    written = list(files.write(table, [arrow.to_batch(rows.layout("events"), entries, partition=0)]))
    maintenance.tend(spark, root)

    table.commit(opened, written, snapshots.reaches({0: Position(1_794_740_999_999, 0)}))

    assert ids(root) == sorted([*(f"id-{n}" for n in range(200)), "id-999"])


def test_files_of_a_measuring_round_that_died_are_removed_too(spark: SparkSession, tmp_path: Path):
    table = measures.table_of(str(tmp_path), "attempts")
    row = {"span": "hour", "at": datetime(2026, 11, 15, tzinfo=UTC), "subscriber": "s", "attempts": 1}
    table.open()
    [orphan] = files.write(table, [pa.RecordBatch.from_pylist([row], schema=measures.MEASURES["attempts"].schema)])
    path = tmp_path / "measures" / "attempts" / orphan.path
    os.utime(path, (time.time() - 8 * DAY_S,) * 2)

    assert maintenance.tend(spark, str(tmp_path)).removed == 1
    assert not path.exists()


@pytest.mark.parametrize(("age_s", "is_kept"), [(DAY_S, True), (8 * DAY_S, False)])
def test_files_of_a_round_that_died_are_removed_after_a_week(
    spark: SparkSession, tmp_path: Path, age_s: int, is_kept: bool
):
    root = str(tmp_path)
    land(root, 0, 10)
    table = landing.table_of(root, "events")
    entries = [JournalEntry("1794740999999-0", (("p", LINE % (b"orders", 1, 1)),))]
    [orphan] = files.write(table, [arrow.to_batch(rows.layout("events"), entries, partition=0)])
    path = tmp_path / "events" / orphan.path
    os.utime(path, (time.time() - age_s, time.time() - age_s))

    done = maintenance.tend(spark, root)

    assert path.exists() is is_kept
    assert done.removed == (0 if is_kept else 1)
    assert len(ids(root)) == 10


def a_day(root: str, number: int, *, topic: bytes = b"orders") -> None:
    """Ten events, a day for each number."""
    table = landing.table_of(root, "events")
    first = 1_794_740_000_000 + number * DAY_S * 1000
    entries = [JournalEntry(f"{first + n}-0", (("p", LINE % (topic, n, number * 10 + n)),)) for n in range(10)]
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    table.commit(
        table.open(), list(files.write(table, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)})
    )


def test_days_go_when_they_are_too_old_and_each_topic_by_its_own_rule(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    for number in range(10):
        for topic in (b"orders", b"pages", b"users"):
            a_day(root, number, topic=topic)
    reached = snapshots.landed(DeltaTable(f"{root}/events"), 1)
    # The tenth day is today: of what is kept for three days, the three whole days before it are there.
    now = datetime.fromtimestamp(1_794_740_000 + 9 * DAY_S, UTC)
    rules = maintenance.Retention(events_days=5, topics_days={"pages": 3, "users": 0})

    done = maintenance.tend(spark, root, rules, now=now)
    again = maintenance.tend(spark, root, rules, now=now)
    table = DeltaTable(f"{root}/events")
    days = Counter(row["topic"] for row in pa.table(table.scan()).to_pylist())

    assert days == {"orders": 60, "pages": 40, "users": 100}
    assert (done.dropped, again.dropped) == (100, 0)
    assert snapshots.landed(table, 1) == reached
    assert maintenance.tend(spark, root, now=now).dropped == 0


def test_attempts_and_settlements_have_a_rule_of_their_own(spark: SparkSession, tmp_path: Path):
    root = str(tmp_path)
    line = (
        b'{"subscriber":"s","batch":"b","attempt":1,"outcome":"delivered","status":200,"took_ms":3,"at":%d,"events":[]}'
    )
    table = landing.table_of(root, "attempts")
    for number in range(4):
        ms = 1_794_740_000_000 + number * DAY_S * 1000
        batch = arrow.to_batch(
            rows.layout("attempts"), [JournalEntry(f"{ms}-0", (("attempt", line % ms),))], partition=0
        )
        table.commit(table.open(), list(files.write(table, [batch])), snapshots.reaches({0: Position(ms, 0)}))
    a_day(root, 0)
    now = datetime.fromtimestamp(1_794_740_000 + 3 * DAY_S, UTC)

    done = maintenance.tend(spark, root, maintenance.Retention(attempts_days=1), now=now)

    assert done.dropped == 2
    assert DeltaTable(f"{root}/attempts").count() == 2
    assert len(ids(root)) == 10
