"""A driver on a cluster, run by a test: does each part of the pipeline, and says on which workers its tasks ran.

on_cluster.py MASTER WORKERS_FOLDER REDIS_URL PARTITIONS FOLDER
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.model.erasure import ErasureAsked
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.replay import ReplayAsked
from doubledecker.pipeline.bulk import posting
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.erase.eraser import Eraser
from doubledecker.pipeline.lake import frames, versions
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.metrics import rollup
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.session import SessionPlan, open_session
from doubledecker.pipeline.sources import streaming
from doubledecker.pipeline.sources.config import SourceConfig, Sources
from doubledecker.pipeline.sources.streaming import StreamingSource
from doubledecker.pipeline.spark_format import connector
from doubledecker.store import bulk, subscribers
from replays import ROOT
from spark_cluster import EXECUTOR_CONF, SparkCluster

ROWS = 400


def whence(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: where our code was imported from, and whether what lies beside it can be read there."""
    import doubledecker
    from doubledecker.store import scripts

    for _ in batches:
        found = [f"{doubledecker.__file__} {len(scripts.all_names())}"]
        yield pa.RecordBatch.from_pydict({"whence": found})


def sink(spark: SparkSession, access: Access) -> None:
    rows = spark.range(ROWS, numPartitions=8).selectExpr(
        "'sunk' as topic",
        "'create' as type",
        "concat('t', id % 5) as tenant",
        "concat('k', id % 2) as key",
        "to_json(struct(id as number)) as data",
    )
    options = {"redisUrl": access.url, "partitions": str(access.partitions), "publisher": "feed"}
    rows.write.format("doubledecker").options(**options).mode("append").save()


def source(spark: SparkSession, access: Access, folder: Path) -> None:
    """Sixteen files, of which at most eight fit a task."""
    inbox = folder / "in"
    inbox.mkdir()
    for part in range(16):
        numbers = range(part * ROWS // 16, (part + 1) * ROWS // 16)
        (inbox / f"{part}.json").write_text("".join(f'{{"number": {n}}}\n' for n in numbers))
    fields = {"topic": "'sourced'", "type": "'create'", "data": "to_json(struct(number))"}
    named = SourceConfig("orders", "json", "feed", path=str(inbox), schema="number long", fields=fields)
    outlet = streaming.outlet_of(access, str(folder / "lake"), Sources((named,)), named)
    StreamingSource(spark, named, outlet, interval_s=1).consume(is_once=True)


def land(spark: SparkSession, access: Access, folder: Path) -> None:
    root = str(folder / "lake")
    archive = landing.archive_of(root)
    asyncio.run(landing.register(access, root, archive, takes_over=False))
    landing.land(spark, access, root, "events", archive=archive)


def deliver(spark: SparkSession, access: Access, folder: Path) -> None:
    """All that has landed to the only subscriber there is, in two tasks."""

    async def prepare() -> Posting:
        async with journal_reader.connected(access) as bus:
            await bulk.open_ledger(bus, "posted:cluster")
            known = await subscribers.load_many(bus.home, await subscribers.all_tokens(bus.home))
        [subscriber] = known.values()
        return Posting(
            Settings(redis_url=access.url, partitions=access.partitions, private_callbacks=True),
            subscriber,
            "posted:cluster",
        )

    work = asyncio.run(prepare())
    table = landing.table_of(str(folder / "lake"), "events")
    while posting.post(frames.landed(spark, table, versions.of(table)), work, tasks=2).stopped:
        pass


def measure_all(spark: SparkSession, access: Access, folder: Path) -> None:
    rollup.measure(spark, str(folder / "lake"), "events", partitions=access.partitions)


def replay(ground: SparkReadContext, settings: Settings) -> None:
    """All events, to a queue."""

    async def ask() -> None:
        async with build.open_bus(settings) as bus:
            await bus.registry.register_queue(RegisteredQueue("past", "", ("none:none:none",)), caller=ROOT)
            await PipelineJobs(bus.partitions, bus.registry, rate=100_000).ask_replay(
                ReplayAsked(to_queue="past"), ROOT
            )

    asyncio.run(ask())
    replayer = Replayer(ground, settings)
    while replayer.round().has_more:
        pass


def erase(ground: SparkReadContext, settings: Settings) -> None:
    """The events of one key, which are in every partition's file."""

    async def ask() -> None:
        async with build.open_bus(settings) as bus:
            desk = PipelineJobs(bus.partitions, bus.registry, rate=1)
            await desk.ask_erasure(ErasureAsked(key="k1"), ROOT)

    asyncio.run(ask())
    eraser = Eraser(ground)
    # It is counted, and then carried out.
    eraser.round()
    eraser.round()


def main(master: str, workers: str, url: str, partitions: str, folder: str) -> None:
    access, place = Access(url, "rm:", int(partitions)), Path(folder)
    cluster = SparkCluster(master, Path(workers), frozenset({"worker-0", "worker-1"}))
    # Not before both are there: the first would take all tasks of a short job.
    patient = {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": "4",
        **EXECUTOR_CONF,
    }
    spark = open_session(SessionPlan(master=master, more=patient))
    connector.register(spark)
    found: dict[str, object] = {}

    def measure(name: str, act: Callable[[], None]) -> None:
        before = cluster.tasks()
        act()
        found[name] = sorted(cluster.took_part(before))

    seen = spark.range(8, numPartitions=8).mapInArrow(whence, "whence string").distinct().collect()
    found["whence"] = [row[0] for row in seen]
    measure("sink", lambda: sink(spark, access))
    measure("source", lambda: source(spark, access, place))
    measure("land", lambda: land(spark, access, place))
    measure("measure", lambda: measure_all(spark, access, place))
    measure("bulk", lambda: deliver(spark, access, place))
    settings = Settings(redis_url=url, partitions=int(partitions))
    ground = SparkReadContext(spark, access, str(place / "lake"))
    measure("replay", lambda: replay(ground, settings))
    measure("tend", lambda: erase(ground, settings))
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
