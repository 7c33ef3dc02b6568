"""Measure: what has landed since the last round is counted, and added to the tables of measures, each row once.

1. The table of measures says how far it has come, and its source how far that reaches: by partition of the bus, the
   last entry (lake/snapshots.py). What lies between is new; it is found by place and time, whatever file it is in
   now.
2. Tasks count it by minute, add minutes up to hours, and write both to files, which nobody sees yet.
3. The driver commits the files together with how far the table now reaches.

So a round that died is never seen, and one that committed is never repeated. Rows that are rewritten later, because
small files were joined or a tenant's events were erased, are not new: a measure says what happened, once, and goes on
saying so. A minute is never closed: partitions land at different speeds, and whatever comes late is one more part of
its minute. Parts about the same are folded to one row when their files have become many.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import or_

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from doubledecker.lake import arrow, snapshots
from doubledecker.model import moment
from doubledecker.model.attempt import DROPPED
from doubledecker.model.position import Position
from doubledecker.pipeline import session
from doubledecker.pipeline.lake import files, frames, versions
from doubledecker.pipeline.lake.tables import LakeTable, Part, TableSize, WrittenFile
from doubledecker.pipeline.lake.versions import Version
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures, sketches
from doubledecker.pipeline.metrics.measures import Measure

# Count: rows of the lake become parts of measures. DataFrame in, DataFrame out; nothing here reads or writes.
#
# A part says what some rows add to a minute. `merged` makes one of parts about the same, and `hours` of minutes.

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
    return (
        _made(rows)
        .groupBy("at", "subscriber")
        .agg(
            _count().alias("attempts"),
            *(columns.count_if(columns.col("outcome") == word).alias(word) for word in measures.OUTCOMES),
            columns.count_if(columns.col("attempt") > 1).alias("retries"),
            columns.sum(columns.size("events").cast("long")).alias("events"),
            columns.sum("took_ms").alias("took_ms"),
        )
    )


def durations(rows: DataFrame) -> DataFrame:
    """How long attempts took, and how old events were when they were delivered, as histograms."""
    took = _made(rows).select("at", "subscriber", columns.lit("took").alias("kind"), columns.col("took_ms").alias("ms"))
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
    """From when an event was accepted, by its id, to the end of the attempt that delivered it.

    An id that the publisher gave has a time only when it is a UUIDv7 too; others are left out.
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


def _made(rows: DataFrame) -> DataFrame:
    """Attempts that were made, without what was dropped unattempted."""
    return rows.where(columns.col("outcome") != DROPPED)


def _count() -> Column:
    return columns.count(columns.lit(1))


_COUNTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "events": events,
    "attempts": attempts,
    "durations": durations,
    "settlements": settlements,
}


# What one round takes of a backlog: a year is counted in days, so that one that dies repeats a day.
_STRETCH = timedelta(days=1)
# Fewer small files in a folder are not worth folding.
_FILES_MIN = 16
# A file that large is left alone; folding goes on among those that come after it.
_LARGE_BYTES = 33_554_432


@dataclass(frozen=True)
class RollupRange:
    """What a round counts: of each partition the entries after one, up to and with another; and all their time."""

    after: Mapping[int, Position]
    upto: Mapping[int, Position]
    since: datetime
    until: datetime


@dataclass(frozen=True)
class Measured:
    """One round on one table."""

    rows: int
    has_more: bool
    size: TableSize


def measure(spark: SparkSession, root: str, name: str, *, partitions: int) -> Measured:
    """Count what is new for one table, as much as one round takes, and fold what has become many files."""
    wanted = measures.MEASURES[name]
    source, table = landing.table_of(root, wanted.source), measures.table_of(root, name)
    landed, seen = versions.of(source, partitions=partitions), versions.of(table, partitions=partitions)
    reached, done = snapshots.landed(landed, partitions), snapshots.landed(seen, partitions)
    found = plan(done, reached, landed)
    written: list[WrittenFile] = []
    if found is not None:
        fresh = only(frames.landed(spark, source, landed, since=found.since, until=found.until), found)
        written = _write_spans(spark, table, wanted, fresh)
        table.commit(seen, written, snapshots.reaches(found.upto))
    fold(spark, table, versions.of(table), wanted)
    seen = versions.of(table, partitions=partitions)
    has_more = any(reached[index] > end for index, end in snapshots.landed(seen, partitions).items())
    return Measured(sum(file.rows for file in written), has_more, seen.size)


def plan(done: Mapping[int, Position], reached: Mapping[int, Position], landed: Version) -> RollupRange | None:
    """What to count next: all that is new, or the earliest day of it; None when nothing is."""
    behind = [index for index, end in reached.items() if done[index] < end]
    if not behind:
        return None
    since = moment.from_ms(min(done[index].ms for index in behind))
    first = landed.earliest(since)
    if first is None:
        # Nothing is left of what landed, as after an erasure: nothing to count, but done.
        return RollupRange(done, {index: reached[index] for index in behind}, since, since)
    limit = Position(moment.to_ms(first + _STRETCH), 0)
    upto = {index: min(reached[index], limit) for index in behind if done[index] < limit}
    # The limit itself is included, so the time goes a millisecond further.
    return RollupRange(done, upto, since, moment.from_ms(limit.ms + 1))


def only(landed: DataFrame, wanted: RollupRange) -> DataFrame:
    """The rows of a stretch and no others."""
    ms, number = columns.unix_millis("at"), frames.number()

    def within(index: int, after: Position, upto: Position) -> Column:
        is_after = (ms > after.ms) | ((ms == after.ms) & (number > after.seq))
        is_upto = (ms < upto.ms) | ((ms == upto.ms) & (number <= upto.seq))
        return (columns.col("partition") == index) & is_after & is_upto

    return landed.where(reduce(or_, [within(index, wanted.after[index], end) for index, end in wanted.upto.items()]))


def fold(spark: SparkSession, table: LakeTable, seen: Version, wanted: Measure, *, files_min: int = _FILES_MIN) -> int:
    """Make one row of the parts about the same where small files have become many; returns how many files are gone."""
    crowded: dict[tuple[str, ...], list[Part]] = defaultdict(list)
    for part in seen.crowded(size_below=_LARGE_BYTES, files_min=files_min):
        crowded[tuple(part.values.values())].append(part)
    gone = 0
    for small in crowded.values():
        folded = write(spark, table, merged(wanted, frames.of(spark, table, seen.uris(small))))
        # Another may have folded these since they were looked at; the next round folds what is left.
        gone += len(small) if versions.swap(table, small, folded, is_new=False) else 0
    return gone


def write(spark: SparkSession, table: LakeTable, parts: DataFrame) -> list[WrittenFile]:
    """Write parts to files of the table, in tasks; they belong to it once they are committed."""
    rows = parts.coalesce(session.cores(spark)).mapInArrow(partial(_write_parts, table=table), arrow.ddl(files.WRITTEN))
    return [files.from_row(*row) for row in rows.collect()]


def _write_spans(spark: SparkSession, table: LakeTable, wanted: Measure, fresh: DataFrame) -> list[WrittenFile]:
    # Hours are made of the minutes, so these are kept until both are written.
    by_minute = minutes(wanted, fresh).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return write(spark, table, by_minute.unionByName(hours(wanted, by_minute)))
    finally:
        by_minute.unpersist()


def _write_parts(batches: Iterable[pa.RecordBatch], *, table: LakeTable) -> Iterator[pa.RecordBatch]:
    """In a task: its rows to files, and a line about each."""
    yield files.to_rows(files.write(table, (_cast(batch, table.given) for batch in batches if batch.num_rows)))


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's types where they differ from ours in name alone."""
    return pa.RecordBatch.from_arrays([batch[column.name].cast(column.type) for column in schema], schema=schema)
