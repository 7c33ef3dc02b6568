"""From Spark to the bus: rows are published as events, by the same rules and the same script as over HTTP.

Each task publishes its own rows. It is fenced (bus/exactly_once.py): a task that Spark runs again, or a micro-batch
that a restarted query repeats, publishes nothing twice, as long as its rows come in the same order; other rows than
before, or fewer, fail the write. Rows that the bus refuses are reported with their reasons: into a side table if one is
named, else by failing the write.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, IntegralType, StringType, StructType, TimestampNTZType, TimestampType

from doubledecker.assembly import build
from doubledecker.assembly import settings as reading_settings
from doubledecker.assembly.settings import Settings
from doubledecker.errors import BadRequest, OrderChanged, RowsRefused
from doubledecker.pipeline.lake.tables import WrittenFile
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.spark_format import publish_task, refused_rows
from doubledecker.pipeline.spark_format.encoder import COLUMNS
from doubledecker.pipeline.spark_format.options import WriteOptions
from doubledecker.pipeline.spark_format.publish_task import NOTES, TaskWork
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from doubledecker.store import write_offsets

_REQUIRED = ("topic", "type")
# Spark's own names for what identifies a micro-batch, as seen in its tasks.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
_SOURCE_ADVICE = (
    "The input of source {!r}, or its mapping, has changed since this batch was begun: restore it; or begin the source "
    "anew, under another name or without its checkpoint, which publishes all of its input again"
)


@dataclass(frozen=True)
class SinkPlan:
    """What a writer's tasks have to know."""

    settings: Settings
    publisher: str
    write_id: str
    write_version: int
    refused_table: str
    source: str


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What a task reports to the driver."""

    published: int = 0
    repeated: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    files: tuple[WrittenFile, ...] = ()
    query: str = ""


class BusWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        with _advised(self._advice):
            return _write(self._plan, iterator, query=self._plan.write_id, batch=self._plan.write_version)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        with _advised(self._advice):
            _settle(self._plan, messages, query=self._plan.write_id, batch=self._plan.write_version)

    @property
    def _advice(self) -> str:
        if self._plan.source:
            return _SOURCE_ADVICE.format(self._plan.source)
        return (
            "A writeId, or a writeVersion of it, is for one set of rows, in a fixed order (for example by "
            "sortWithinPartitions): write other rows under a new writeId, or under the next writeVersion"
        )


class BusStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        context = TaskContext.get()
        assert context is not None, "called in a task"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise BadRequest("this version of Spark does not give its tasks the query and the batch; write in batches")
        with _advised(self._advice):
            return _write(self._plan, iterator, query=query, batch=int(batch))

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 - Spark's name
        first = next((each for each in messages if isinstance(each, TaskReport)), None)
        if first is not None:
            with _advised(self._advice):
                _settle(self._plan, messages, query=first.query, batch=batchId)

    @property
    def _advice(self) -> str:
        if self._plan.source:
            return _SOURCE_ADVICE.format(self._plan.source)
        return (
            "The stream's input, or what is made of it, has changed since this batch was begun: restore it, or start "
            "the query with a new checkpointLocation, which publishes all of its input again"
        )


@contextmanager
def _advised(advice: str) -> Iterator[None]:
    """Add to the error of a changed write what to do about it."""
    try:
        yield
    except OrderChanged as error:
        raise OrderChanged(f"{error}. {advice}") from error


# What a column may be, where it need not be text.
_KINDS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "timestamp": ((IntegralType, TimestampType, TimestampNTZType), "a timestamp or whole milliseconds"),
    "tenant": ((StringType, IntegralType), "text or a whole number"),
}


def check_columns(schema: StructType) -> None:
    """Raise BadRequest unless the rows can be events."""
    names = schema.names
    strange = [name for name in names if name not in COLUMNS + NOTES]
    missing = [name for name in _REQUIRED if name not in names]
    if strange or missing:
        found = f"there is no {missing[0]!r}" if missing else f"there is {strange[0]!r}"
        raise BadRequest(
            f"{found} among the columns; an event has {', '.join(COLUMNS)}, and topic and type it must have"
        )
    for column in schema.fields:
        allowed, wanted = _KINDS.get(column.name, ((StringType,), "text"))
        if column.name != "data" and not isinstance(column.dataType, allowed):
            raise BadRequest(f"the column {column.name!r} is {column.dataType.simpleString()}; it must be {wanted}")


def plan(wanted: WriteOptions) -> SinkPlan:
    """What the tasks have to know; raises BadRequest when the bus does not know the publisher."""
    access = wanted.access
    settings = replace(
        reading_settings.read(os.environ),
        redis_url=access.url,
        namespace=access.namespace,
        partitions=access.partitions,
    )
    publisher = asyncio.run(_publisher(settings, wanted.publisher))
    return SinkPlan(settings, publisher, wanted.write_id, wanted.write_version, wanted.refused_table, wanted.source)


async def _publisher(settings: Settings, named: str) -> str:
    """The client's id, given that or a name that is its alone."""
    async with build.open_bus(settings) as bus:
        tokens = bus.registry.snapshot.tokens
        found = [named] if named in tokens else [token.id for token in bus.registry.snapshot.with_name(named)]
    if len(found) != 1:
        what = "no client" if not found else f"{len(found)} clients"
        raise BadRequest(f"there is {what} {named!r}; make one with `doubledecker token create`, or give its id")
    return found[0]


def _write(plan: SinkPlan, batches: Iterator[pa.RecordBatch], *, query: str, batch: int) -> TaskReport:
    context = TaskContext.get()
    work = TaskWork(plan.settings, plan.publisher, query, batch, context.partitionId() if context else 0)
    refused = RefusedRows(plan.refused_table, query=query, batch=batch, source=plan.source)
    counts = asyncio.run(publish_task.publish_all(work, batches, refused))
    return TaskReport(counts.published, counts.repeated, dict(refused.reasons), refused.close(), query)


def _settle(plan: SinkPlan, messages: "Sequence[WriterCommitMessage | None]", *, query: str, batch: int) -> None:
    """On the driver, when all tasks are done: what was refused goes to the side table, or fails the write."""
    reports = [each for each in messages if isinstance(each, TaskReport)]
    reasons: Counter[str] = Counter()
    for each in reports:
        reasons.update(each.reasons)
    if reasons and not plan.refused_table:
        published = sum(each.published + each.repeated for each in reports)
        raise RowsRefused(
            f"{reasons.total()} rows were refused, and {published} published: "
            f"{'; '.join(f'{count} times {why}' for why, count in reasons.most_common(5))}. "
            "Mend the refused rows and write them alone, under a new writeId; or name a refusedTable for such rows"
        )
    asyncio.run(_complete(plan, query, batch, tasks=len(messages)))
    if reasons:
        refused_rows.commit(
            plan.refused_table, [file for each in reports for file in each.files], query=query, batch=batch
        )


async def _complete(plan: SinkPlan, query: str, batch: int, *, tasks: int) -> None:
    """Note that the write is whole; raises OrderChanged when it had more tasks before."""
    async with journal_reader.connected(Access.by(plan.settings)) as partitions:
        await write_offsets.complete(partitions.home, publish_task.write_of(query, batch), tasks=tasks)
