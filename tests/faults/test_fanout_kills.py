"""Kill -9 of workers that make copies for a thousand queues: each gets every accepted event exactly once, in order.

What must hold in any order: the numbers of a queue's events are those that were accepted, each once; nothing is left.
"""

import asyncio
import random
from pathlib import Path

import aiohttp
import msgspec
import pytest

from conftest import Topology
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store.partitions import Partition, wait_for
from harness import ROOT_KEY, an_event, basic, save_queues, until_ready
from processes import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUEUES = 1000
KILLS = 5
REQUESTS = 6
EVENTS = 10


async def test_a_thousand_queues_get_each_event_once_when_workers_are_killed(one: Topology, tmp_path: Path):
    await one.clear()
    fleet = Fleet(one, tmp_path, workers=2, worker_dead_s=1)
    async with fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url)
        async with http.post(f"{fleet.url}/api_tokens", json={"name": "ann"}, headers=basic(ROOT_KEY)) as response:
            secret = (await response.json())["token"]
        async with http.get(f"{fleet.url}/api_tokens", headers=basic(ROOT_KEY)) as response:
            [ann] = [token["token"] for token in await response.json() if token["name"] == "ann"]
        home = (await wait_for(one.url, namespace="rm:", count=1, patience_s=9)).home
        await save_queues(home, [RegisteredQueue(f"q{n}", ann, (".*",)) for n in range(QUEUES)])
        for first in range(0, REQUESTS * EVENTS, EVENTS):
            body = [an_event(first + n) for n in range(EVENTS)]
            async with http.post(f"{fleet.url}/events", json=body, headers=basic(secret)) as response:
                assert response.status == 202, await response.text()
        killed_amid = 0
        for kill in range(KILLS):
            await asyncio.sleep(random.uniform(0.05, 0.3))
            killed_amid += bool(await left(home))
            for worker in fleet.workers if kill % 2 else fleet.workers[:1]:
                await worker.kill()
                await worker.start()
        async with asyncio.timeout(120):
            while await left(home):
                await asyncio.sleep(0.1)

        assert killed_amid
        for n in range(QUEUES):
            assert await numbers_in(home, f"q{n}") == list(range(REQUESTS * EVENTS))


async def left(home: Partition) -> object:
    return await home.command("SMEMBERS", home.key("fanout:lines"))


async def numbers_in(home: Partition, queue: str) -> list[int]:
    """The numbers of the events in a queue, in the order of their ids there."""
    flat = await home.command("HGETALL", home.key(f"queue:data:{queue}"))
    ordered = sorted(zip(flat[0::2], flat[1::2], strict=True), key=lambda pair: int(pair[0].split(b"-")[1]))
    return [int(msgspec.json.decode(text)["url"].rpartition("/")[2]) for _, text in ordered]
