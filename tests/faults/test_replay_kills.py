"""Kill -9 of the pipeline in mid-replay, again and again: the target has every event once, and each tenant's in order.

What must hold in any order: nothing is missing, nothing is there twice, and nobody else got anything.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec
import pytest

from cli.commands import children
from conftest import Topology
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import queue_contents
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions, wait_for
from harness import ROOT_KEY, basic, until_ready
from processes import Fleet, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Each costs a start of Spark.
KILLS = 3
EVENTS, TENANTS = 12_000, 7


async def held(partitions: Partitions) -> list[AcceptedEvent]:
    """All that waits in the queue, in the order of each tenant."""
    found = []
    for partition in partitions.all:
        for tenant in await queue_contents.tenants(partition, "late"):
            rows = await queue_contents.peek(partition, RegisteredQueue("late", "", ()), tenant, most=EVENTS * 2)
            found += [msgspec.json.decode(text, type=AcceptedEvent) for _, text in rows]
    return found


async def a_past(http: aiohttp.ClientSession, url: str) -> list[str]:
    """Events that the bus has accepted, in the order in which it did."""
    root = basic(ROOT_KEY)
    async with http.post(f"{url}/api_tokens", json={"name": "shop"}, headers=root) as answer:
        secret = str((await answer.json())["token"])
    for name in ("late", "other"):
        async with http.put(f"{url}/queues/{name}", json={"pattern": "no:no:no"}, headers=root) as answer:
            assert answer.status == 201, await answer.text()
    ids = []
    for first in range(0, EVENTS, 1000):
        mine = [
            {"topic": f"topic_{'abc'[n % 3]}", "type": "made", "tenant": f"t{n % TENANTS}", "timestamp": n}
            for n in range(first, first + 1000)
        ]
        async with http.post(f"{url}/events", json=mine, headers=basic(secret)) as answer:
            assert answer.status == 202, await answer.text()
            ids += (await answer.json())["ids"]
    return ids


async def test_every_event_is_sent_once_and_in_order_though_the_pipeline_is_killed(tmp_path: Path):
    server = await EmbeddedServer.start(tmp_path / "store")
    topology = Topology("own", server.url, 3, (server.url,))
    settings = {"lake": tmp_path / "lake", "pipeline_interval_s": 0.2, "land_interval_s": 0, "spark_master": "local[2]"}
    settings |= {"replay_backlog_max": 10 * EVENTS}
    partial = []
    async with Fleet(topology, tmp_path, workers=0, **settings) as fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url, path="/version")
        partitions = await wait_for(server.url, namespace="rm:", count=3, patience_s=9)
        ids = await a_past(http, fleet.url)
        body = {"to_queue": "late", "rate": 600}
        async with http.post(f"{fleet.url}/replays", json=body, headers=basic(ROOT_KEY)) as answer:
            assert answer.status == 202, await answer.text()
            where = f"{fleet.url}/replays/{(await answer.json())['id']}"
        for _ in range(KILLS):
            before = len(await held(partitions))
            pipeline = Process("pipeline", "pipeline", "run", environment=fleet.environment, logs=tmp_path)
            await pipeline.start()
            async with asyncio.timeout(400):
                while len(await held(partitions)) <= before:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(random.uniform(0.0, 3.0))
            for pid in [*children(pipeline.pid), pipeline.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            await pipeline.kill()
            partial.append(len(await held(partitions)))
        last = Process("last", "pipeline", "run", environment=fleet.environment, logs=tmp_path)
        await last.start()
        async with asyncio.timeout(400):
            while (shown := await _shown(http, where))["state"] == "running":
                await asyncio.sleep(0.5)
        await last.stop()
        got = await held(partitions)
        others = [await partition.command("HLEN", partition.key("queue:data:other")) for partition in partitions.all]
        await partitions.close()
    await server.stop()

    assert (shown["state"], shown["sent"], shown["total"]) == ("done", EVENTS, EVENTS), shown
    assert Counter(event.id for event in got) == Counter(ids)
    for tenant in range(TENANTS):
        assert [event.t for event in got if event.tenant == f"t{tenant}"] == list(range(tenant, EVENTS, TENANTS))
    assert others == [0, 0, 0]
    assert sum(0 < count < EVENTS for count in partial) > KILLS // 2, f"kills came at {partial}"


async def _shown(http: aiohttp.ClientSession, where: str) -> dict[str, object]:
    async with http.get(where, headers=basic(ROOT_KEY)) as answer:
        return dict(await answer.json())
