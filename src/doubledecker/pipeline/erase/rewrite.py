"""Rewriting the files of the `events` table without what is erased."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as columns

from doubledecker.errors import LakeUnfit
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.pipeline.lake import files, frames, versions
from doubledecker.pipeline.lake.tables import LakeTable, Part, WrittenFile
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.search import SparkReadContext

# Files that one commit replaces: enough to keep all cores busy, few enough to be done again.
_FILES_MAX = 64
# Looks at the files: tending replaces some of them now and then, and hardly ever between a look and a commit.
_TRIES = 20


def leave_out(ground: SparkReadContext, erasure: Erasure) -> int:
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
            if not versions.swap(table, parts, _rewrite(ground, table, erasure, parts)):
                break
            gone += sum(count for _, count in some)
    raise LakeUnfit(f"the files of {table.uri} change faster than they can be rewritten")


def delete_removed(ground: SparkReadContext) -> None:
    """Delete, now, the files that are in the table no more; whoever still reads an older version has to begin again."""
    table = landing.table_of(ground.root, "events").open()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=False)


def _holding(ground: SparkReadContext, table: LakeTable, erasure: Erasure) -> list[tuple[Part, int]]:
    """The files that hold events to be erased, and how many."""
    seen = versions.of(table)
    before = moment.from_ms(erasure.before_ms)
    likely = seen.parts(until=before, topics={erasure.topic} if erasure.topic else None)
    if not likely:
        return []
    held = frames.of(ground.spark, table, seen.uris(likely)).where(columns.col("at") < before)
    for column in ("tenant", "key"):
        if getattr(erasure, column):
            held = held.where(columns.col(column) == getattr(erasure, column))
    file = columns.substring_index(columns.input_file_name(), "/", -1).alias("file")
    counts = {row["file"]: row["count"] for row in held.groupBy(file).count().collect()}
    return [(part, counts[part.name]) for part in likely if part.name in counts]


def _rewrite(ground: SparkReadContext, table: LakeTable, erasure: Erasure, parts: Sequence[Part]) -> list[WrittenFile]:
    return files.in_tasks(ground.spark, partial(_write_again, table=table, erasure=erasure), parts)


def _write_again(part: Part, *, table: LakeTable, erasure: Erasure) -> Iterator[WrittenFile]:
    """In a task: read a file and write it without what is erased."""
    kept = (batch.filter(pc.invert(_is_meant(batch, erasure))) for batch in files.read(table, part))
    return files.write(table, (batch for batch in kept if batch.num_rows))


def _is_meant(batch: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    before = pa.scalar(moment.from_ms(erasure.before_ms), batch["at"].type)
    found = pc.less(batch["at"], before)
    for column in ("tenant", "key", "topic"):
        if getattr(erasure, column):
            found = pc.and_(found, pc.equal(batch[column], getattr(erasure, column)))
    return pc.fill_null(found, fill_value=False)
