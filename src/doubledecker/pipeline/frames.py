"""The lake's tables as DataFrames, of one version each, and only of the files that can hold what is asked for."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from doubledecker.model import moment
from doubledecker.pipeline import rows
from doubledecker.pipeline.lake import Table


def landed(
    spark: SparkSession,
    table: Table,
    opened: DeltaTable,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The rows that the bus wrote from `since` until before `until`, in the columns of today.

    A column that was added after a file was written is null in its rows.
    """
    frame = of(spark, table, list(_paths(opened, since, until)))
    if since is not None:
        frame = frame.where(columns.col("at") >= columns.lit(since))
    if until is not None:
        frame = frame.where(columns.col("at") < columns.lit(until))
    return frame


def of(spark: SparkSession, table: Table, paths: list[str]) -> DataFrame:
    """The rows of some of a table's files."""
    reader = spark.read.schema(rows.ddl(table.schema)).option("basePath", table.uri)
    # Spark reads no files at all only as a frame without rows.
    return reader.parquet(*paths) if paths else spark.createDataFrame([], rows.ddl(table.schema))


def earliest(opened: DeltaTable, since: datetime) -> datetime | None:
    """From when on a table can have rows, at or after a time; None when it has none."""
    bounds = [bound for bound in _bounds(opened).values() if bound[1] is None or bound[1] >= since]
    return min((max(least or since, since) for least, _ in bounds), default=None)


def order() -> list[Column]:
    """What rows are sorted by to stand as the bus accepted them: by time, and by place among those of one moment."""
    return [columns.col("at"), columns.col("partition"), number(), columns.col("line")]


def number() -> Column:
    """Which entry of its millisecond a row was in: as text, 10 would come before 9."""
    return columns.substring_index("entry", "-", -1).cast("long")


@dataclass(frozen=True)
class Extent:
    """What the table's log says of one file: its topic, from when to when its rows are, how many, how large."""

    topic: str
    first_ms: int
    last_ms: int
    rows: int
    bytes: int


def extents(opened: DeltaTable, *, since: datetime) -> list[Extent]:
    """The files of the events table that can hold rows from `since` on; no data is read."""
    found = []
    for add in pa.table(opened.get_add_actions(flatten=True)).to_pylist():
        least, most = _aware(add.get("min.at")), _aware(add.get("max.at"))
        if most is None or least is None or most >= since:
            # A file that does not say is taken to reach over all times.
            first_ms = moment.to_ms(least) if least else 0
            last_ms = moment.to_ms(most) if most else moment.to_ms(datetime.now(UTC))
            rows_ = add["num_records"] or 0
            found.append(Extent(str(add["partition.topic"]), first_ms, last_ms, rows_, add["size_bytes"]))
    return found


def _paths(opened: DeltaTable, since: datetime | None, until: datetime | None) -> Iterator[str]:
    """The files whose rows can lie in between, by what the table's log says of each."""
    bounds = _bounds(opened)
    for path in opened.file_uris():
        least, most = bounds[posixpath.basename(path)]
        is_early = since is not None and most is not None and most < since
        is_late = until is not None and least is not None and least >= until
        if not (is_early or is_late):
            yield path


def _bounds(opened: DeltaTable) -> dict[str, tuple[datetime | None, datetime | None]]:
    """The least and the greatest `at` of each file, by its name, where the log knows them."""
    adds = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    # The log escapes folders' names and the list does not; a file's own name is alike in both, and in no other folder.
    return {posixpath.basename(add["path"]): (_aware(add.get("min.at")), _aware(add.get("max.at"))) for add in adds}


def _aware(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)
