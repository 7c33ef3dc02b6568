"""Spark over lake and journal together: what has landed from the table, what has not from the bus, nothing twice.

The table's own mark of how far it has come is where the journal's part begins, and both are taken from one version of
the table. When landing goes on meanwhile, the journal may be trimmed beyond that mark; then all begins again.

`doubledecker events` reads the journal's part itself (lake/reads.py), and has Spark read the files of one version.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as columns
from pyspark.sql.types import TimestampType

from doubledecker.errors import BadRequest, JournalTrimmed, LakeMoved, LakeUnfit
from doubledecker.lake import reads, rows, snapshots
from doubledecker.lake.queries import Found, Query
from doubledecker.lake.reads import Reader
from doubledecker.lake.snapshots import TableSnapshot
from doubledecker.model import moment
from doubledecker.model.condition import Dialect, equal, parse_where, to_sql
from doubledecker.model.erasure import Erasure
from doubledecker.model.position import Position
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import frames, versions
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.spark_format import connector

# Landing commits every few seconds at most; a search that meets it this often in a row has another trouble.
_TRIES = 3

# Spark's words when what was to be read has moved on.
_MOVED = (JournalTrimmed.__name__, "FileNotFoundException", "FILE_NOT_EXIST")

_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_NUMBER = "^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$"

_Result = TypeVar("_Result")


def _text(value: str) -> str:
    """Spark takes a backslash in a text for the beginning of an escape."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _json(column: str, path: Sequence[str]) -> str:
    return f"get_json_object({column}, {_text('$' + ''.join(f'.{name}' for name in path))})"


DIALECT = Dialect(
    name=lambda column: f"`{column}`",
    text=_text,
    moment=lambda at: f"timestamp_micros({moment.to_us(at)})",
    json=_json,
    number=lambda value: f"case when {value} rlike '{_NUMBER}' then cast({value} as double) end",
    contains=lambda column, value: f"array_contains({column}, {value})",
)


@dataclass(frozen=True)
class SparkReadContext:
    """Where to look."""

    spark: SparkSession
    access: Access
    root: str


def reader(spark: SparkSession) -> Reader:
    """What reads the files of one version of a table, however many, in a thread."""

    async def read(snapshot: TableSnapshot, query: Query, erased: Sequence[Erasure]) -> Found:
        return await asyncio.to_thread(_landed, spark, snapshot, query, erased)

    return read


def _landed(spark: SparkSession, snapshot: TableSnapshot, query: Query, erased: Sequence[Erasure]) -> Found:
    chosen = snapshot.between(query.since, query.until).of_topic(query.topic)
    table = landing.table_of(snapshot.uri.rpartition("/")[0], query.name)
    try:
        frame = frames.of(spark, table, chosen.paths())
        if query.condition is not None:
            frame = frame.where(to_sql(query.condition, DIALECT))
        if query.name == "events":
            frame = tombstones.leave_out(spark, frame, erased)
        return first(frame.select(rows.shown(query.name)), query.limit)
    except (PySparkException, Py4JError) as error:
        reason = " ".join(str(error).split())[:300]
        if any(sign in str(error) for sign in _MOVED):
            raise LakeMoved(f"a file of the lake cannot be read: {reason}") from error
        raise LakeUnfit(f"Spark cannot read {snapshot.uri}: {reason}") from error


def everything(
    ground: SparkReadContext, name: str, *, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """All rows of a journal, landed and not yet, as one DataFrame; of events, those that were not erased."""
    table = landing.table_of(ground.root, name)
    seen = versions.of(table, partitions=ground.access.partitions)
    reached = snapshots.landed(seen, ground.access.partitions)
    names = list(rows.layout(name).columns)
    whole = frames.landed(ground.spark, table, seen, since=since, until=until).select(names)
    if until is None or not has_landed(ground, name, reached, until):
        fresh = _fresh(ground, name, reached)
        if since is not None:
            fresh = fresh.where(columns.col("at") >= columns.lit(since))
        if until is not None:
            fresh = fresh.where(columns.col("at") < columns.lit(until))
        whole = whole.unionByName(fresh.select(names))
    return tombstones.leave_out(ground.spark, whole, reads.erased(ground.root)) if name == "events" else whole


def has_landed(ground: SparkReadContext, name: str, reached: Mapping[int, Position], until: datetime) -> bool:
    """Whether the table has all that the bus wrote before; then there is no need to ask the bus."""
    until_ms = moment.to_ms(until)
    extents = asyncio.run(journal_reader.extents(ground.access, name, reached))
    return all(mark.ms >= until_ms or Position.parse(extents[index].last) <= mark for index, mark in reached.items())


def _fresh(ground: SparkReadContext, name: str, reached: Mapping[int, Position]) -> DataFrame:
    """What the journal has beyond what has landed."""
    connector.register(ground.spark)
    return (
        ground.spark.read.format(connector.NAME)
        .option("journal", name)
        .option("redisUrl", ground.access.url)
        .option("namespace", ground.access.namespace)
        .option("partitions", ground.access.partitions)
        .option("from", json.dumps({str(index): str(end.next) for index, end in reached.items()}))
        .load()
    )


def conditions(*, topic: str, tenant: str, where: str) -> list[str]:
    """Spark's SQL that narrows events down; empty for none."""
    named = [equal(name, value) for name, value in (("topic", topic), ("tenant", tenant)) if value]
    return [to_sql(each, DIALECT) for each in named] + ([_translated(where)] if where else [])


def _translated(text: str) -> str:
    """A condition as `doubledecker events` takes it means the same here; any other is Spark's own SQL."""
    try:
        return to_sql(parse_where(text), DIALECT)
    except BadRequest:
        return text


def fitting(frame: DataFrame, wanted: list[str]) -> DataFrame:
    """The rows that fit all conditions; raises BadRequest when one cannot be used."""
    try:
        for condition in wanted:
            frame = frame.where(condition)
    except (AnalysisException, ParseException) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadRequest(f"the condition cannot be used: {reason}; it is SQL on {', '.join(frame.columns)}") from error
    return frame


def first(frame: DataFrame, limit: int) -> Found:
    """The first rows of a frame, by time, with times as text."""
    earliest = frame.orderBy(*frames.order()).limit(limit)
    # As text, and in UTC: Python would give times in the zone of this machine.
    moments = [column.name for column in earliest.schema.fields if isinstance(column.dataType, TimestampType)]
    rows = earliest.withColumns({name: columns.date_format(name, _ISO) for name in moments})
    return [row.asDict() for row in rows.collect()]


def again(look: Callable[[], _Result]) -> _Result:
    """Look, and look again when meanwhile the journal was trimmed behind a landing, or files went with an erasure."""
    for left in reversed(range(_TRIES)):
        try:
            return look()
        except PySparkException as error:
            if not left or not any(sign in str(error) for sign in _MOVED):
                raise
    raise AssertionError("the last try returns or raises")
