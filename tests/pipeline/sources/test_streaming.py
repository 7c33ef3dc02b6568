"""Sources: rows of many kinds become events, each once, and what cannot be one is kept with its reason."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.assembly.settings import Settings
from doubledecker.model.step import StepReport
from doubledecker.pipeline import steps
from doubledecker.pipeline.run import PipelineParts
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.sources import incremental
from doubledecker.pipeline.sources.config import Sources
from doubledecker.pipeline.sources.incremental import BookmarkConsumer
from doubledecker.pipeline.sources.streaming import StreamingSource
from doubledecker.pipeline.steps import Keeper
from feed import a_feed
from sourcing import FIELDS, SCHEMA, a_source, consume, drop, lines, number, outlet_in, published, quarantined

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = pa.table({"number": list(range(50)), "customer": [f"c{n % 7}" for n in range(50)]})


def write(folder: Path, format_: str) -> None:
    """Fifty rows as one file of a format."""
    file = folder / f"rows.{format_}"
    match format_:
        case "json":
            file.write_text(lines(range(50)))
        case "csv":
            pyarrow.csv.write_csv(TABLE, file)
        case "parquet":
            pyarrow.parquet.write_table(TABLE, file)
        case "orc":
            pyarrow.orc.write_table(TABLE, file)
        case "text":
            file.write_text("".join(f"{n},c{n % 7}\n" for n in range(50)))


SPLIT = {
    "topic": "'orders'",
    "type": "'create'",
    "key": "split(value, ',')[1]",
    "data": "to_json(struct(cast(split(value, ',')[0] as long) as number))",
}


@pytest.mark.parametrize(
    ("format_", "changes"),
    [
        ("json", {}),
        ("csv", {"options": {"header": "true"}}),
        ("parquet", {"schema": ""}),
        ("orc", {"schema": ""}),
        ("text", {"schema": "", "fields": SPLIT}),
    ],
)
async def test_files_of_each_format_are_published(
    spark: SparkSession, one: Topology, tmp_path: Path, format_: str, changes: dict[str, object]
):
    source = a_source(tmp_path, format=format_, **changes)
    write(Path(source.path), format_)
    async with a_feed(one) as feed:
        done = consume(spark, feed, tmp_path, source)
        again = consume(spark, feed, tmp_path, source)
        found = await published(feed)

    assert Counter(number(event) for event in found) == Counter(range(50))
    assert {(event.topic, event.type, event.key) for event in found} == {
        ("orders", "create", f"c{n}") for n in range(7)
    }
    assert (done.rows, again.rows) == (50, 0)
    assert quarantined(tmp_path) == []


async def test_any_format_that_spark_knows_is_a_source_by_its_name(spark: SparkSession, one: Topology, tmp_path: Path):
    source = a_source(
        tmp_path,
        format="rate-micro-batch",
        path="",
        schema="",
        options={"rowsPerBatch": "30", "numPartitions": "2"},
        fields={
            "topic": "'ticks'",
            "type": "'tick'",
            "data": "to_json(struct(value as number))",
            "timestamp": "timestamp",
        },
    )
    async with a_feed(one) as feed:
        consume(spark, feed, tmp_path, source)
        found = await published(feed)

    assert Counter(number(event) for event in found) == Counter(range(len(found)))
    assert len(found) >= 30


async def test_sql_makes_many_events_of_a_row_or_none(spark: SparkSession, topology: Topology, tmp_path: Path):
    source = a_source(
        tmp_path,
        sql="select 'orders' as topic, kind as type, customer as tenant, to_json(struct(number)) as data "
        "from rows lateral view explode(array('create', 'update')) t as kind where number % 2 = 0",
    )
    drop(source, "a.json", lines(range(20)) + "{broken\n" + '{"number": "two"}\n')
    async with a_feed(topology) as feed:
        done = consume(spark, feed, tmp_path, source)
        found = await published(feed)
    kept = quarantined(tmp_path)

    assert Counter((number(event), event.type) for event in found) == Counter(
        (n, kind) for n in range(0, 20, 2) for kind in ("create", "update")
    )
    # Though `where` would have dropped them.
    assert sorted(row["row"] for row in kept) == ['{"number": "two"}', "{broken"]
    assert {row["file"] for row in kept} == {f"file:{source.path}/a.json"}
    assert (done.rows, done.refused) == (22, 2)


async def test_bad_rows_are_quarantined_with_their_reasons_and_the_good_ones_published(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    fields = {
        **FIELDS,
        "topic": "if(customer like 'c%', 'orders', customer)",
        "timestamp": "1000000 div abs(number - 3)",
    }
    source = a_source(tmp_path, fields=fields)
    text = lines([1, 2]) + '{"number": 3, "customer": "c3"}\n{"number": 4, "customer": "No Topic"}\n{"number": }\n'
    drop(source, "a.json", text + '{"number": 5}\n' + lines([6]))
    async with a_feed(one) as feed:
        done = consume(spark, feed, tmp_path, source)
        found = await published(feed)
    kept = {row["row"]: row for row in quarantined(tmp_path)}
    why = {row: str(note["why"]) for row, note in kept.items()}

    assert sorted(number(event) for event in found) == [1, 2, 6]
    assert why['{"number": }'] == f"the line is not JSON of the schema {SCHEMA}"
    assert why['{"number":3,"customer":"c3"}'] == "timestamp cannot be computed: 1000000 div abs(number - 3)"
    assert any("the topic is 'No Topic'; a name must match" in each for each in why.values())
    assert any(each == "topic is null; an event must have one" for each in why.values())
    assert len(kept) == 4
    assert {row["source"] for row in kept.values()} == {"orders"}
    assert {row["file"] for row in kept.values()} == {f"file:{source.path}/a.json"}
    assert (done.rows, done.refused) == (7, 4)


async def test_a_csv_row_that_the_schema_does_not_fit_is_quarantined_though_no_field_asks_for_its_column(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    source = a_source(tmp_path, format="csv", fields={"topic": "'orders'", "type": "customer"})
    drop(source, "a.csv", "1,create\ntwo,update\n3\n4,delete,more\n5,noop\n")
    async with a_feed(one) as feed:
        consume(spark, feed, tmp_path, source)
        found = await published(feed)

    assert sorted(event.type for event in found) == ["create", "noop"]
    assert sorted(row["row"] for row in quarantined(tmp_path)) == ["3", "4,delete,more", "two,update"]


async def test_a_batch_that_is_repeated_publishes_and_quarantines_nothing_twice(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    source = a_source(tmp_path, options={"maxFilesPerTrigger": "1"})
    for part in range(3):
        drop(source, f"{part}.json", lines(range(part * 100, part * 100 + 100)) + "{broken\n")
    async with a_feed(topology) as feed:
        consume(spark, feed, tmp_path, source)
        commits = sorted((tmp_path / "lake" / "checkpoints" / "orders" / "commits").glob("[0-9]*"))
        # As if the driver had died after the last batch was published and before Spark wrote that down.
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
        drop(source, "more.json", lines(range(300, 320)))
        repeated = consume(spark, feed, tmp_path, source)
        found = await published(feed)

    assert len(commits) == 3
    assert Counter(number(event) for event in found) == Counter(range(320))
    assert len(quarantined(tmp_path)) == 3
    assert repeated.refused == 3


def endlessly(consumer: StreamingSource) -> None:
    while True:
        consumer.consume(is_once=False)


async def test_a_source_that_goes_on_takes_files_as_they_come_and_one_that_failed_begins_again(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    source = a_source(tmp_path, publisher="late")
    drop(source, "a.json", lines(range(10)))
    async with a_feed(one) as feed:
        consumer = StreamingSource(spark, source, outlet_in(tmp_path, feed, source), interval_s=0.1)
        with pytest.raises(PySparkException, match="there is no client 'late'"):
            endlessly(consumer)
        await feed.bus.registry.clients.create("late", "secret-of-the-late", now_ms=0)
        rows = 0
        try:
            while rows < 10:
                rows += consumer.consume(is_once=False).rows
            drop(source, "b.json", lines(range(10, 20)))
            while rows < 20:
                rows += consumer.consume(is_once=False).rows
        finally:
            consumer.close()
        found = await published(feed)

    assert Counter(number(event) for event in found) == Counter(range(20))


async def test_an_empty_folder_of_parquet_is_no_failure(spark: SparkSession, one: Topology, tmp_path: Path):
    source = a_source(tmp_path, format="parquet", schema="")
    async with a_feed(one) as feed:
        assert consume(spark, feed, tmp_path, source).rows == 0
        write(Path(source.path), "parquet")
        assert consume(spark, feed, tmp_path, source).rows == 50


async def test_a_source_that_fails_is_told_and_does_not_stop_another(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    good = a_source(tmp_path)
    bad = replace(good, name="bad", path=str(tmp_path / "nowhere"))
    drop(good, "a.json", lines(range(100)))
    told: dict[str, StepReport] = {}
    async with a_feed(one) as feed:
        access = outlet_in(tmp_path, feed, good).access
        ground = SparkReadContext(spark, access, str(tmp_path / "lake"))
        wanted = PipelineParts(Settings(), ground, "", Sources((bad, good)), is_once=True).steps()[:2]
        is_done = steps.pass_all([Keeper(step, told.__setitem__) for step in wanted], threading.Event())
        found = await published(feed)

    assert not is_done
    assert Counter(number(event) for event in found) == Counter(range(100))
    assert (told["source:orders"].rows, told["source:orders"].failures) == (100, 0)
    assert told["source:orders"].rows_per_s > 0
    assert (told["source:bad"].state, told["source:bad"].failures) == ("failing", 3)
    assert "nowhere" in told["source:bad"].error


async def test_a_source_whose_repeated_batch_has_fewer_rows_fails_with_what_to_do_and_the_others_go_on(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    source = a_source(tmp_path)
    (tmp_path / "other").mkdir()
    other = replace(source, name="other", path=str(tmp_path / "other"))
    drop(source, "a.json", lines(range(100)))
    told: dict[str, StepReport] = {}
    async with a_feed(one) as feed:
        consume(spark, feed, tmp_path, source)
        [commit] = (tmp_path / "lake" / "checkpoints" / "orders" / "commits").glob("[0-9]*")
        # As if the driver had died before Spark wrote down that the batch was published, and the file was then cut.
        commit.unlink()
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
        drop(source, "a.json", lines(range(40)))
        drop(other, "b.json", lines(range(200, 230)))
        ground = SparkReadContext(spark, outlet_in(tmp_path, feed, source).access, str(tmp_path / "lake"))
        wanted = PipelineParts(Settings(), ground, "", Sources((source, other)), is_once=True).steps()[:2]
        is_done = steps.pass_all([Keeper(step, told.__setitem__) for step in wanted], threading.Event())
        found = await published(feed)

    assert not is_done
    assert Counter(number(event) for event in found) == Counter([*range(100), *range(200, 230)])
    assert (told["source:other"].rows, told["source:other"].failures) == (30, 0)
    failed = told["source:orders"]
    assert failed.state == "failing"
    assert failed.error.startswith("this task published 100 rows to partition 0 before; this time it has 40. The input")
    assert failed.error.endswith("which publishes all of its input again")


def tables(spark: SparkSession, folder: Path, name: str) -> Callable[[str], None]:
    """A database in Spark's own JVM, to be told SQL; its log would lie where the tests were started."""
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(folder / "derby.log"))
    connection = spark._jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:memory:{name};create=true")

    def tell(sql: str) -> None:
        connection.createStatement().execute(sql)

    tell("create table orders (id int, made timestamp, customer varchar(20))")
    return tell


async def test_a_table_of_a_database_is_read_from_its_bookmark_on(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    tell = tables(spark, tmp_path, topology.name)
    source = a_source(
        tmp_path,
        format="jdbc",
        path="",
        schema="",
        mode="batch",
        bookmark="ID",
        options={"url": f"jdbc:derby:memory:{topology.name}", "dbtable": "orders"},
        fields={**FIELDS, "data": "to_json(struct(id as number))", "timestamp": "made"},
    )
    moment = "timestamp('2026-11-15 11:00:00')"
    async with a_feed(topology) as feed:
        consumer = BookmarkConsumer(spark, source, outlet_in(tmp_path, feed, source))
        empty = consumer.consume()
        tell(f"insert into orders values (1, {moment}, 'a'), (2, {moment}, null), (3, {moment}, 'has\nbreak')")
        first = consumer.consume()
        nothing = consumer.consume()
        for n in range(4, 40):
            tell(f"insert into orders values ({n}, {moment}, 'c')")
        place = tmp_path / "lake" / "checkpoints" / "orders"
        planned = replace(incremental.read(spark, str(place)), round=2, after="3", upto="20", is_done=False)
        # As if it had died between publishing and writing that down: the same range is published before the next.
        incremental.write(spark, str(place), planned)
        BookmarkConsumer(spark, source, outlet_in(tmp_path, feed, source)).consume()
        incremental.write(spark, str(place), planned)
        repeated = BookmarkConsumer(spark, source, outlet_in(tmp_path, feed, source)).consume()
        rest = consumer.consume()
        found = await published(feed)

    assert (empty.rows, first.rows, nothing.rows, repeated.rows, rest.rows) == (0, 3, 0, 17, 19)
    assert Counter(number(event) for event in found) == Counter([1, 2, *range(4, 40)])
    assert {event.t for event in found} == {1_794_740_400_000}
    assert [row["row"] for row in quarantined(tmp_path)] != []
    assert rest.refused == first.refused == len(quarantined(tmp_path)) == 1
