"""Rewriting the files of the `events` table without what is erased."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as columns

from doubledecker.errors import LakeUnfit
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.pipeline import files, lake, landing, rows
from doubledecker.pipeline.lake import Part, Table, WrittenFile
from doubledecker.pipeline.search import Ground

# Files that one commit replaces: enough to keep all cores busy, few enough to be done again.
_FILES_MAX = 64
# Others commit every few seconds, and a commit takes milliseconds.
_TRIES = 20
_BATCH_ROWS = 16_384
_PLAN = "path string, topic string"


def leave_out(ground: Ground, erasure: Erasure) -> int:
    """Rewrite all files that hold events to be erased; returns how many events those were."""
    table = landing.table_of(ground.root, "events")
    gone = 0
    for _ in range(_TRIES):
        held = _holding(ground, table, erasure)
        if not held:
            return gone
        for first in range(0, len(held), _FILES_MAX):
            some = held[first : first + _FILES_MAX]
            parts = [part for part, _ in some]
            if not _replace(table, parts, _rewrite(ground, table, erasure, parts)):
                break
            gone += sum(count for _, count in some)
    raise LakeUnfit(f"the files of {table.uri} change faster than they can be rewritten")


def delete_removed(ground: Ground) -> None:
    """Delete, now, the files that are in the table no more; whoever still reads an older version has to begin again."""
    table = landing.table_of(ground.root, "events").open()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=False)


def _holding(ground: Ground, table: Table, erasure: Erasure) -> list[tuple[Part, int]]:
    """The files that hold events to be erased, and how many."""
    opened = table.open()
    before = moment.from_ms(erasure.before_ms)
    likely = [
        part
        for part in lake.parts(opened)
        if (part.at_min is None or part.at_min < before) and erasure.topic in {"", part.values["topic"]}
    ]
    if not likely:
        return []
    named = lake.uris(opened)
    frame = ground.spark.read.schema(rows.ddl(table.schema)).option("basePath", table.uri)
    held = frame.parquet(*(named[part.name] for part in likely)).where(columns.col("at") < before)
    for column in ("tenant", "key"):
        if getattr(erasure, column):
            held = held.where(columns.col(column) == getattr(erasure, column))
    file = columns.substring_index(columns.input_file_name(), "/", -1).alias("file")
    counts = {row["file"]: row["count"] for row in held.groupBy(file).count().collect()}
    return [(part, counts[part.name]) for part in likely if part.name in counts]


def _rewrite(ground: Ground, table: Table, erasure: Erasure, parts: Sequence[Part]) -> list[WrittenFile]:
    planned = [(part.path, part.values["topic"]) for part in parts]
    frame = ground.spark.createDataFrame(ground.spark.sparkContext.parallelize(planned, len(planned)), _PLAN)
    work = partial(write_again, table=table, erasure=erasure)
    return [files.hear(*row) for row in frame.mapInArrow(work, rows.ddl(files.TOLD)).collect()]


def write_again(plans: Iterable[pa.RecordBatch], *, table: Table, erasure: Erasure) -> Iterator[pa.RecordBatch]:
    """In a task: read files and write them without what is erased; tells of the new ones."""
    for planned in plans:
        for row in planned.to_pylist():
            with files.system_of(table.uri).open_input_file(unquote(row["path"])) as source:
                kept = _kept(table, pq.ParquetFile(source), erasure, topic=row["topic"])
                yield files.tell(files.write(table, kept))


def _kept(table: Table, source: pq.ParquetFile, erasure: Erasure, *, topic: str) -> Iterator[pa.RecordBatch]:
    schema = table.given
    for batch in source.iter_batches(batch_size=_BATCH_ROWS):
        there = {**dict(zip(batch.schema.names, batch.columns, strict=True)), "topic": pa.array([topic] * len(batch))}
        # A file that an older version wrote lacks the columns that have come since.
        arrays = [pc.cast(there.get(column.name, pa.nulls(len(batch))), column.type) for column in schema]
        whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
        kept = whole.filter(pc.invert(_is_meant(whole, erasure)))
        if kept.num_rows:
            yield kept


def _is_meant(batch: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    before = pa.scalar(moment.from_ms(erasure.before_ms), batch["at"].type)
    found = pc.less(batch["at"], before)
    for column in ("tenant", "key", "topic"):
        if getattr(erasure, column):
            found = pc.and_(found, pc.equal(batch[column], getattr(erasure, column)))
    return pc.fill_null(found, fill_value=False)


def _replace(table: Table, parts: Sequence[Part], written: Sequence[WrittenFile]) -> bool:
    """Commit; False when one of the files has been replaced by somebody else."""
    for _ in range(_TRIES):
        opened = table.open()
        there = {part.path for part in lake.parts(opened)}
        if not all(part.path in there for part in parts):
            return False
        if table.replace(opened, parts, written):
            return True
    raise LakeUnfit(f"others commit to {table.uri} all the time; the erasure is tried again")
