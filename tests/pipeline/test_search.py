"""Search by Spark: what it reads of the lake is what is read without it, and conditions mean the same."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.errors import LakeUnfit
from doubledecker.lake import arrow, queries, rows, snapshots
from doubledecker.lake.engine import opened, select_files
from doubledecker.lake.queries import Query
from doubledecker.model.condition import parse_where
from doubledecker.model.erasure import Erasure
from doubledecker.model.position import Position
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.pipeline import search
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import landing
from doubledecker.store.journal import JournalEntry
from feed import a_feed
from lakes import a_lake
from replays import Desk
from unreadable import FAR, LONG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Values that engines are known to see differently: case, escapes, signs of patterns, numbers as text, absence.
DATA = (
    b'{"number":1,"text":"a_b","price":1.50,"inner":{"state":"paid","list":[1, 2]},"flag":true}',
    b'{"number":"2","text":"A_B","price":1e3,"inner":{"state":null}}',
    b'{"number":"1f","text":"a%b \\u00e4\\n","price":-0.5,"inner":7}',
    b'{"number":12345678901234567890,"text":"a\\\\b"}',
    b'{"number":null,"text":"it\'s","text":"twice"}',
    b'"only text"',
    b"[1, 2]",
)
CONDITIONS = (
    "data.number = 1",
    "data.number = '1'",
    "data.number >= 2",
    "data.number is null",
    "data.price = 1.5",
    "data.price = '1000.0'",
    "data.price between -1 and 2",
    "data.inner.state = 'paid'",
    "data.inner.state is not null",
    "data.inner = '7'",
    "data.flag = 'true'",
    "data.text like 'a\\_b'",
    "data.text like 'a_b'",
    "data.text like '%\\%%'",
    "data.text = 'a\\b'",
    "data.text = 'it''s'",
    "data.text = 'ä'",
    "data like '%ä%' or data like '%\\\\u00e4%'",
    "not data.text = 'a_b'",
    "key = 'key-1' or key is null",
    "key not in ('key-1', 'key-2')",
    "not (key = 'key-1' and line = 0)",
    "key > 'key-1'",
    "bytes > 60.5",
    "timestamp in (0, 3)",
    "at >= '2026-11-15T10:53:20.003Z'",
    "at between '2026-11-15T10:53:20.001+00:00' and '2026-11-15T11:53:20.003+01:00'",
    "tenant <> 'default'",
    "replay is null and url is null",
)


def a_table(root: str, texts: Sequence[bytes] = DATA) -> None:
    line = b'{"topic":"orders","type":"create","id":"id-%d","t":%d%s,"data":%s}'
    entries = []
    for n, data in enumerate(texts):
        key = b"" if n == 4 else b',"key":"key-%d"' % (n % 3)
        tenant = b',"tenant":"T\xc3\xa4"' if n == 2 else b""
        entries.append(JournalEntry(f"{1_794_740_000_000 + n}-0", (("p", line % (n, n, key + tenant, data)),)))
    table = landing.table_of(root, "events")
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    table.commit(
        table.open(), list(files.write(table, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)})
    )


def test_a_condition_means_the_same_with_and_without_spark(spark: SparkSession, tmp_path: Path):
    a_table(str(tmp_path))
    snapshot = snapshots.read(str(tmp_path), "events", partitions=1)
    found: dict[str, tuple[list[object], list[object]]] = {}
    for text in CONDITIONS:
        query = Query("events", parse_where(text), limit=100)
        with opened() as connection:
            few = select_files(connection, snapshot.paths(), query)
        many = search._landed(spark, snapshot, query, [])
        found[text] = [row["id"] for row in few], [row["id"] for row in many]

    assert {text: few for text, (few, _) in found.items()} == {text: many for text, (_, many) in found.items()}
    assert [text for text, (few, _) in found.items() if not few] == ["data.text = 'ä'"]


def test_numbers_that_no_reader_can_hold_stop_no_search_by_spark(spark: SparkSession, tmp_path: Path):
    a_table(str(tmp_path), [FAR.replace(b'"n"', b'"number"'), LONG.replace(b'"n"', b'"number"'), *DATA])
    snapshot = snapshots.read(str(tmp_path), "events", partitions=1)
    found = {
        text: [row["id"] for row in search._landed(spark, snapshot, Query("events", parse_where(text), limit=100), [])]
        for text in CONDITIONS
    }

    assert found["data.number = 1"] == ["id-2"]
    assert found["data.inner.state = 'paid'"] == ["id-2"]


async def test_spark_finds_what_is_found_without_it(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        reader = search.reader(spark)
        nothing = await mine.find(reader=reader)
        await feed.publish(60, call=10)
        await mine.land()
        await feed.publish(30, call=10)
        tombstones.write(mine.root, "a", Erasure(before_ms=10**13, tenant="tenant-1"))
        middle = str((await mine.find())[40]["at"])
        wanted = (
            {},
            {"limit": 7},
            {"start": middle},
            {"end": middle, "topic": "orders"},
            {"tenant": "tenant-2", "where": "key = 'key-3' or data.number < 4"},
        )
        found = [(await mine.find(**each), await mine.find(reader=reader, **each)) for each in wanted]
        lives = [await mine.life(feed.events[2].id, reader=each) for each in (None, reader)]

    assert nothing == []
    assert len(found[0][0]) == 72
    for few, many in found:
        assert few == many != []
    assert lives[0] == lives[1]
    assert lives[0].events


async def test_what_spark_cannot_read_is_an_error_of_one_line(spark: SparkSession, tmp_path: Path):
    a_table(str(tmp_path))
    snapshot = snapshots.read(str(tmp_path), "events", partitions=1)
    [path] = snapshot.paths()
    await asyncio.to_thread(Path(path).write_bytes, b"not Parquet")

    with pytest.raises(LakeUnfit, match="Spark cannot read") as told:
        await search.reader(spark)(snapshot, queries.event("id-1"), [])
    assert "\n" not in str(told.value)


async def test_an_events_life_has_its_replays(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        root = Caller("", "root", is_root=True)
        await feed.bus.registry.register_queue(RegisteredQueue("again", "", ("no:no:no",)), caller=root)
        [event, other] = await feed.publish(2, topic="orders")
        await Desk(mine, one).replay(to_queue="again", where="data.number = 0")
        await Desk(mine, one).replay(to_queue="again", where="abs(timestamp) = 1")
        known, plain = await mine.life(event.id), await mine.life(other.id)

    def told(found: list[dict[str, object]]) -> list[tuple[object, ...]]:
        return [(row["target"], row["name"], row["state"], row["sent"]) for row in found]

    assert told(known.replays) == [("queue", "again", "done", True), ("queue", "again", "done", None)]
    assert told(plain.replays) == [("queue", "again", "done", None)]
    assert [row["name"] for row in known.waiting] == [row["name"] for row in plain.waiting] == ["again"]
