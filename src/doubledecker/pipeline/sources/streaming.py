"""Consume: a source's rows are mapped to events and published, each once; what cannot be an event is quarantined.

A source that streams is a Spark query of its own, with its own checkpoint: Spark writes down which rows a batch has
before it begins, and the sink's fence keeps a batch that is repeated from publishing twice. For that a batch must be
cut into the same tasks each time, whatever the number of cores, so files are cut by size alone.
"""

from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from doubledecker import log
from doubledecker.errors import BadRequest
from doubledecker.pipeline import session
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.sources import mapping
from doubledecker.pipeline.sources.config import FILES, SourceConfig, Sources
from doubledecker.pipeline.spark_format import connector, refused_rows
from doubledecker.pipeline.steps import Round

QUARANTINE = "quarantine"
# How files are cut into tasks. Spark would also look at how many cores there are just now.
_CUTTING = {"spark.sql.files.minPartitionNum": "1", "spark.sql.files.maxPartitionBytes": "33554432"}
# What one batch takes at most, unless the source's options differ: a batch that died is repeated whole.
_FILES_A_BATCH = {"maxFilesPerTrigger": "200"}
# Their files describe themselves.
_SELF_DESCRIBED = frozenset({"parquet", "orc"})

_log = log.get("pipeline")


@dataclass(frozen=True)
class Outlet:
    """Where a source's events go: the bus, its quarantine, and where it is kept how far the source has come."""

    access: Access
    quarantine: str
    checkpoint: str

    @property
    def options(self) -> dict[str, str]:
        """The options of the sink."""
        return {
            "redisUrl": self.access.url,
            "namespace": self.access.namespace,
            "partitions": str(self.access.partitions),
            "refusedTable": self.quarantine,
        }


def outlet_of(access: Access, root: str, sources: Sources, source: SourceConfig) -> Outlet:
    """All sources share a quarantine; each has a checkpoint of its own."""
    lake = root.rstrip("/")
    kept = sources.checkpoints.rstrip("/") or f"{lake}/checkpoints"
    return Outlet(access, quarantine_of(root), f"{kept}/{source.name}")


def quarantine_of(root: str) -> str:
    """Where rows that cannot be events are kept."""
    return f"{root.rstrip('/')}/{QUARANTINE}"


@dataclass(frozen=True)
class _Seen:
    """What a query has reported so far."""

    batch: int = -1
    refused: int = 0


class StreamingSource:
    """Consumes one source that streams; goes on after a failure, from its checkpoint."""

    def __init__(self, spark: SparkSession, source: SourceConfig, outlet: Outlet, *, interval_s: float) -> None:
        self._spark = own_session(spark)
        self._source = source
        self._outlet = outlet
        self._interval_s = interval_s
        self._query: StreamingQuery | None = None
        self._seen = _Seen()

    def consume(self, *, is_once: bool) -> Round:
        """What was done since the last time; `is_once` waits until there is no more."""
        is_going = False
        try:
            self._query = self._query or self._start(is_once=is_once)
            done = self._gather(self._query, is_once=is_once) if self._query else Round(0)
            is_going = not is_once
        finally:
            if not is_going:
                self.close()
        return done

    def _start(self, *, is_once: bool) -> StreamingQuery | None:
        session.activate(self._spark)
        frame = rows(self._spark, self._source)
        if frame is None:
            return None
        events = mapping.to_events(frame, self._source, file=file_of(self._source))
        writer: DataStreamWriter = events.writeStream.format(connector.NAME).queryName(self._source.name)
        writer = writer.options(**self._outlet.options, **naming(self._source))
        writer = writer.option("checkpointLocation", self._outlet.checkpoint)
        if is_once:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=f"{int(self._interval_s * 1000)} milliseconds").start()
        self._seen = _Seen(refused=refused_rows.count(self._outlet.quarantine, str(query.id)))
        return query

    def _gather(self, query: StreamingQuery, *, is_once: bool) -> Round:
        """Add up what the query reports of its batches; raises what ended it."""
        read = took_ms = 0
        while True:
            is_over = query.awaitTermination(1) if is_once else not query.isActive
            for progress in query.recentProgress:
                if progress["batchId"] > self._seen.batch and progress["numInputRows"]:
                    self._seen = replace(self._seen, batch=progress["batchId"])
                    read, took_ms = read + progress["numInputRows"], took_ms + progress["batchDuration"]
            if is_over or not is_once:
                break
        if is_over and not is_once:
            query.awaitTermination()
            raise BadRequest("the query ended by itself")
        # SQL on what may be unreadable reads twice: what is, and what is not.
        read //= 2 if self._source.sql and self._source.is_parsed else 1
        return Round(read, refused=self._refused(query) if read else self._seen.refused, took_ms=took_ms)

    def _refused(self, query: StreamingQuery) -> int:
        total = refused_rows.count(self._outlet.quarantine, str(query.id))
        if total > self._seen.refused:
            _log.warning("rows.quarantined", source=self._source.name, rows=total - self._seen.refused)
        self._seen = replace(self._seen, refused=total)
        return total

    def close(self) -> None:
        """End the query, if one runs; what it was at is repeated by the next."""
        query, self._query = self._query, None
        if query is not None and query.isActive:
            query.stop()


def own_session(spark: SparkSession) -> SparkSession:
    """A session for one source: its settings and its view are its own."""
    own = spark.newSession()
    connector.register(own)
    for name, value in _CUTTING.items():
        own.conf.set(name, value)
    return own


def rows(spark: SparkSession, source: SourceConfig) -> DataFrame | None:
    """A source's rows as a stream; None when there is nothing yet to learn its columns from."""
    defaults = _FILES_A_BATCH if source.format in FILES else {}
    reader = spark.readStream.format(source.format).options(**{**defaults, **source.options})
    if source.is_parsed:
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", mapping.CORRUPT)
    if source.schema:
        reader = reader.schema(mapping.read_schema(source))
    elif source.format in _SELF_DESCRIBED:
        try:
            reader = reader.schema(spark.read.format(source.format).options(**source.options).load(source.path).schema)
        except AnalysisException as error:
            if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
                return None
            raise
    return reader.load(source.path) if source.path else reader.load()


def file_of(source: SourceConfig) -> Column | None:
    """Which file a row is from, where rows are from files."""
    return columns.col("_metadata.file_path") if source.format in FILES else None


def naming(source: SourceConfig) -> dict[str, str]:
    """Who publishes, and what it is called where rows are quarantined."""
    return {"publisher": source.publisher, "source": source.name}
