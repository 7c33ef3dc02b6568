"""Search over lake and journal together: what has landed from the table, what has not from the bus, nothing twice.

The table's own mark of how far it has come is where the journal's part begins, and both are taken from one version of
the table. When landing goes on meanwhile, the journal may be trimmed beyond that mark; then the search begins again.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as columns
from pyspark.sql.types import TimestampType

from doubledecker.errors import BadRequest, JournalTrimmed
from doubledecker.lake import marks, rows
from doubledecker.model import moment
from doubledecker.model.entry_id import EntryId
from doubledecker.pipeline import connector, frames, landing, reading, tombstones
from doubledecker.pipeline.reading import Access

# Landing commits every few seconds at most; a search that meets it this often in a row has another trouble.
_TRIES = 3

# What Spark says when what was to be read has moved on.
_MOVED = (JournalTrimmed.__name__, "FileNotFoundException", "FILE_NOT_EXIST")

_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"

_Result = TypeVar("_Result")
Found = list[dict[str, object]]


@dataclass(frozen=True)
class Wanted:
    """What to look for; empty means any."""

    start: str = ""
    end: str = ""
    topic: str = ""
    tenant: str = ""
    where: str = ""
    limit: int = 100


@dataclass(frozen=True)
class Ground:
    """Where to look."""

    spark: SparkSession
    access: Access
    root: str


def events(ground: Ground, wanted: Wanted) -> Found:
    """The first events that fit, by time."""
    since, until = _bounds(wanted)
    narrowed = conditions(topic=wanted.topic, tenant=wanted.tenant, where=wanted.where)

    def look() -> Found:
        return first(fitting(everything(ground, "events", since=since, until=until), narrowed), wanted.limit)

    return again(look)


def everything(ground: Ground, name: str, *, since: datetime | None = None, until: datetime | None = None) -> DataFrame:
    """All rows of a journal, landed and not yet, as one DataFrame; of events, those that were not erased."""
    table = landing.table_of(ground.root, name)
    opened = table.open()
    reached = marks.landed(opened, ground.access.partitions)
    names = rows.layout(name).schema.names
    whole = frames.landed(ground.spark, table, opened, since=since, until=until).select(names)
    if until is None or not has_landed(ground, name, reached, until):
        fresh = _fresh(ground, name, reached)
        if since is not None:
            fresh = fresh.where(columns.col("at") >= columns.lit(since))
        if until is not None:
            fresh = fresh.where(columns.col("at") < columns.lit(until))
        whole = whole.unionByName(fresh.select(names))
    return tombstones.leave_out(ground.spark, whole, tombstones.read(ground.root)) if name == "events" else whole


def has_landed(ground: Ground, name: str, reached: Mapping[int, EntryId], until: datetime) -> bool:
    """Whether the table has all that the bus wrote before; then there is no need to ask the bus."""
    until_ms = moment.to_ms(until)
    extents = asyncio.run(reading.extents(ground.access, name, reached))
    return all(mark.ms >= until_ms or EntryId.parse(extents[index].last) <= mark for index, mark in reached.items())


def _fresh(ground: Ground, name: str, reached: Mapping[int, EntryId]) -> DataFrame:
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


def _bounds(wanted: Wanted) -> tuple[datetime | None, datetime | None]:
    since, until = (moment.parse(text) if text else None for text in (wanted.start, wanted.end))
    return since, until


def conditions(*, topic: str, tenant: str, where: str) -> list[str]:
    """SQL that narrows events down; empty says nothing. Raises BadRequest for what is no name."""
    found = [f"{column} = '{_name(value)}'" for column, value in (("topic", topic), ("tenant", tenant)) if value]
    return found + ([f"({where})"] if where else [])


def fitting(frame: DataFrame, wanted: list[str]) -> DataFrame:
    """The rows that fit all conditions; raises BadRequest when one cannot be used."""
    try:
        for condition in wanted:
            frame = frame.where(condition)
    except (AnalysisException, ParseException) as error:
        said = " ".join(str(error).split())[:300]
        raise BadRequest(f"the condition cannot be used: {said}; it is SQL on {', '.join(frame.columns)}") from error
    return frame


def first(frame: DataFrame, limit: int) -> Found:
    """The first rows of a frame, by time, with times as text."""
    earliest = frame.orderBy(*frames.order()).limit(limit)
    # As text, and in UTC: Python would give times in the zone of this machine.
    moments = [column.name for column in earliest.schema.fields if isinstance(column.dataType, TimestampType)]
    told = earliest.withColumns({name: columns.date_format(name, _ISO) for name in moments})
    return [row.asDict() for row in told.collect()]


def again(look: Callable[[], _Result]) -> _Result:
    """Look, and look again when meanwhile the journal was trimmed behind a landing, or files went with an erasure."""
    for left in reversed(range(_TRIES)):
        try:
            return look()
        except PySparkException as error:
            if not left or not any(sign in str(error) for sign in _MOVED):
                raise
    raise AssertionError("the last try returns or raises")


def _name(text: str) -> str:
    if not all(character.isalnum() or character in "_.-" for character in text):
        raise BadRequest(f"the name is {text[:80]!r}; it has letters, digits, '_', '.' and '-'")
    return text
