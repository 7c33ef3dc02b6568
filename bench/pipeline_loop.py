"""One Spark application that carries events both ways, and prints what it measured as JSON; run as a child.

In turn: a journal is filled without Spark; read by a plain XRANGE loop, by one process that makes Arrow batches of it,
and by one that writes them to Parquet; landed by a Spark that has just started, and, filled anew, by one that is warm,
three times. What is in the lake then is measured, and a part of it replayed to a queue. Then rows are published by the
sink, and by `foreachPartition` as one would write it by hand. At last four times as many events are landed, and as many
as at first on one core.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from pyspark.sql import DataFrame, Row, SparkSession

from bench import children, events
from doubledecker import log
from doubledecker.assembly import build
from doubledecker.assembly import settings as reading_settings
from doubledecker.assembly.settings import Settings
from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.model.event import AcceptedEvent, draft
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.replay import RATE_MAX, ReplayAsked
from doubledecker.model.token import Caller
from doubledecker.pipeline import session
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.metrics import rollup
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.session import SessionPlan
from doubledecker.store.journal import inflate

_URL = os.environ.get("BENCH_REDIS_URL", "")
_PAGE = 100
_PIPELINED = 500
_MANY = 100_000_000
_JOURNAL = "rm:journal:events"
# How much larger a backlog is landed to see whether an event costs the same there.
_LARGER = 4
# How many times a warm Spark lands.
_WARM = 3

_Fill = Callable[[int], Coroutine[None, None, None]]


def main() -> None:
    # What is printed are the figures alone.
    log.configure(level="error", as_json=False)
    rows = int(sys.argv[1])
    # As much as is measured must fit, or trimming would be measured too; the sink reads it from its environment.
    os.environ["DOUBLEDECKER_JOURNAL_BYTES_MAX"] = str(rows * _LARGER * 1_000)
    settings = replace(reading_settings.read(os.environ), redis_url=_URL)
    publisher = asyncio.run(_token(settings))
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_fill(settings, publisher, rows))
        figures |= {f"floor.journal.{name}_per_s": rows / _timed(read) for name, read in _floors(folder).items()}
        spark = session.open_session(SessionPlan(driver_memory="2g"))
        lake = _Lake(spark, f"{folder}/lake")
        figures["pipeline.land_cold_per_s"] = rows / _timed(lake.land)
        fill = partial(_fill, settings, publisher)
        figures["pipeline.land_warm_per_s"] = rows / _landed_s(lake, fill, rows)
        figures["pipeline.land_times_floor"] = (
            figures["floor.journal.parquet_per_s"] / figures["pipeline.land_warm_per_s"]
        )
        figures["pipeline.measure_s"] = _timed(lake.measure) * 1_000_000 / ((1 + _WARM) * rows)
        figures["pipeline.replay_per_s"] = _replayed(lake.ground, settings)
        figures |= _sink(spark, publisher, rows)
        lake.land()
        figures |= _growth(lake, fill, rows)
        spark.stop()
    figures["pipeline.land_larger_cost"] = figures["pipeline.land_warm_per_s"] / figures["pipeline.land_larger_per_s"]
    figures["pipeline.land_larger_floor"] = figures["pipeline.land_times_floor"] * figures["pipeline.land_larger_cost"]
    figures["pipeline.land_cores_gain"] = figures["pipeline.land_warm_per_s"] / figures["pipeline.land_one_core_per_s"]
    print(json.dumps(figures), flush=True)


def _landed_s(lake: "_Lake", fill: _Fill, rows: int) -> float:
    """How long it takes to land so many: the median of a few, as Java still compiles now and then."""
    took_s = []
    for _ in range(_WARM):
        asyncio.run(fill(rows))
        took_s.append(_timed(lake.land))
    return statistics.median(took_s)


def _growth(lake: "_Lake", fill: _Fill, rows: int) -> dict[str, float]:
    """A larger backlog, and one core instead of all; both by a Spark that is warm."""
    asyncio.run(fill(_LARGER * rows))
    larger_s = _timed(lake.land)
    lake.ground.spark.stop()
    lake = _Lake(session.open_session(SessionPlan(master="local[1]", driver_memory="2g")), lake.ground.root)
    asyncio.run(fill(_PIPELINED))
    lake.land()
    asyncio.run(fill(rows))
    return {
        "pipeline.land_larger_per_s": _LARGER * rows / larger_s,
        "pipeline.land_one_core_per_s": rows / _timed(lake.land),
    }


async def _token(settings: Settings) -> str:
    async with build.open_bus(settings) as bus:
        return (await bus.registry.clients.create("bench", "bench--secret", now_ms=0)).id


async def _fill(settings: Settings, publisher: str, rows: int) -> None:
    """Publish without Spark, a few hundred events an entry as under load."""
    async with build.open_bus(settings) as bus:
        committing = asyncio.create_task(bus.publisher.run())
        for first in range(0, rows, _PIPELINED):
            made = [_event(number) for number in range(first, min(rows, first + _PIPELINED))]
            drafts = [draft(event, is_id_given=False, index=i) for i, event in enumerate(made)]
            await bus.publisher.publish(publisher, drafts)
        committing.cancel()


def _event(number: int) -> AcceptedEvent:
    shape = events.posted(number)
    data = msgspec.Raw(events.encode(shape["data"]))
    url, id_ = str(shape["url"]), f"018c0000-0000-7000-8000-{number:012}"
    return AcceptedEvent(
        topic=events.TOPIC, type="update", url=url, t=number, data=data, id=id_, tenant=f"t{number % 100}"
    )


def _floors(folder: str) -> dict[str, Callable[[], None]]:
    return {
        "xrange": lambda: _drain(_lines()),
        "arrow": lambda: _drain(_batches()),
        "parquet": lambda: _to_parquet(Path(folder) / "floor.parquet"),
    }


def _drain(items: Iterator[object]) -> None:
    for _ in items:
        pass


def _lines() -> Iterator[list[bytes]]:
    """The lines of all entries, a page at a time."""
    client = redis.from_url(_URL)
    after = "-"
    while page := client.xrange(_JOURNAL, after, "+", count=_PAGE):
        yield [line for _, fields in page for value in fields.values() for line in inflate(value).split(b"\n")]
        after = f"({page[-1][0].decode()}"


def _batches() -> Iterator[pa.RecordBatch]:
    decode = msgspec.json.Decoder(AcceptedEvent).decode
    for lines in _lines():
        found = [decode(line) for line in lines]
        yield pa.RecordBatch.from_pydict(
            {
                "topic": [event.topic for event in found],
                "type": [event.type for event in found],
                "url": [event.url for event in found],
                "t": [event.t for event in found],
                "data": [bytes(event.data) for event in found],
                "id": [event.id for event in found],
                "tenant": [event.tenant for event in found],
            }
        )


def _to_parquet(path: Path) -> None:
    writer = None
    for batch in _batches():
        writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd")
        writer.write_batch(batch)
    if writer:
        writer.close()


class _Lake:
    """A lake that lands and measures all there is."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.ground = SparkReadContext(spark, Access(_URL, "rm:", 1), root)
        self._archive = landing.archive_of(root)
        asyncio.run(landing.register(self.ground.access, self._archive, takes_over=False))

    def land(self) -> None:
        spark, access, root = self.ground.spark, self.ground.access, self.ground.root
        while landing.land(spark, access, root, "events", archive=self._archive).has_more:
            pass

    def measure(self) -> None:
        while rollup.measure(self.ground.spark, self.ground.root, "events", partitions=1).has_more:
            pass


def _replayed(ground: SparkReadContext, settings: Settings) -> float:
    """Events a second from the lake to a queue, an eleventh of them, as fast as they go."""
    unbounded = replace(settings, replay_backlog_max=_MANY)
    replayer = Replayer(ground, unbounded)
    asyncio.run(_ask(unbounded))
    replayer.round()  # counts
    started_s, sent = time.perf_counter(), 0
    while (done := replayer.round()).has_more:
        sent += done.rows
    return sent / (time.perf_counter() - started_s)


async def _ask(settings: Settings) -> None:
    async with build.open_bus(settings) as bus:
        root = Caller("", "root", is_root=True)
        await bus.registry.register_queue(
            RegisteredQueue("past", "", ("none:none:none",), max_length=_MANY), caller=root
        )
        desk = PipelineJobs(bus.partitions, bus.registry, rate=RATE_MAX)
        await desk.ask_replay(ReplayAsked(to_queue="past", where="tenant like 't1%'"), root)


def _sink(spark: SparkSession, publisher: str, rows: int) -> dict[str, float]:
    frame = _frame(spark, rows)
    # Once through Spark alone, so that making the rows is not measured with either; and a few rows all the way, by as
    # many tasks as run side by side, so that starting their Python is not either.
    frame.write.format("noop").mode("overwrite").save()
    _publish(frame.limit(_PIPELINED).repartition(session.cores(spark)), publisher)
    valkey = int(os.environ["BENCH_VALKEY_PID"])
    before_s = children.cpu_s(valkey)
    sunk_s = _timed(lambda: _publish(frame, publisher))
    return {
        "pipeline.sink_per_s": rows / sunk_s,
        "pipeline.sink_valkey_percent": (children.cpu_s(valkey) - before_s) / sunk_s * 100,
        "floor.foreach_partition_per_s": rows / _timed(lambda: frame.foreachPartition(_by_hand)),
    }


def _frame(spark: SparkSession, rows: int) -> DataFrame:
    data = events.encode(events.posted(0)["data"]).decode()
    frame = spark.range(rows).selectExpr(
        f"'{events.TOPIC}' as topic",
        "'update' as type",
        "concat('https://example.org/orders/', lpad(id, 8, '0')) as url",
        "concat('t', id % 100) as tenant",
        f"'{data}' as data",
    )
    return frame.cache()


def _publish(frame: DataFrame, publisher: str) -> None:
    frame.write.format("doubledecker").options(redisUrl=_URL, publisher=publisher).mode("append").save()


def _by_hand(rows: Iterator[Row]) -> None:
    """What one would write without the bus: a stream, and a pipeline of XADD. Nothing is checked, nothing is routed."""
    client = redis.from_url(os.environ["BENCH_REDIS_URL"])
    pipe = client.pipeline(transaction=False)
    for row in rows:
        pipe.xadd("by-hand", row.asDict())
        if len(pipe) >= _PIPELINED:
            pipe.execute()
    pipe.execute()


def _timed(act: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
