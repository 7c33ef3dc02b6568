"""The lake's tables as DataFrames, of one version each, and only of the files that can hold what is asked for."""

from collections.abc import Collection
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from doubledecker.lake import arrow
from doubledecker.model import reserved
from doubledecker.model.scopes import Scopes
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.lake.versions import Version


def landed(
    spark: SparkSession,
    table: LakeTable,
    seen: Version,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    topics: Collection[str] | None = None,
) -> DataFrame:
    """The rows that the bus wrote from `since` until before `until`, of some topics or of all, in the columns of today.

    A column that was added after a file was written is null in its rows.
    """
    frame = of(spark, table, seen.uris(seen.parts(since=since, until=until, topics=topics)))
    if since is not None:
        frame = frame.where(columns.col("at") >= columns.lit(since))
    if until is not None:
        frame = frame.where(columns.col("at") < columns.lit(until))
    return frame


def of(spark: SparkSession, table: LakeTable, paths: list[str]) -> DataFrame:
    """The rows of some of a table's files."""
    reader = spark.read.schema(arrow.ddl(table.schema)).option("basePath", table.uri)
    # Spark reads no files at all only as a frame without rows.
    return reader.parquet(*paths) if paths else spark.createDataFrame([], arrow.ddl(table.schema))


def seen_by(frame: DataFrame, client: str | None) -> DataFrame:
    """Events without those on reserved topics, but for those whose audience is this client."""
    fits = ~columns.col("topic").startswith(reserved.PREFIX)
    if client is not None:
        fits |= columns.col("publisher") == reserved.publisher_for(client)
    return frame.where(fits)


def within(frame: DataFrame, scopes: Scopes) -> DataFrame:
    """Events of the topics and tenants that a token is limited to, and those on reserved topics."""
    is_free = columns.col("topic").startswith(reserved.PREFIX)
    if scopes.tenants is not None:
        frame = frame.where(is_free | columns.col("tenant").isin(list(scopes.tenants)))
    if scopes.topics is not None:
        # Without any, it is what no topic is.
        forms = "|".join(map(_form, scopes.topics))
        frame = frame.where(is_free | columns.col("topic").rlike(f"^({forms})$"))
    return frame


def _form(glob: str) -> str:
    """A name or a glob as a regular expression; nothing else in it has a meaning there."""
    return glob.replace(".", "[.]").replace("*", ".*").replace("?", ".")


def order() -> list[Column]:
    """What rows are sorted by to stand as the bus accepted them: by time, and by place among those of one moment."""
    return [columns.col("at"), columns.col("partition"), number(), columns.col("line")]


def number() -> Column:
    """Which entry of its millisecond a row was in: as text, 10 would come before 9."""
    return columns.substring_index("entry", "-", -1).cast("long")
