"""A lake in a folder of a test, landed to when the test says so."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.lake import arrow, event_history, queries, reads, rows, snapshots
from doubledecker.lake.event_history import EventHistory
from doubledecker.lake.queries import Found
from doubledecker.lake.reads import Reader
from doubledecker.model import condition
from doubledecker.model.erasure import Erasure
from doubledecker.model.position import Position
from doubledecker.pipeline.erase import eraser
from doubledecker.pipeline.lake import files, tables, versions
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.land.landing import Landed
from doubledecker.store.journal import JournalEntry
from feed import Feed


def land_entry(root: str, name: str, entry: JournalEntry) -> None:
    """Write an entry of a journal to its table as a file of its own, without a bus."""
    table = landing.table_of(root, name)
    batch = arrow.to_batch(rows.layout(name), [entry], partition=0)
    table.commit(table.open(), list(files.write(table, [batch])), snapshots.reaches({0: Position.parse(entry.id)}))


class PlainLake:
    """A lake in a folder, registered with the feed's bus; what lands is written here, without Spark."""

    def __init__(self, feed: Feed, folder: Path) -> None:
        self.root = str(folder / "lake")
        self.access = Access(feed.topology.url, "rm:", feed.topology.partitions)
        self.archive = landing.archive_of(self.root)

    async def land(self, name: str = "events") -> object:
        """A round of landing; the bus is told, and trims when somebody has it do so."""
        table = landing.table_of(self.root, name)
        opened = table.open()
        begin = snapshots.landed(opened, self.access.partitions)
        slices = landing.plan(begin, await journal_reader.extents(self.access, name, begin), cores=1)
        if slices:
            written = await asyncio.to_thread(self._write, name, slices)
            table.commit(opened, written, snapshots.reaches(landing._ends(slices)))
        reached = snapshots.landed(table.open(), self.access.partitions)
        await landing._confirm(self.access, name, self.archive, reached)
        return reached

    def _write(self, name: str, slices: list[journal_reader.JournalSlice]) -> list[landing.WrittenFile]:
        table = landing.table_of(self.root, name)
        write = lambda part: landing._write_slice(part, access=self.access, name=name, table=table)  # noqa: E731
        return [file for part in slices for file in write(part)]

    def erase(self, erasure: Erasure) -> None:
        """Rewrite every file of `events` without what is erased, and delete the old ones, as an erasure does."""
        table = landing.table_of(self.root, "events")
        parts = tables.parts(table.open())
        written = [file for part in parts for file in eraser._write_again(part, table=table, erasure=erasure)]
        assert versions.swap(table, parts, written)
        table.open().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=False)

    def log(self) -> bytes:
        """All that the log of `events` says."""
        return b"".join(path.read_bytes() for path in Path(self.root, "events", "_delta_log").glob("*.json"))

    async def find(self, *, reader: Reader | None = None, limit: int = 1000, **wanted: str) -> Found:
        """What `doubledecker events` finds."""
        query = queries.search(condition.parse(**wanted, limit=limit))
        async with journal_reader.connected(self.access) as bus:
            return await reads.find(reads.ReadContext(self.root, bus), query, reader=reader)

    async def life(self, id_: str, *, since: datetime | None = None, reader: Reader | None = None) -> EventHistory:
        """What `doubledecker events --id` finds."""
        async with journal_reader.connected(self.access) as bus:
            return await event_history.look(reads.ReadContext(self.root, bus), id_, since=since, reader=reader)

    def table(self, name: str = "events") -> DeltaTable:
        return DeltaTable(f"{self.root}/{name}")

    def rows(self, name: str = "events") -> list[dict[str, object]]:
        return pa.table(self.table(name).scan()).to_pylist()

    @property
    def ids(self) -> list[str]:
        return sorted(str(row["id"]) for row in self.rows())

    async def register(self) -> Self:
        await landing.register(self.access, self.root, self.archive, takes_over=False)
        return self


class Lake(PlainLake):
    """The same, landed to by Spark."""

    def __init__(self, spark: SparkSession, feed: Feed, folder: Path) -> None:
        super().__init__(feed, folder)
        self.spark = spark

    async def land(self, name: str = "events") -> Landed:
        return await asyncio.to_thread(landing.land, self.spark, self.access, self.root, name, archive=self.archive)


def named_in_log(table: DeltaTable) -> set[str]:
    """The columns that a table's log has any value or count of, in its commits and in its checkpoints."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    lines = [json.loads(line) for path in log.glob("*.json") for line in path.read_text().splitlines()]
    adds = [line["add"] for line in lines if "add" in line]
    for path in log.glob("*.parquet"):
        adds += [add for add in pq.read_table(path, columns=["add"])["add"].to_pylist() if add]
    known = [json.loads(add["stats"]) for add in adds]
    return {name for stats in known for part in stats.values() if isinstance(part, dict) for name in part}


async def a_plain_lake(feed: Feed, folder: Path) -> PlainLake:
    return await PlainLake(feed, folder).register()


async def a_lake(spark: SparkSession, feed: Feed, folder: Path) -> Lake:
    return await Lake(spark, feed, folder).register()
