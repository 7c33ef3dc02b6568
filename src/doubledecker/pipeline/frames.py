"""The lake's tables as DataFrames, of one version each, and only of the files that can hold what is asked for."""

from collections.abc import Collection
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from doubledecker.lake import rows
from doubledecker.pipeline import lake
from doubledecker.pipeline.lake import Part, Table


def landed(
    spark: SparkSession,
    table: Table,
    opened: DeltaTable,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    topics: Collection[str] | None = None,
) -> DataFrame:
    """The rows that the bus wrote from `since` until before `until`, of some topics or of all, in the columns of today.

    A column that was added after a file was written is null in its rows.
    """
    parts = [part for part in lake.parts(opened) if topics is None or part.values["topic"] in topics]
    uris = lake.uris(opened)
    frame = of(spark, table, [uris[part.name] for part in parts if _is_between(part, since, until)])
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
    begins = [part.at_min or since for part in lake.parts(opened) if part.at_max is None or part.at_max >= since]
    return min((max(begin, since) for begin in begins), default=None)


def order() -> list[Column]:
    """What rows are sorted by to stand as the bus accepted them: by time, and by place among those of one moment."""
    return [columns.col("at"), columns.col("partition"), number(), columns.col("line")]


def number() -> Column:
    """Which entry of its millisecond a row was in: as text, 10 would come before 9."""
    return columns.substring_index("entry", "-", -1).cast("long")


def _is_between(part: Part, since: datetime | None, until: datetime | None) -> bool:
    """Whether a file's rows can lie in between, by what the table's log says of it."""
    is_early = since is not None and part.at_max is not None and part.at_max < since
    is_late = until is not None and part.at_min is not None and part.at_min >= until
    return not (is_early or is_late)
