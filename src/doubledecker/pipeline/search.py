"""Search over lake and journal together: what has landed from the table, what has not from the bus, nothing twice.

The table's own mark of how far it has come is where the journal's part begins, and both are taken from one version of
the table. When landing goes on meanwhile, the journal may be trimmed beyond that mark; then the search begins again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as columns
from pyspark.sql.types import TimestampType

from doubledecker.errors import BadRequest, JournalTrimmed
from doubledecker.model import moment
from doubledecker.pipeline import connector, frames, lake, landing, rows
from doubledecker.pipeline.reading import Access

# Landing commits every few seconds at most; a search that meets it this often in a row has another trouble.
_TRIES = 3
# Attempts of one event that are shown; a receiver that is down for a week makes a few hundred.
_ATTEMPTS_MAX = 1_000

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
    conditions = _conditions(wanted)
    return _again(lambda: _first(_fitting(everything(ground, "events"), conditions), wanted.limit))


def life(ground: Ground, id_: str) -> dict[str, Found]:
    """All that is known of one event: when it was accepted, and every attempt that carried it."""

    def look() -> dict[str, Found]:
        accepted = everything(ground, "events").where(columns.col("id") == id_)
        attempts = everything(ground, "attempts").where(columns.array_contains("events", id_)).drop("events")
        return {"events": _first(accepted, _ATTEMPTS_MAX), "attempts": _first(attempts, _ATTEMPTS_MAX)}

    return _again(look)


def everything(ground: Ground, name: str) -> DataFrame:
    """All rows of a journal, landed and not yet, as one DataFrame."""
    table = landing.table_of(ground.root, name)
    opened = table.open()
    reached = lake.landed(opened, ground.access.partitions)
    names = rows.layout(name).schema.names
    connector.register(ground.spark)
    fresh = (
        ground.spark.read.format(connector.NAME)
        .option("journal", name)
        .option("redisUrl", ground.access.url)
        .option("namespace", ground.access.namespace)
        .option("partitions", ground.access.partitions)
        .option("from", json.dumps({str(index): str(end.next) for index, end in reached.items()}))
        .load()
        .select(names)
    )
    return frames.landed(ground.spark, table, opened).select(names).unionByName(fresh)


def _conditions(wanted: Wanted) -> list[str]:
    found = [f"`at` >= timestamp'{_moment(wanted.start)}'"] if wanted.start else []
    found += [f"`at` < timestamp'{_moment(wanted.end)}'"] if wanted.end else []
    found += [f"{column} = '{_name(value)}'" for column in ("topic", "tenant") if (value := getattr(wanted, column))]
    return found + ([f"({wanted.where})"] if wanted.where else [])


def _fitting(frame: DataFrame, conditions: list[str]) -> DataFrame:
    try:
        for condition in conditions:
            frame = frame.where(condition)
    except (AnalysisException, ParseException) as error:
        said = " ".join(str(error).split())[:300]
        raise BadRequest(f"the condition cannot be used: {said}; it is SQL on {', '.join(frame.columns)}") from error
    return frame


def _first(frame: DataFrame, limit: int) -> Found:
    first = frame.orderBy(*frames.order()).limit(limit)
    # As text, and in UTC: Python would give times in the zone of this machine.
    moments = [column.name for column in first.schema.fields if isinstance(column.dataType, TimestampType)]
    told = first.withColumns({name: columns.date_format(name, _ISO) for name in moments})
    return [row.asDict() for row in told.collect()]


def _again(look: Callable[[], _Result]) -> _Result:
    """Look, and look again when landing went on and the journal was trimmed meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            return look()
        except PySparkException as error:
            if JournalTrimmed.__name__ not in str(error) or not left:
                raise
    raise AssertionError("the last try returns or raises")


def _moment(text: str) -> str:
    return moment.parse(text).strftime("%Y-%m-%d %H:%M:%S.%f")


def _name(text: str) -> str:
    if not all(character.isalnum() or character in "_.-" for character in text):
        raise BadRequest(f"the name is {text[:80]!r}; it has letters, digits, '_', '.' and '-'")
    return text
