"""Counting: each transformation alone, on a few rows in plain sight."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as columns

from doubledecker.lake import arrow, rows
from doubledecker.pipeline.metrics import rollup, sketches
from doubledecker.pipeline.metrics.measures import MEASURES

pytestmark = pytest.mark.slow

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def a_frame(spark: SparkSession, journal: str, *given: dict[str, object]):
    schema = arrow.schema(rows.layout(journal))
    told = [tuple(row.get(name) for name in schema.names) for row in given]
    return spark.createDataFrame(told, arrow.ddl(schema))


def found(frame, *names: str) -> list[tuple[object, ...]]:
    # Python would give moments in the zone of this machine.
    told = frame.withColumn("at", columns.date_format("at", "HH:mm")).orderBy(*frame.columns)
    return [tuple(row[name] for name in names) for row in told.collect()]


def test_events_are_counted_by_minute_topic_and_tenant(spark: SparkSession):
    def event(seconds: int, topic: str, tenant: str, key: str | None) -> dict[str, object]:
        return {"at": NOON + timedelta(seconds=seconds), "topic": topic, "tenant": tenant, "key": key, "bytes": 10}

    frame = a_frame(
        spark,
        "events",
        event(0, "a", "x", "k1"),
        event(59, "a", "x", "k1"),
        event(60, "a", "x", "k1"),
        event(1, "a", "y", "k1"),
        event(2, "a", "y", None),
        event(3, "b", "x", None),
    )

    parts = rollup.minutes(MEASURES["events"], frame)
    counted = parts.withColumn("keys", columns.size("keys"))

    assert found(counted, "span", "at", "topic", "tenant", "events", "bytes", "keys") == [
        ("minute", "12:00", "a", "x", 2, 20, 1),
        ("minute", "12:00", "a", "y", 2, 20, 1),
        ("minute", "12:00", "b", "x", 1, 10, 0),
        ("minute", "12:01", "a", "x", 1, 10, 1),
    ]


def test_the_same_key_of_two_tenants_is_two_and_on_two_topics_one(spark: SparkSession):
    given = [("a", "x"), ("b", "x"), ("a", "y")]
    frame = a_frame(spark, "events", *({"at": NOON, "topic": o, "tenant": e, "key": "k", "bytes": 1} for o, e in given))

    lists = [row["keys"] for row in rollup.minutes(MEASURES["events"], frame).collect()]

    assert sketches.distinct(sketches.merge(lists)) == 2


def test_more_keys_than_a_row_keeps_leave_the_least_in_order(spark: SparkSession):
    many = spark.range(5000).selectExpr(
        "timestamp'2026-11-15 12:00:00' as at", "'a' as topic", "'x' as tenant", "concat('k', id) as key", "1 as bytes"
    )

    [row] = rollup.minutes(MEASURES["events"], many).collect()
    hashes = [each.hash for each in many.select(columns.xxhash64("tenant", "key").alias("hash")).collect()]

    assert (row.events, row["keys"]) == (5000, sorted(hashes)[: sketches.LEAST_MAX])


def test_attempts_are_counted_by_outcome_and_those_after_the_first_are_retries(spark: SparkSession):
    def attempt(number: int, outcome: str, events: int) -> dict[str, object]:
        ids = [f"id-{n}" for n in range(events)]
        return {"at": NOON, "subscriber": "s", "attempt": number, "outcome": outcome, "took_ms": 7, "events": ids}

    rows = (attempt(1, "refused", 3), attempt(2, "delivered", 3), attempt(1, "delivered", 2), attempt(0, "dropped", 0))
    frame = a_frame(spark, "attempts", *rows)
    names = ("attempts", "delivered", "refused", "timed_out", "retries", "events", "took_ms")

    assert found(rollup.minutes(MEASURES["attempts"], frame), *names) == [(3, 2, 1, 0, 1, 8, 21)]


def test_ages_are_of_delivered_events_whose_ids_tell_a_time(spark: SparkSession):
    accepted_ms = int((NOON - timedelta(seconds=5)).timestamp() * 1000)
    timed = f"{accepted_ms:012x}"
    id_ = f"{timed[:8]}-{timed[8:]}-7abc-8abc-0123456789ab"
    v8 = id_.replace("-7abc-", "-8abc-")
    own = {"at": NOON, "subscriber": "s", "attempt": 1, "took_ms": 100, "attempted_at": NOON}

    frame = a_frame(
        spark,
        "attempts",
        {**own, "outcome": "delivered", "events": [id_, v8, "my-own"]},
        {**own, "outcome": "refused", "events": [id_]},
    )

    assert found(rollup.minutes(MEASURES["durations"], frame), "kind", "bucket", "count") == [
        ("age", sketches.bucket(5100), 1),
        ("took", sketches.bucket(100), 2),
    ]


def test_an_age_is_never_below_zero_when_clocks_differ(spark: SparkSession):
    own = {"at": NOON, "subscriber": "s", "attempt": 1, "took_ms": 0, "attempted_at": NOON, "outcome": "delivered"}
    frame = a_frame(spark, "attempts", {**own, "events": ["ffffffff-ffff-7abc-8abc-0123456789ab"]})

    assert found(rollup.minutes(MEASURES["durations"], frame), "kind", "bucket") == [("age", 0), ("took", 0)]


def test_settlements_are_counted_by_queue_and_tenant(spark: SparkSession):
    def settled(tenant: str, kind: str) -> dict[str, object]:
        return {"at": NOON, "queue": "q", "tenant": tenant, "kind": kind, "took_ms": 5}

    frame = a_frame(spark, "settlements", settled("x", "pulled"), settled("x", "acked"), settled("y", "dead"))

    assert found(rollup.minutes(MEASURES["settlements"], frame), "tenant", "pulled", "acked", "dead", "took_ms") == [
        ("x", 1, 1, 0, 10),
        ("y", 0, 0, 1, 5),
    ]


def test_spark_and_python_count_in_the_same_buckets(spark: SparkSession):
    edges = [0, 1, 127, 128, 129, *(2**n + d for n in range(8, 40) for d in (-1, 0, 1))]
    frame = spark.createDataFrame([(ms,) for ms in edges], "ms long")

    told = frame.select("ms", rollup.bucket(columns.col("ms")).alias("bucket")).collect()

    assert {row.ms: row.bucket for row in told} == {ms: sketches.bucket(ms) for ms in edges}


def test_hours_are_minutes_added_up(spark: SparkSession):
    moments = [NOON, NOON + timedelta(minutes=59), NOON + timedelta(minutes=60)]
    given = [{"at": at, "topic": "a", "tenant": "x", "key": f"k{at.hour}", "bytes": 3} for at in moments]
    minutes = rollup.minutes(MEASURES["events"], a_frame(spark, "events", *given))

    hours = rollup.hours(MEASURES["events"], minutes).withColumn("keys", columns.size("keys"))

    assert found(hours, "span", "at", "events", "bytes", "keys") == [
        ("hour", "12:00", 2, 6, 1),
        ("hour", "13:00", 1, 3, 1),
    ]
