"""Sources of a test: files that are dropped in its folder, consumed when the test says so."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.model.event import AcceptedEvent
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.sources import streaming
from doubledecker.pipeline.sources.config import SourceConfig, Sources
from doubledecker.pipeline.sources.streaming import Outlet, StreamingSource
from doubledecker.pipeline.steps import Round
from doubledecker.store import journal
from feed import Feed

SCHEMA = "number long, customer string"
FIELDS = {"topic": "'orders'", "type": "'create'", "key": "customer", "data": "to_json(struct(number))"}


def a_source(folder: Path, **changes: object) -> SourceConfig:
    """JSON lines in `<folder>/in`, mapped by columns."""
    inbox = folder / "in"
    inbox.mkdir(exist_ok=True)
    given = {"name": "orders", "format": "json", "publisher": "feed", "path": str(inbox), "schema": SCHEMA}
    return SourceConfig(**{**given, **({} if "sql" in changes else {"fields": FIELDS}), **changes})


def lines(numbers: Iterable[int]) -> str:
    return "".join(json.dumps({"number": n, "customer": f"c{n % 7}"}) + "\n" for n in numbers)


def drop(source: SourceConfig, name: str, text: str) -> None:
    """Put a file into the source's folder, whole."""
    draft = Path(source.path) / f".{name}"
    draft.write_text(text)
    draft.rename(Path(source.path) / name)


def outlet_in(folder: Path, feed: Feed, source: SourceConfig) -> Outlet:
    access = Access(feed.topology.url, "rm:", feed.topology.partitions)
    return streaming.outlet_of(access, str(folder / "lake"), Sources((source,)), source)


def consume(spark: SparkSession, feed: Feed, folder: Path, source: SourceConfig) -> Round:
    """Consume all there is, as a pipeline does that was just started."""
    consumer = StreamingSource(spark, source, outlet_in(folder, feed, source), interval_s=1)
    # In a thread of its own, as there.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(consumer.consume, is_once=True).result()


def quarantined(folder: Path) -> list[dict[str, object]]:
    table = folder / "lake" / "quarantine"
    return pa.table(DeltaTable(table).scan()).to_pylist() if DeltaTable.is_deltatable(str(table)) else []


async def published(feed: Feed) -> list[AcceptedEvent]:
    """All events in the journal."""
    found = []
    for partition in feed.bus.partitions.all:
        after = "0-0"
        while entries := await journal.read(partition, "events", after=after, count=200):
            after = entries[-1].id
            found += [line for entry in entries for _, value in entry.fields for line in value.split(b"\n")]
    return [msgspec.json.decode(line, type=AcceptedEvent) for line in found]


def number(event: AcceptedEvent) -> int:
    return int(msgspec.json.decode(bytes(event.data))["number"])
