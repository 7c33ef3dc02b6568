"""Count: rows of the lake become parts of measures. DataFrame in, DataFrame out; nothing here reads or writes.

A part says what some rows add to a minute. `merged` makes one of parts about the same, and `hours` of minutes.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as columns

from doubledecker.pipeline.metrics import measures, sketches
from doubledecker.pipeline.metrics.measures import Measure

# The bus's own ids are UUIDv7: 48 bits of milliseconds, then the version.
_TIMED_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


def minutes(measure: Measure, rows: DataFrame) -> DataFrame:
    """What rows of a measure's source add to each minute."""
    began = rows.withColumn("at", columns.date_trunc("minute", "at"))
    return _COUNTS[measure.name](began).select(columns.lit("minute").alias("span"), *measure.schema.names[1:])


def hours(measure: Measure, parts: DataFrame) -> DataFrame:
    """What minutes add to each hour; no row of the lake is read for it."""
    began = parts.withColumn("at", columns.date_trunc("hour", "at")).withColumn("span", columns.lit("hour"))
    return merged(measure, began)


def merged(measure: Measure, parts: DataFrame) -> DataFrame:
    """One row for all parts about the same."""
    added: list[Column] = [columns.sum(name).alias(name) for name in measure.sums]
    if measure.has_keys:
        union = columns.array_distinct(columns.flatten(columns.collect_list("keys")))
        added.append(columns.slice(columns.array_sort(union), 1, sketches.LEAST_MAX).alias("keys"))
    return parts.groupBy("span", "at", *measure.by).agg(*added).select(measure.schema.names)


def events(rows: DataFrame) -> DataFrame:
    """Events and bytes by topic and tenant, and the least hashes of their keys."""
    # A key is its tenant's: the same word of another tenant is another key.
    hashed = columns.when(columns.col("key").isNotNull(), columns.xxhash64("tenant", "key"))
    # First by key, so that what is held of a group is bounded however many keys it has.
    by_key = (
        rows.groupBy("at", "topic", "tenant", hashed.alias("hash"))
        .agg(_count().alias("events"), columns.sum("bytes").alias("bytes"))
    )  # fmt: skip
    least = columns.min_by("hash", "hash", sketches.LEAST_MAX)
    none = columns.array().cast("array<long>")
    return by_key.groupBy("at", "topic", "tenant").agg(
        columns.sum("events").alias("events"),
        columns.sum("bytes").alias("bytes"),
        columns.array_sort(columns.array_compact(columns.coalesce(least, none))).alias("keys"),
    )


def attempts(rows: DataFrame) -> DataFrame:
    """Attempts at each subscriber by outcome, how many of them were not the first, and the events they carried."""
    return rows.groupBy("at", "subscriber").agg(
        _count().alias("attempts"),
        *(columns.count_if(columns.col("outcome") == word).alias(word) for word in measures.OUTCOMES),
        columns.count_if(columns.col("attempt") > 1).alias("retries"),
        columns.sum(columns.size("events").cast("long")).alias("events"),
        columns.sum("took_ms").alias("took_ms"),
    )


def durations(rows: DataFrame) -> DataFrame:
    """How long attempts took, and how old events were when they were delivered, as histograms."""
    took = rows.select("at", "subscriber", columns.lit("took").alias("kind"), columns.col("took_ms").alias("ms"))
    return (
        took.unionByName(_ages(rows))
        .withColumn("ms", columns.greatest("ms", columns.lit(0)))
        .groupBy("at", "subscriber", "kind", bucket(columns.col("ms")).alias("bucket"))
        .agg(_count().alias("count"))
    )


def settlements(rows: DataFrame) -> DataFrame:
    """What became of each tenant's messages, by queue, and how long consumers had them in hand."""
    return rows.groupBy("at", "queue", "tenant").agg(
        *(columns.count_if(columns.col("kind") == word).alias(word) for word in measures.SETTLEMENTS),
        columns.sum("took_ms").alias("took_ms"),
    )


def bucket(ms: Column) -> Column:
    """`sketches.bucket` for Spark: whole numbers only, so that every engine counts alike."""
    shift = columns.greatest(columns.length(columns.bin(ms)) - (sketches.BITS + 1), columns.lit(0))
    moved = columns.call_function("shiftright", ms, shift)
    return (shift * (1 << sketches.BITS) + moved).cast("int")


def _ages(rows: DataFrame) -> DataFrame:
    """From when an event was accepted, as its id tells, to the end of the attempt that delivered it.

    An id that the publisher gave tells a time only when it is a UUIDv7 too; others are left out.
    """
    delivered = rows.where(columns.col("outcome") == "delivered")
    ended = columns.unix_millis("attempted_at") + columns.col("took_ms")
    each = delivered.select("at", "subscriber", ended.alias("ended"), columns.explode("events").alias("id"))
    digits = columns.concat(columns.substring("id", 1, 8), columns.substring("id", 10, 4))
    accepted = columns.conv(digits, 16, 10).cast("long")
    age = (columns.col("ended") - accepted).alias("ms")
    return each.where(columns.col("id").rlike(_TIMED_ID)).select(
        "at", "subscriber", columns.lit("age").alias("kind"), age
    )


def _count() -> Column:
    return columns.count(columns.lit(1))


_COUNTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "events": events,
    "attempts": attempts,
    "durations": durations,
    "settlements": settlements,
}
