"""Kill -9 of a pipeline that consumes files, again and again: every row is published once, every bad one kept once."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.commands import children, environment
from conftest import Topology
from doubledecker.store.embedded import EmbeddedServer
from feed import Feed, a_feed
from processes import Process
from sourcing import lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = 2
FILES, ROWS = 12, 2000
CONFIG = """
[sources.orders]
format = "json"
path = "in"
schema = "number long, customer string"
publisher = "feed"
options = { maxFilesPerTrigger = 2 }

[sources.orders.fields]
topic = "concat('topic_', substring('abc', 1 + cast(number % 3 as int), 1))"
type = "'create'"
tenant = "customer"
data = "to_json(struct(number))"
"""


def lay_out(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "sources.toml").write_text(CONFIG)
    for part in range(FILES):
        text = lines(range(part * ROWS, (part + 1) * ROWS)) + f"{{broken {part}\n"
        (folder / "in" / f"{part:03}.json").write_text(text)


def a_pipeline(folder: Path, feed: Feed, *words: str) -> Process:
    settings = {
        "DOUBLEDECKER_REDIS_URL": feed.topology.url,
        "DOUBLEDECKER_PARTITIONS": str(feed.topology.partitions),
        "DOUBLEDECKER_LAKE": str(folder / "lake"),
        "DOUBLEDECKER_SOURCES": str(folder / "sources.toml"),
        "DOUBLEDECKER_SPARK_MASTER": "local[2]",
        "DOUBLEDECKER_PIPELINE_INTERVAL_S": "0.1",
        "DOUBLEDECKER_LAND_INTERVAL_S": "0",
    }
    return Process("pipeline", "pipeline", "run", *words, environment=environment(**settings), logs=folder)


async def accepted(feed: Feed) -> int:
    """How many events the bus has taken; its journal forgets those that have landed."""
    return sum([topic.events async for topic in feed.bus.registry.topics.list_()])


def numbers(lake: Path) -> Counter[int]:
    """How often each row of the source is in the lake."""
    found = pa.table(DeltaTable(lake / "events").scan())["data"].to_pylist()
    return Counter(json.loads(text)["number"] for text in found)


async def finish(folder: Path, feed: Feed) -> None:
    """Consume what is left, and then land what that published."""
    for _ in range(2):
        last = a_pipeline(folder, feed, "--once")
        await last.start()
        assert await last.wait(within_s=240) == 0, last.log[-2000:]


async def kill_all(process: Process) -> None:
    for pid in [*children(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    await process.kill()


async def test_every_row_is_published_once_though_the_pipeline_is_killed(tmp_path: Path):
    lay_out(tmp_path)
    server = await EmbeddedServer.start(tmp_path / "store")
    partial = []
    async with a_feed(Topology("own", server.url, 3, (server.url,))) as feed:
        for _ in range(KILLS):
            before = await accepted(feed)
            pipeline = a_pipeline(tmp_path, feed)
            await pipeline.start()
            async with asyncio.timeout(400):
                while (reached := await accepted(feed)) <= before:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(random.uniform(0.0, 0.5))
            await kill_all(pipeline)
            partial.append(reached)
        await finish(tmp_path, feed)
    await server.stop()
    kept = pa.table(DeltaTable(tmp_path / "lake" / "quarantine").scan()).to_pylist()

    assert numbers(tmp_path / "lake") == Counter(range(FILES * ROWS))
    assert sorted(row["row"] for row in kept) == sorted(f"{{broken {part}" for part in range(FILES))
    assert any(0 < count < FILES * ROWS for count in partial), "no kill came while rows were on their way"
