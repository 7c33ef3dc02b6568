"""A lake in a folder of a test, landed to when the test says so."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.pipeline import landing
from doubledecker.pipeline.landing import Landed
from doubledecker.pipeline.reading import Access
from feed import Feed


class Lake:
    """A lake in a folder, registered with the feed's bus."""

    def __init__(self, spark: SparkSession, feed: Feed, folder: Path) -> None:
        self.spark = spark
        self.root = str(folder / "lake")
        self.access = Access(feed.topology.url, "rm:", feed.topology.partitions)
        self.archive = landing.archive_of(self.root)

    async def register(self) -> "Lake":
        await landing.register(self.access, self.archive, takes_over=False)
        return self

    async def land(self, name: str = "events") -> Landed:
        return await asyncio.to_thread(landing.land, self.spark, self.access, self.root, name, archive=self.archive)

    def table(self, name: str = "events") -> DeltaTable:
        return DeltaTable(f"{self.root}/{name}")

    def rows(self, name: str = "events") -> list[dict[str, object]]:
        return pa.table(self.table(name).scan()).to_pylist()

    @property
    def ids(self) -> list[str]:
        return sorted(str(row["id"]) for row in self.rows())


def named_in_log(table: DeltaTable) -> set[str]:
    """The columns that a table's log has any value or count of, in its commits and in its checkpoints."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    lines = [json.loads(line) for path in log.glob("*.json") for line in path.read_text().splitlines()]
    adds = [line["add"] for line in lines if "add" in line]
    for path in log.glob("*.parquet"):
        adds += [add for add in pq.read_table(path, columns=["add"])["add"].to_pylist() if add]
    known = [json.loads(add["stats"]) for add in adds]
    return {name for stats in known for part in stats.values() if isinstance(part, dict) for name in part}


async def a_lake(spark: SparkSession, feed: Feed, folder: Path) -> Lake:
    return await Lake(spark, feed, folder).register()
