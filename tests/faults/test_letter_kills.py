"""Kill -9 of workers while they redrive dead letters: each is sent again, none is lost, and the job counts each once.

What must hold in any order: letters, events that wait and events that were delivered are together all there were.
"""

import asyncio
import random
from pathlib import Path

import aiohttp
import pytest

from conftest import Topology
from doubledecker.store.partitions import Partition, wait_for
from harness import ROOT_KEY, basic, until_ready
from letters import a_letter, keep
from processes import Fleet
from receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LETTERS = 3_000
KILLS = 4


async def test_a_job_redrives_each_letter_when_its_workers_are_killed(one: Topology, tmp_path: Path):
    await one.clear()
    fleet = Fleet(one, tmp_path, workers=2, worker_dead_s=1)
    async with fleet, aiohttp.ClientSession() as http, Receiver() as receiver:
        await until_ready(http, fleet.url)
        async with http.post(f"{fleet.url}/api_tokens", json={"name": "ann"}, headers=basic(ROOT_KEY)) as response:
            made = await response.json()
        own, token = basic(made["token"]), made["id"]
        asked = {"topics": ["widgets"], "callback": receiver.url, "max": 50, "timeout": 0}
        async with http.post(f"{fleet.url}/subscriber", json=asked, headers=own) as response:
            assert response.status == 204, await response.text()
        home = (await wait_for(one.url, namespace="rm:", count=1, patience_s=9)).home
        await keep(home, [a_letter(n) for n in range(LETTERS)], receiver=token)

        async with http.post(f"{fleet.url}/subscriber/dead/redrive", json={"rate_per_s": 1_000}, headers=own) as answer:
            job = (await answer.json())["id"]
        for kill in range(KILLS):
            await asyncio.sleep(random.uniform(0.1, 0.8))
            # A batch that was delivered is counted by what its settlement removed.
            letters, waiting, removed = await looked_at(home, token)
            assert letters + waiting + removed == LETTERS
            for worker in fleet.workers if kill % 2 else fleet.workers[:1]:
                await worker.kill()
                await worker.start()
        async with asyncio.timeout(60):
            while (await shown(http, f"{fleet.url}/subscriber/dead/jobs/{job}", own))["state"] == "running":
                await asyncio.sleep(0.1)
            while (await looked_at(home, token))[1]:
                await asyncio.sleep(0.1)

        ended = await shown(http, f"{fleet.url}/subscriber/dead/jobs/{job}", own)
        assert (ended["state"], ended["done"], ended["count"]) == ("done", LETTERS, LETTERS)
        assert await looked_at(home, token) == (0, 0, LETTERS)
        assert {*receiver.ids} == {f"e{n}" for n in range(LETTERS)}
        assert {event["redriven"] for event in receiver.events} == {1}
        # A call that was under way at a kill is made again, of four at a time and fifty events each.
        assert len(receiver.ids) <= LETTERS + 2 * KILLS * 4 * 50


async def looked_at(home: Partition, token: str) -> tuple[int, int, int]:
    """Letters, events that wait, and events that were settled: as of one moment."""
    [letters, waiting, removed] = (
        await home.commands(
            [
                ["MULTI"],
                ["ZCARD", home.key(f"dead:index:{token}")],
                ["HGET", home.key("batches:gauges:event"), token],
                ["HGET", home.key("counters"), f"events.removed:subscriber={token}"],
                ["EXEC"],
            ]
        )
    )[-1]
    return int(letters), int(waiting or 0), int(removed or 0)


async def shown(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> dict:
    async with http.get(url, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()
