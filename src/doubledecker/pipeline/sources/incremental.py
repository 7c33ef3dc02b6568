"""Consume a source that cannot stream: read, again and again, what lies beyond the highest bookmark so far.

The bookmark is a column that only grows. A round takes the range from the last bookmark to the highest there is, writes
down that range, publishes it, and writes down that it is done. A round that died is repeated with the same range, and
the sink's fence passes over what was published: rows are dealt to tasks by the bookmark's value and ordered there, so
that they come in the same order however the source hands them out. A row that appears later with a bookmark that is
not beyond the last one, or with none, is not seen.
"""

import json
import time
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as columns

from doubledecker import log
from doubledecker.errors import BadRequest
from doubledecker.pipeline import session
from doubledecker.pipeline.sources import mapping, streaming
from doubledecker.pipeline.sources.config import SourceConfig
from doubledecker.pipeline.sources.streaming import Outlet
from doubledecker.pipeline.spark_format import connector, refused_rows
from doubledecker.pipeline.steps import Round

# Into how many tasks a range is dealt; the same for ever, since a range may be repeated on another cluster.
_TASKS = 8
_FILE = "bookmark.json"

_log = log.get("pipeline")


@dataclass(frozen=True)
class RoundRecord:
    """The range of the last round, whether it is published, and how many rows were refused until then.

    Bookmarks are kept as Spark writes them as text. `id` distinguishes this beginning from one whose file was deleted.
    Since rounds are numbered, all are versions of one write; 0.1.0 gave each a write of its own, and the bus keeps what
    it knows of a write for a week. `refused_before` counts the rows that were refused before rounds were numbered.
    """

    id: str = field(default_factory=lambda: str(uuid4()))
    round: int = 0
    after: str | None = None
    upto: str | None = None
    is_done: bool = True
    refused: int = 0
    is_numbered: bool = False
    refused_before: int = 0

    def next(self, upto: str) -> "RoundRecord":
        """The range that follows, begun."""
        before = self.refused_before if self.is_numbered else self.refused
        range_ = replace(self, round=self.round + 1, after=self.upto, upto=upto, is_done=False)
        return replace(range_, is_numbered=True, refused_before=before)

    def write_of(self, source: str) -> tuple[str, int]:
        """The id and the version that this range is written under."""
        if self.is_numbered:
            return f"{source}:{self.id}", self.round
        return f"{source}:{self.id}:{self.round}", 0

    def done(self, *, refused: int) -> "RoundRecord":
        """After the range is published, with the rows that its write has refused so far."""
        before = self.refused_before if self.is_numbered else self.refused
        return replace(self, is_done=True, refused=before + refused)


class BookmarkConsumer:
    """Consumes one source in batches."""

    def __init__(self, spark: SparkSession, source: SourceConfig, outlet: Outlet) -> None:
        self._spark = streaming.own_session(spark)
        self._source = source
        self._outlet = outlet

    def consume(self) -> Round:
        """Publish the range that was begun, or else the next one."""
        session.activate(self._spark)
        frame = self._rows()
        reached = read(self._spark, self._outlet.checkpoint)
        if reached.is_done:
            upto = self._highest(frame, reached)
            if upto is None:
                return Round(0, refused=reached.refused)
            reached = reached.next(upto)
            write(self._spark, self._outlet.checkpoint, reached)
        began_s = time.monotonic()
        write_id, version = reached.write_of(self._source.name)
        count = self._publish(self._dealt(frame, reached), write_id, version)
        done = reached.done(refused=refused_rows.count(self._outlet.quarantine, write_id))
        if done.refused > reached.refused:
            _log.warning("rows.quarantined", source=self._source.name, rows=done.refused - reached.refused)
        reached = done
        write(self._spark, self._outlet.checkpoint, reached)
        return Round(count, refused=reached.refused, took_ms=max(1, int((time.monotonic() - began_s) * 1000)))

    def _rows(self) -> DataFrame:
        source = self._source
        reader = self._spark.read.format(source.format).options(**source.options)
        reader = reader.schema(source.schema) if source.schema else reader
        found = reader.load(source.path) if source.path else reader.load()
        if source.bookmark not in found.columns:
            raise BadRequest(
                f"there is no column {source.bookmark!r} to be the bookmark; there are {', '.join(found.columns)}"
            )
        return found

    def _highest(self, frame: DataFrame, reached: RoundRecord) -> str | None:
        # One value comes back, and a database works it out itself.
        highest = columns.max(self._source.bookmark).cast("string")
        [row] = self._between(frame, reached.upto, None).agg(highest).collect()
        return None if row[0] is None else str(row[0])

    def _dealt(self, frame: DataFrame, reached: RoundRecord) -> DataFrame:
        """The rows of a range, in an order that depends on nothing but themselves."""
        rows = self._between(frame, reached.after, reached.upto).repartition(_TASKS, self._source.bookmark)
        return rows.sortWithinPartitions(self._source.bookmark, columns.to_json(columns.struct(*rows.columns)))

    def _between(self, frame: DataFrame, after: str | None, upto: str | None) -> DataFrame:
        bookmark, kind = columns.col(self._source.bookmark), frame.schema[self._source.bookmark].dataType
        bounds: list[Column] = []
        if after is not None:
            bounds.append(bookmark > columns.lit(after).cast(kind))
        if upto is not None:
            bounds.append(bookmark <= columns.lit(upto).cast(kind))
        for bound in bounds:
            frame = frame.where(bound)
        return frame

    def _publish(self, rows: DataFrame, write_id: str, version: int) -> int:
        """Publish under a name by which a repeated write is known; returns how many rows there were."""
        seen = Observation()
        events = mapping.to_events(rows.observe(seen, columns.count("*").alias("rows")), self._source)
        writer = events.write.format(connector.NAME).options(**self._outlet.options, **streaming.naming(self._source))
        writer.option("writeId", write_id).option("writeVersion", version).mode("append").save()
        return int(seen.get["rows"])


def read(spark: SparkSession, folder: str) -> RoundRecord:
    """How far a source has come, as its folder says."""
    files, path = _place(spark, folder)
    if not files.exists(path):
        return RoundRecord()
    stream = files.open(path)
    try:
        return RoundRecord(**json.loads(bytes(stream.readAllBytes())))
    finally:
        stream.close()


def write(spark: SparkSession, folder: str, reached: RoundRecord) -> None:
    """Write it down in one atom, wherever Spark can keep files."""
    files, path = _place(spark, folder)
    files.mkdirs(path.getParent())
    stream = files.createAtomic(path, True)  # noqa: FBT003 - over the last one
    stream.write(bytearray(json.dumps(asdict(reached)).encode()))
    stream.close()


def _place(spark: SparkSession, folder: str) -> tuple[JavaObject, JavaObject]:
    """Spark's own way to the files of a checkpoint, and the one that is ours."""
    jvm = spark._jvm  # noqa: SLF001 - PySpark does not offer it
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(f"{folder}/{_FILE}")
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    return manager.create(path.getParent(), spark.sparkContext._jsc.hadoopConfiguration()), path  # noqa: SLF001 - the same
