"""Erase: the events of a tenant or of a key leave the lake, and their bytes leave its disk.

1. A tombstone is written: from then on neither search nor replay shows what it names, wherever that still is.
2. The files that hold such events are found, and rewritten without them, some at a time: Spark tasks
   write the new files, the driver puts them in the place of the old ones in one commit.
3. Files that no version needs any more are deleted at once, and with them all that was rewritten or joined before.
4. All that again when everything the journal held at 1 has landed; only then it is done.

A file is replaced only if nobody has changed the table since it was looked at: otherwise it is looked at again. So
neither landing nor tending can be undone, nor undo it.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from msgspec import structs
from pyspark.errors import PySparkException
from pyspark.sql import functions as columns

from doubledecker import clock, log
from doubledecker.errors import LakeUnfit
from doubledecker.lake import snapshots
from doubledecker.model import moment
from doubledecker.model import pipeline_job as views
from doubledecker.model.erasure import Erasure
from doubledecker.model.pipeline_job import Counts, PipelineJob, text_of
from doubledecker.pipeline import search
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files, frames, versions
from doubledecker.pipeline.lake.tables import LakeTable, Part, WrittenFile
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.steps import Round
from doubledecker.store import pipeline_jobs
from doubledecker.store.pipeline_jobs import ERASURES

# Rewriting the files of the `events` table without what is erased.

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
    """Delete, now, the files that are in the table no more; a reader of an older version has to begin again."""
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


# While what was in the journal lands.
_PAUSE_S = 0.5

_log = log.get("pipeline")
_decode = msgspec.json.Decoder(Erasure).decode


@dataclass
class Eraser:
    """Carries erasures out, the oldest first."""

    ground: SparkReadContext
    _began_at: int = field(default_factory=clock.now_ms)

    def round(self) -> Round:
        """All that can be done now for the oldest; there is more while it waits for its events to land.

        One that was asked for after this process began is no reason to go on: one pass of landing may be over by then.
        """
        active = [each for each in asyncio.run(self._all()) if each.is_active]
        if not active:
            return Round(0)
        has_more = active[0].created_at < self._began_at or active[0].state == "waiting"
        try:
            return Round(search.again(lambda: self._serve(active[0])), has_more=has_more)
        except (PySparkException, DeltaError, LakeUnfit) as error:
            failed = self._change(active[0], partial(_failed, error=error))
            if failed.is_active:
                raise
            _log.error("erasure.failed", erasure=failed.id, error=text_of(error))
            return Round(0, has_more=True)

    def _serve(self, job: PipelineJob) -> int:
        erasure = _decode(job.asked)
        if job.state == "waiting":
            # Before there is a tombstone: it would hide what is to be counted.
            state = "done" if erasure.dry_run else "running"
            job = self._change(job, partial(_counted, counts=self._counts(erasure), state=state))
            return 0
        tombstones.write(self.ground.root, job.id, erasure)
        # Seen before the rewriting: what has landed by then is rewritten.
        is_whole = self._has_landed(erasure)
        gone = leave_out(self.ground, erasure)
        if gone or is_whole:
            delete_removed(self.ground)
        note = "" if is_whole else "waits until what the journal holds has landed"
        now = self._change(job, partial(_advanced, gone=gone, is_whole=is_whole, note=note))
        if is_whole:
            _log.info("erasure.done", erasure=job.id, events=now.done)
        else:
            time.sleep(_PAUSE_S)
        return gone

    def _counts(self, erasure: Erasure) -> Counts:
        """What is to be erased, by topic and day, whether it has landed or not."""
        until = moment.from_ms(erasure.before_ms)
        whole = search.everything(self.ground, "events", until=until)
        for column in ("tenant", "key", "topic"):
            if getattr(erasure, column):
                whole = whole.where(columns.col(column) == getattr(erasure, column))
        found = whole.groupBy("topic", columns.to_date("at").alias("day")).count().collect()
        return views.condensed((row["topic"], str(row["day"]), row["count"]) for row in found)

    def _has_landed(self, erasure: Erasure) -> bool:
        """Whether all events that were accepted before the tombstone are in the table."""
        table, partitions = landing.table_of(self.ground.root, "events"), self.ground.access.partitions
        reached = snapshots.landed(versions.of(table, partitions=partitions), partitions)
        return search.has_landed(self.ground, "events", reached, moment.from_ms(erasure.before_ms))

    async def _all(self) -> list[PipelineJob]:
        async with journal_reader.connected(self.ground.access) as bus:
            return await pipeline_jobs.read_all(bus.home, ERASURES)

    def _change(self, job: PipelineJob, by: pipeline_jobs.Change) -> PipelineJob:
        async def change() -> PipelineJob:
            async with journal_reader.connected(self.ground.access) as bus:
                return await pipeline_jobs.change(bus.home, ERASURES, job.id, by)

        return asyncio.run(change())


def _counted(now: PipelineJob, *, counts: Counts, state: str) -> PipelineJob:
    total = sum(count for _, _, count in counts)
    return structs.replace(now, counts=counts, total=total, state=state, changed_at=clock.now_ms())


def _advanced(now: PipelineJob, *, gone: int, is_whole: bool, note: str) -> PipelineJob:
    state = "done" if is_whole else now.state
    return structs.replace(
        now, done=now.done + gone, state=state, note=note, failures=0, error="", changed_at=clock.now_ms()
    )


def _failed(now: PipelineJob, *, error: Exception) -> PipelineJob:
    return now.failed(error, now_ms=clock.now_ms(), is_final=False)
