"""The journal read by Spark: everything that was accepted is there, once, with its fields."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, StringContains

import mixed
from conftest import Topology
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.position import Position
from doubledecker.pipeline.spark_format import options
from doubledecker.pipeline.spark_format.reader import JournalReader
from doubledecker.store import journal
from feed import Feed, a_feed
from harness import a_bus, an_event, basic
from receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def read(spark: SparkSession, feed: Feed, **more: str) -> DataFrame:
    return spark.read.format("doubledecker").options(**feed.options, **more).load()


def ids(frame: DataFrame) -> list[str]:
    return sorted(row.id for row in frame.select("id").collect())


def as_event(row: Row) -> AcceptedEvent:
    return AcceptedEvent(
        topic=row.topic,
        type=row.type,
        url=UNSET if row.url is None else row.url,
        t=row.timestamp,
        id=row.id,
        tenant=row.tenant,
        key=row.key or "",
    )


async def test_every_accepted_event_is_a_row_with_its_fields_and_place(spark: SparkSession, topology: Topology):
    async with a_feed(topology) as feed:
        await feed.publish(330, call=40)

        found = read(spark, feed).collect()

    rows = {row.id: row for row in found}
    assert len(found) == 330
    for event in feed.events:
        row = rows[event.id]
        assert as_event(row) == AcceptedEvent(
            topic=event.topic,
            type=event.type,
            url=event.url,
            t=event.t,
            id=event.id,
            tenant=event.tenant,
            key=event.key,
        )
        assert row.data.encode() == bytes(event.data)
        assert row.publisher == feed.publisher
    assert len({(row.partition, row.entry, row.line) for row in found}) == 330
    assert {row.partition for row in found} == set(range(topology.partitions))


async def test_rows_are_events_as_they_were_accepted_however_the_journal_keeps_them(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        accepted = await mixed.write(feed.bus.partitions.home)

        batch = read(spark, feed).collect()
        stream = spark.readStream.format("doubledecker").options(**feed.options, rowsPerBatch="50").load()
        writing = stream.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/state")
        query = writing.trigger(availableNow=True).start(f"{tmp_path}/rows")
        query.awaitTermination()
        streamed = spark.read.parquet(f"{tmp_path}/rows").collect()

    expected = [(each.publisher, each.event.id, bytes(each.event.data).decode()) for each in accepted]
    assert [(row.publisher, row.id, row.data) for row in sorted(batch, key=lambda row: row.id)] == expected
    assert sorted(streamed) == sorted(batch)


async def test_topic_and_tenant_choose_rows(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        await feed.publish(150)

        found = ids(read(spark, feed, topic="orders, users", tenant="tenant-3"))

    assert found == sorted(e.id for e in feed.events if e.topic in {"orders", "users"} and e.tenant == "tenant-3")


async def test_a_range_by_id_and_by_time_has_both_its_ends(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        await feed.publish(100, call=10)
        entries = await journal.read(feed.bus.partitions.home, "events")
        first, last = entries[2].id, entries[6].id

        by_id = read(spark, feed, **{"from": first, "to": last}).count()
        by_place = read(spark, feed, **{"from": f'{{"0": "{first}"}}', "to": f'{{"0": "{last}"}}'}).count()
        whole = read(spark, feed)
        moment = whole.filter(whole.entry == first).select("at").first()[0].astimezone(UTC).isoformat()
        by_time = read(spark, feed, **{"from": moment}).count()
        from_the_end = read(spark, feed, **{"from": "latest"}).count()

    assert by_id == by_place == 50
    # Entries may share a millisecond.
    assert by_time == sum(10 for entry in entries if Position.parse(entry.id).ms >= Position.parse(first).ms)
    assert from_the_end == 0


async def test_filters_that_are_pushed_choose_the_same_rows(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        await feed.publish(200, call=10)
        whole = read(spark, feed).collect()
        middle = sorted(row["at"] for row in whole)[100]
        # Python gives times in the zone of the machine; the session's is UTC.
        moment = f"timestamp'{middle.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"

        found = read(spark, feed)
        cases = {
            "topic = 'orders' and type = 'update'": lambda row: row.topic == "orders",
            "tenant in ('tenant-1', 'tenant-2') and topic <> 'users'": lambda row: (
                row.tenant in {"tenant-1", "tenant-2"} and row.topic != "users"
            ),
            f"at > {moment} and key = 'key-3'": lambda row: row["at"] > middle and row.key == "key-3",
            f"at <= {moment}": lambda row: row["at"] <= middle,
            f"at >= {moment} and at < {moment}": lambda _: False,
            "key is null": lambda row: row.key is None,
        }
        for condition, holds in cases.items():
            assert ids(found.filter(condition)) == sorted(row.id for row in whole if holds(row)), condition


async def test_a_pushed_time_reads_less_of_the_journal(one: Topology):
    async with a_feed(one) as feed:
        await feed.publish(100, call=10)
        entries = await journal.read(feed.bus.partitions.home, "events")
        middle = datetime.fromtimestamp(Position.parse(entries[5].id).ms / 1000, UTC)
        reader = JournalReader(options.parse_read({**feed.options, "slices": "1"}))
        later, alike = GreaterThan(("at",), middle), StringContains(("id",), "a")

        left = list(reader.pushFilters([EqualTo(("topic",), "orders"), later, alike]))
        [part] = await asyncio.to_thread(reader.partitions)

    assert left == [later, alike]
    # Others may share its millisecond.
    assert part.value.after == Position(Position.parse(entries[5].id).ms, 0).before
    assert part.value.upto == Position.parse(entries[-1].id)


async def test_a_start_that_was_trimmed_is_an_error_that_says_what_is_left(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        await feed.publish(100, call=10)
        home = feed.bus.partitions.home
        entries = await journal.read(home, "events")
        await feed.halve()
        kept = await journal.read(home, "events")
        trimmed = entries[len(entries) - len(kept) - 1].id

        with pytest.raises((AnalysisException, PythonException), match=f"is trimmed up to {trimmed}"):
            read(spark, feed, **{"from": entries[0].id}).count()
        rest = read(spark, feed, **{"from": entries[0].id, "failOnDataLoss": "false"}).count()
        earliest = read(spark, feed).count()

    assert 0 < len(kept) < len(entries)
    assert rest == earliest == 10 * len(kept)


def stream(spark: SparkSession, feed: Feed, folder: Path, **more: str) -> list[int]:
    """Read all there is into Parquet files, from the checkpoint on; returns the rows of each batch."""
    query = (
        spark.readStream.format("doubledecker")
        .options(**feed.options, **more)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


async def test_a_stream_goes_on_where_it_was_in_bounded_batches(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        await feed.publish(300, call=10)
        first = stream(spark, feed, tmp_path, rowsPerBatch="90")
        await feed.publish(120, call=10)
        second = stream(spark, feed, tmp_path, rowsPerBatch="90")
        third = stream(spark, feed, tmp_path, rowsPerBatch="90")

        found = ids(spark.read.parquet(str(tmp_path / "rows")))

    assert sum(first) == 300
    assert sum(second) == 120
    assert third == []
    assert max(first + second) <= 90
    assert found == feed.ids


async def test_a_stream_whose_place_was_trimmed_fails_unless_told_to_go_on(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        await feed.publish(10)
        stream(spark, feed, tmp_path)
        await feed.publish(100, call=10)
        await feed.halve()

        with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
            stream(spark, feed, tmp_path)
        rest = stream(spark, feed, tmp_path, failOnDataLoss="false")

    assert 0 < sum(rest) < 100


async def test_a_continuous_stream_sees_what_comes(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        query = (
            spark.readStream.format("doubledecker")
            .options(**feed.options, **{"from": "latest"})
            .load()
            .writeStream.format("memory")
            .queryName("seen")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            query.processAllAvailable()
            for _ in range(3):
                await feed.publish(20)
                query.processAllAvailable()
            found = ids(spark.table("seen"))
        finally:
            query.stop()

    assert found == feed.ids


async def test_attempts_are_rows_with_the_events_they_carried(spark: SparkSession, one: Topology):
    async with Receiver(plan=lambda number: 500 if number == 1 else 200) as receiver, a_bus(one) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(await bus.token("mailer"), receiver.url, "widgets", timeout=0, max=10)
        sent = await bus.publish(secret, [an_event(n) for n in range(25)])
        await receiver.until(lambda: set(sent) <= set(receiver.ids))
        async with asyncio.timeout(10):
            while (await journal.read_extent(bus.partitions.home, "attempts")).entries < 4:
                await asyncio.sleep(0.02)
        options_ = {"redisUrl": one.url, "journal": "attempts"}
        found = spark.read.format("doubledecker").options(**options_).load().collect()

    delivered = [row for row in found if row.outcome == "delivered"]
    assert {row.outcome for row in found} == {"delivered", "refused"}
    assert [row.status for row in found if row.outcome == "refused"] == [500]
    assert sorted(id_ for row in delivered for id_ in row.events) == sorted(sent)
    assert all(row.subscriber.startswith("mailer-") and row.took_ms >= 0 for row in found)


async def test_a_journal_without_columns_of_its_own_is_given_as_it_is(spark: SparkSession, one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        await home.command("XADD", home.key("journal:gaps"), "*", "journal", "events", "entries", 7)

        found = read(spark, feed, journal="gaps").collect()

    assert [(row.line, row.field, row.text) for row in found] == [(0, "journal", "events"), (1, "entries", "7")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tpoic": "orders"}, "there is no option 'tpoic'; there are failOnDataLoss, from"),
        ({"rowsPerBatch": "many"}, "it must be a whole number"),
        ({"rowsPerBatch": "9" * 5000}, "it must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "it must be true or false"),
        ({"journal": "attempts", "topic": "orders"}, "has no topic; leave the option out"),
        ({"to": "tomorrow"}, "it must be earliest, latest"),
    ],
)
def test_an_option_that_is_wrong_is_told(spark: SparkSession, one: Topology, given: dict[str, str], told: str):
    with pytest.raises(AnalysisException, match=told):
        spark.read.format("doubledecker").options(redisUrl=one.url, **given).load().count()


async def test_settlements_are_rows_with_queue_kind_and_message(spark: SparkSession, one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, consumer = await bus.token("shop"), await bus.token("consumer")

        async def ask(method: str, path: str, body: object) -> dict:
            async with bus.http.request(method, bus.url + path, json=body, headers=basic(consumer)) as answer:
                assert answer.status < 300, await answer.text()
                text = await answer.text()
                return msgspec.json.decode(text) if text else {}

        await ask("PUT", "/queues/jobs", {"pattern": ".*:widgets:.*"})
        await bus.publish(secret, [an_event(n, tenant="acme") for n in range(5)])
        pulled = (await ask("POST", "/queues/jobs/pull", {"max": 10}))["messages"]
        acked = {"messages": [{"id": each["id"], "attempt": each["attempt"]} for each in pulled]}
        await ask("POST", "/queues/jobs/ack", acked)
        wanted = {"redisUrl": one.url, "journal": "settlements"}
        found = spark.read.format("doubledecker").options(**wanted).load().collect()

    assert Counter((row.queue, row.kind, row.tenant, row.attempt) for row in found) == {
        ("jobs", "pulled", "acme", 1): len(pulled),
        ("jobs", "acked", "acme", 1): len(pulled),
    }
    assert {row.message for row in found if row.kind == "acked"} == {each["id"] for each in pulled}
    assert all(row.took_ms >= 0 for row in found)
