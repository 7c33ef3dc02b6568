"""Rows that Spark writes are events on the bus: by the bus's own rules, and once, however often a task is run."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from conftest import Topology
from doubledecker.bus import overview
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import BadRequest
from doubledecker.model.event import AcceptedEvent, EventLimits
from doubledecker.model.subscriber import Subscription
from doubledecker.pipeline.spark_format import encoder
from doubledecker.pipeline.spark_format.encoder import RowMaker
from doubledecker.store import journal
from feed import Feed, a_feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMITS = EventLimits(data_bytes_max=100, depth_max=5)


def rows(spark: SparkSession, count: int, *, tasks: int = 3) -> DataFrame:
    """Numbered rows over two topics, five tenants and seven keys, in a fixed order in each task."""
    return (
        spark.range(count)
        .repartition(tasks, "id")
        .sortWithinPartitions("id")
        .selectExpr(
            "if(id % 2 = 0, 'orders', 'users') as topic",
            "'update' as type",
            "concat('tenant-', id % 5) as tenant",
            "concat('key-', id % 7) as key",
            "concat('https://example.org/', id) as url",
            "id * 1000 as timestamp",
            "to_json(struct(id as number)) as data",
        )
    )


def write(frame: DataFrame, feed: Feed, **more: str) -> None:
    frame.write.format("doubledecker").options(**feed.options, publisher=feed.publisher, **more).mode("append").save()


async def published(feed: Feed) -> list[AcceptedEvent]:
    """All events in the journal."""
    found = []
    for partition in feed.bus.partitions.all:
        after = "0-0"
        while entries := await journal.read(partition, "events", after=after, count=1000):
            after = entries[-1].id
            for entry in entries:
                for _, value in entry.fields:
                    found += [_decode(line) for line in value.split(b"\n")]
    return found


def _decode(line: bytes) -> AcceptedEvent:
    return msgspec.json.decode(line, type=AcceptedEvent)


def number(event: AcceptedEvent) -> int:
    return int(msgspec.json.decode(bytes(event.data))["number"])


async def test_rows_are_events_for_everyone_that_an_event_over_http_is_for(spark: SparkSession, topology: Topology):
    async with a_feed(topology) as feed:
        asked = Subscription(["orders"], "https://example.org/hook", timeout=60_000, max=10_000)
        subscriber = await feed.bus.registry.subscriptions.put(feed.publisher, asked)
        write(rows(spark, 1000), feed)
        found = await published(feed)
        view = await overview.look(feed.bus.partitions, {subscriber.token: subscriber}, now_ms=0, rules=MemoryRules())
        topics = {topic.name: topic.events async for topic in feed.bus.registry.topics.list_()}

    assert sorted(number(event) for event in found) == list(range(1000))
    assert len({event.id for event in found}) == 1000
    for event in found:
        n = number(event)
        assert (event.topic, event.tenant, event.key) == (
            "users" if n % 2 else "orders",
            f"tenant-{n % 5}",
            f"key-{n % 7}",
        )
        assert (event.t, event.url) == (n * 1000, f"https://example.org/{n}")
    assert view.events_waiting == 500
    assert topics == {"orders": 500, "users": 500}


async def test_a_task_that_fails_midway_is_run_again_and_publishes_nothing_twice(
    spark: SparkSession, topology: Topology
):
    def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for count, batch in enumerate(batches):
            if count == 2 and TaskContext.get().attemptNumber() == 0:
                raise OSError("the executor died")
            yield batch

    async with a_feed(topology) as feed:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        try:
            frame = rows(spark, 6000)
            write(frame.mapInArrow(fails_at_first, frame.schema), feed)
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        found = await published(feed)

    assert Counter(number(event) for event in found) == Counter(range(6000))


async def test_the_same_write_again_publishes_nothing_and_another_everything(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        write(rows(spark, 500), feed, writeId="nightly-1")
        write(rows(spark, 500), feed, writeId="nightly-1")
        once = await published(feed)
        write(rows(spark, 500), feed, writeId="nightly-2")
        twice = await published(feed)

    assert len(once) == 500
    assert len(twice) == 1000


async def test_a_repeated_write_with_other_rows_is_an_error(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        write(rows(spark, 500), feed, writeId="nightly")

        with pytest.raises(PySparkException, match="are not those that it published before"):
            write(rows(spark, 500).withColumn("type", lit("create")), feed, writeId="nightly")
        found = await published(feed)

    assert len(found) == 500


def numbered(spark: SparkSession, numbers: range, *, tasks: int) -> DataFrame:
    """Rows in so many tasks, each with consecutive numbers."""
    pairs = spark.sparkContext.parallelize([(number,) for number in numbers], tasks)
    made = ["'orders' as topic", "'made' as type", "to_json(struct(number)) as data"]
    return spark.createDataFrame(pairs, "number long").selectExpr(*made)


@pytest.mark.parametrize(
    ("numbers", "tasks"), [(range(100, 104), 2), (range(100, 104), 1), (range(5), 1), (range(0), 1), (range(15), 3)]
)
async def test_a_repeated_write_with_fewer_rows_or_more_publishes_nothing_and_fails(
    spark: SparkSession, topology: Topology, numbers: range, tasks: int
):
    async with a_feed(topology) as feed:
        write(numbered(spark, range(10), tasks=2), feed, writeId="nightly")

        with pytest.raises(PySparkException, match=r"OrderChanged: .* under a new writeId"):
            write(numbered(spark, numbers, tasks=tasks), feed, writeId="nightly")
        found = await published(feed)

    assert sorted(number(event) for event in found) == list(range(10))


async def test_versions_of_a_write_follow_each_other_and_one_again_publishes_nothing(
    spark: SparkSession, one: Topology
):
    async with a_feed(one) as feed:
        for version, numbers in ((1, range(10)), (1, range(10)), (2, range(20, 25)), (2, range(20, 25))):
            write(numbered(spark, numbers, tasks=2), feed, writeId="nightly", writeVersion=str(version))
        with pytest.raises(PySparkException, match=r"batch 1 .* batch 2"):
            write(numbered(spark, range(10), tasks=2), feed, writeId="nightly", writeVersion="1")
        found = await published(feed)

    assert sorted(number(event) for event in found) == [*range(10), *range(20, 25)]


async def test_refused_rows_fail_the_write_with_their_reasons_and_the_others_are_published(
    spark: SparkSession, one: Topology
):
    async with a_feed(one) as feed:
        await feed.bus.registry.clients.create("other", "secret-of-the-other", now_ms=0)
        bad = rows(spark, 100).selectExpr(
            "if(timestamp = 3000, 'No Topic', topic) as topic",
            "type",
            "if(timestamp = 4000, 'not json', data) as data",
        )

        with pytest.raises(PySparkException) as told:
            write(bad, feed)
        found = await published(feed)

    assert len(found) == 98
    assert "2 rows were refused, and 98 published" in str(told.value)
    assert "the topic is 'No Topic'; a name must match" in str(told.value)
    assert "data is not JSON" in str(told.value)


async def test_refused_rows_go_to_the_side_table_once(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        other = await feed.bus.registry.clients.create("other", "secret-of-the-other", now_ms=0)
        await feed.bus.registry.topics.claim(["users"], publisher=other.id)
        side = str(tmp_path / "refused")
        write(rows(spark, 100), feed, refusedTable=side, writeId="w")
        write(rows(spark, 100), feed, refusedTable=side, writeId="w")
        found = await published(feed)
    refused = pa.table(DeltaTable(side).scan()).to_pylist()

    assert {event.topic for event in found} == {"orders"}
    assert len(found) == 50
    assert len(refused) == 50
    assert {row["why"] for row in refused} == {f"topic 'users' belongs to another client, {other.id!r}"}
    assert {row["query"] for row in refused} == {"w"}
    assert '"topic": "users"' in refused[0]["row"]


async def test_rows_that_were_refused_fail_the_same_write_again(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        other = await feed.bus.registry.clients.create("other", "secret-of-the-other", now_ms=0)
        await feed.bus.registry.topics.claim(["users"], publisher=other.id)
        for _ in range(2):
            with pytest.raises(PySparkException, match="50 rows were refused, and 50 published"):
                write(rows(spark, 100), feed, writeId="w")


def start(spark: SparkSession, feed: Feed, source: Path, checkpoint: Path) -> None:
    """Publish the files in a folder that were not yet, one a batch, until there is no more."""
    query = (
        spark.readStream.schema("number long, kind string")
        .option("maxFilesPerTrigger", 1)
        .json(str(source))
        .selectExpr("'orders' as topic", "kind as type", "to_json(struct(number)) as data")
        .writeStream.format("doubledecker")
        .options(**feed.options, publisher=feed.publisher, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def drop(folder: Path, name: str, numbers: range) -> None:
    """Put a file of JSON lines into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f'{{"number": {n}, "kind": "create"}}\n' for n in numbers))


async def test_a_batch_that_a_restarted_stream_repeats_is_published_once(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    for part in range(3):
        drop(source, f"{part}.json", range(part * 100, part * 100 + 100))
    async with a_feed(topology) as feed:
        start(spark, feed, source, checkpoint)
        commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        # As if the driver had died after the last batch was published and before Spark wrote that down.
        commits[-1].unlink()
        (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        start(spark, feed, source, checkpoint)
        drop(source, "more.json", range(300, 350))
        start(spark, feed, source, checkpoint)
        found = await published(feed)

    assert len(commits) == 3
    assert Counter(number(event) for event in found) == Counter(range(350))


async def test_a_stream_with_refused_rows_fails_and_says_why(spark: SparkSession, one: Topology, tmp_path: Path):
    drop(tmp_path / "source", "a.json", range(10))
    (tmp_path / "source" / "b.json").write_text('{"number": 1, "kind": "no type"}\n')
    async with a_feed(one) as feed:
        with pytest.raises(StreamingQueryException, match="type is 'no type'"):
            start(spark, feed, tmp_path / "source", tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("columns", "more", "told"),
    [
        (["'a' as topic"], {}, "there is no 'type' among the columns"),
        (["'a' as topic", "'b' as type", "1 as nonsense"], {}, "there is 'nonsense' among the columns"),
        (["'a' as topic", "1 as type"], {}, "the column 'type' is int; it must be text"),
        (["'a' as topic", "'b' as type", "'c' as timestamp"], {}, "it must be a timestamp or whole milliseconds"),
        (["'a' as topic", "'b' as type"], {"publisher": "nobody"}, "there is no client 'nobody'"),
        (["'a' as topic", "'b' as type"], {"tpoic": "x"}, "there is no option 'tpoic'"),
        (["'a' as topic", "'b' as type"], {"writeVersion": "2"}, "give that too"),
    ],
)
async def test_a_write_that_cannot_be_is_told_before_it_begins(
    spark: SparkSession, one: Topology, columns: list[str], more: dict[str, str], told: str
):
    async with a_feed(one) as feed:
        options = {**feed.options, "publisher": feed.publisher, **more}
        frame = spark.range(1).selectExpr(*columns)

        with pytest.raises(AnalysisException, match=told):
            frame.write.format("doubledecker").options(**options).mode("append").save()
        with pytest.raises(AnalysisException, match="cannot be taken back"):
            frame.write.format("doubledecker").options(**options).mode("overwrite").save()
        assert await published(feed) == []


def a_row(*, now_ms: int = 77, **fields: Any):
    item = {"topic": "orders", "type": "create", **fields}
    values = [item.get(name) for name in encoder.COLUMNS]
    return RowMaker(now_ms, LIMITS).make(0, "made", *values)


def test_what_a_row_leaves_out_is_filled_in_and_does_not_count_as_another_row():
    event, mark = _decode(a_row().message), a_row().mark
    later = a_row(now_ms=99)

    assert (event.id, event.t, event.tenant) == ("made", 77, "default")
    assert later.mark == mark
    assert later.message != a_row().message


def test_data_may_be_json_text_or_a_value():
    assert bytes(_decode(a_row(data='{"a": 1}').message).data) == b'{"a": 1}'
    assert bytes(_decode(a_row(data={"a": [1, None]}).message).data) == b'{"a":[1,null]}'


def test_a_time_in_the_data_is_part_of_the_row():
    row, other = a_row(data='{"t":77,"n":1}'), a_row(data='{"t":78,"n":1}')

    assert row.mark != other.mark
    assert row.mark == a_row(now_ms=99, data='{"t":77,"n":1}').mark


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data": "{"}, "data is not JSON"),
        ({"topic": None}, "topic is null"),
        ({"url": "http://example.org"}, "it must be an https URL"),
        ({"id": "has space"}, "printable ASCII"),
        ({"timestamp": -5}, "it must be milliseconds"),
    ],
)
def test_a_row_that_cannot_be_an_event_says_why(fields: dict[str, object], why: str):
    with pytest.raises(BadRequest, match=why):
        a_row(**fields)
