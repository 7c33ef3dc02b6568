"""Columns that come with a new version: an older table gets them, and its rows have null there."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from msgspec import json
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.errors import LakeUnfit
from doubledecker.lake import arrow, queries, reads, rows, snapshots
from doubledecker.model import moment
from doubledecker.model.position import Position
from doubledecker.pipeline.lake import files, frames, versions
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.land import landing
from doubledecker.store.journal import JournalEntry
from feed import a_feed
from lakes import Lake
from replays import Desk

pytestmark = pytest.mark.slow

LINE = b'{"topic":"orders","type":"create","t":%d,"id":"old-%d"}'
NEW = {"replay", "replay_of", "cloudevent"}


def an_old_table(root: str) -> None:
    """The events table as the first version made it, with five events."""
    now = landing.table_of(root, "events")
    old = LakeTable(now.uri, pa.schema([column for column in now.schema if column.name not in NEW]), now.partition_by)
    entries = [JournalEntry(f"{1_794_740_000_000 + n}-0", (("p", LINE % (n, n)),)) for n in range(5)]
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    old.commit(old.open(), list(files.write(old, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)}))


def columns_of(root: str, name: str = "events") -> set[str]:
    return {column.name for column in DeltaTable(f"{root}/{name}").schema().fields}


def test_an_older_table_gets_what_it_lacks_and_keeps_what_it_has(tmp_path: Path):
    an_old_table(str(tmp_path))
    before = columns_of(str(tmp_path))
    opened = landing.table_of(str(tmp_path), "events").open()
    version = opened.version()
    landing.table_of(str(tmp_path), "events").open()
    found = pa.table(opened.scan()).to_pylist()

    assert not before & NEW
    assert columns_of(str(tmp_path)) == before | NEW
    assert sorted(row["id"] for row in found) == [f"old-{n}" for n in range(5)]
    assert {(row["replay"], row["replay_of"]) for row in found} == {(None, None)}
    assert snapshots.landed(opened, 1) == {0: Position(1_794_740_000_004, 0)}
    assert DeltaTable(f"{tmp_path}/events").version() == version, "the second time there is nothing to add"


def an_attempt(number: int, **more: object) -> JournalEntry:
    told = {"batch": f"b{number}", "subscriber": "s", "attempt": 1, "outcome": "delivered", "took_ms": 1, "at": 7}
    return JournalEntry(
        f"{1_794_740_000_000 + number}-0", (("attempt", json.encode({**told, "events": ["e"], **more})),)
    )


async def test_attempts_of_before_do_not_tell_when_they_were_accepted_and_those_of_now_do(
    one: Topology, tmp_path: Path
):
    now = landing.table_of(str(tmp_path), "attempts")
    fields = [column for column in now.schema if column.name != "accepted_at"]
    old = LakeTable(now.uri, pa.schema(fields), now.partition_by)
    accepted_at = 1_794_730_000_000
    for table, entry in ((old, an_attempt(0)), (now, an_attempt(1)), (now, an_attempt(2, accepted_at=accepted_at))):
        batch = arrow.to_batch(rows.layout("attempts"), [entry], partition=0)
        reached = snapshots.reaches({0: Position.parse(entry.id)})
        table.commit(table.open(), list(files.write(table, [batch])), reached)
    columns, found = columns_of(str(tmp_path), "attempts"), pa.table(now.open().scan()).to_pylist()
    async with a_feed(one) as feed:
        query = queries.attempts("e", since=moment.from_ms(0))
        read = await reads.find(reads.ReadContext(str(tmp_path), feed.bus.partitions), query)

    told = {"b0": None, "b1": None, "b2": moment.from_ms(accepted_at)}
    assert columns == {column.name for column in now.schema}
    assert {row["batch"]: row["accepted_at"] for row in found} == told
    assert [row["accepted_at"] for row in read] == [None, None, "2026-11-15T08:06:40.000Z"]


def test_a_column_of_another_type_is_refused_and_nothing_is_changed(tmp_path: Path):
    now = landing.table_of(str(tmp_path), "events")
    fields = [pa.field("bytes", pa.string()) if each.name == "bytes" else each for each in now.schema]
    DeltaTable.create(now.uri, schema=pa.schema(fields[:-4]), partition_by=["topic"])

    with pytest.raises(
        LakeUnfit, match=r"column 'bytes' of the lake's table .* is string, and this version .* integer"
    ):
        now.open()
    assert not columns_of(str(tmp_path)) & NEW


@pytest.mark.timeout(300)
async def test_old_and_new_rows_are_landed_found_and_erased_together(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    an_old_table(str(tmp_path / "lake"))
    async with a_feed(one) as feed:
        mine = await Lake(spark, feed, tmp_path).register()
        await feed.publish(20)
        await mine.land()
        desk = Desk(mine, one)
        table = landing.table_of(mine.root, "events")
        frame = frames.landed(spark, table, versions.of(table))
        nulls = frame.where("replay is null").count()
        found = await mine.find()
        done = await desk.erase(tenant="default")

    assert nulls == len(found) == 25
    assert done.done == 5
    assert mine.ids == feed.ids
