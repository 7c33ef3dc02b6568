"""Kill -9 of a stream that publishes to the bus, again and again: every row of its source is published, once."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from cli.commands import children
from conftest import Topology
from doubledecker.model.event import AcceptedEvent
from doubledecker.store import die_with_parent, journal
from doubledecker.store.embedded import EmbeddedServer
from feed import Feed, a_feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 3
FILES, ROWS = 16, 4000
QUERY = """
import sys
from doubledecker.pipeline.spark_format import connector
from doubledecker.pipeline.session import SessionPlan, open_session
url, partitions, publisher, source, checkpoint = sys.argv[1:]
spark = open_session(SessionPlan(master="local[2]", more={"spark.sql.files.maxPartitionBytes": "65536"}))
connector.register(spark)
(
    spark.readStream.schema("number long").option("maxFilesPerTrigger", 2).json(source)
    .selectExpr(
        "concat('topic_', substring('abc', 1 + cast(number % 3 as int), 1)) as topic", "'create' as type",
        "concat('t', number % 7) as tenant", "to_json(struct(number)) as data",
    )
    .writeStream.format("doubledecker")
    .options(redisUrl=url, partitions=partitions, publisher=publisher, checkpointLocation=checkpoint)
    .trigger(availableNow=True).start().awaitTermination()
)
"""


async def start(feed: Feed, tmp_path: Path) -> asyncio.subprocess.Process:
    words = [
        feed.topology.url,
        str(feed.topology.partitions),
        feed.publisher,
        tmp_path / "source",
        tmp_path / "checkpoint",
    ]
    command = die_with_parent.wrapped([sys.executable, "-c", QUERY, *map(str, words)])
    with (tmp_path / "query.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)


async def numbers(feed: Feed) -> Counter[int]:
    """How often each row of the source is in the journal."""
    found: Counter[int] = Counter()
    for partition in feed.bus.partitions.all:
        after = "0-0"
        while entries := await journal.read(partition, "events", after=after, count=200):
            after = entries[-1].id
            lines = [line for entry in entries for _, value in entry.fields for line in value.split(b"\n")]
            events = [msgspec.json.decode(line, type=AcceptedEvent) for line in lines]
            found.update(msgspec.json.decode(bytes(event.data))["number"] for event in events)
    return found


async def test_every_row_is_published_once_though_driver_and_executors_are_killed(tmp_path: Path):
    (tmp_path / "source").mkdir()
    for part in range(FILES):
        lines = "".join(f'{{"number": {n}}}\n' for n in range(part * ROWS, (part + 1) * ROWS))
        (tmp_path / "source" / f"{part:03}.json").write_text(lines)
    server = await EmbeddedServer.start(tmp_path / "store")
    partial = []
    async with a_feed(Topology("own", server.url, 3, (server.url,))) as feed:
        for _ in range(KILLS):
            before = (await numbers(feed)).total()
            query = await start(feed, tmp_path)
            async with asyncio.timeout(180):
                while (reached := (await numbers(feed)).total()) <= before and query.returncode is None:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(random.uniform(0.0, 0.3))
            for pid in [*children(query.pid), query.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            await query.wait()
            partial.append(reached)
        last = await start(feed, tmp_path)
        async with asyncio.timeout(240):
            code = await last.wait()
        found = await numbers(feed)
    await server.stop()

    assert code == 0, (tmp_path / "query.log").read_text()[-2000:]
    assert found == Counter(range(FILES * ROWS))
    assert any(0 < count < FILES * ROWS for count in partial), "no kill came while rows were on their way"
