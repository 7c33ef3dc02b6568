"""Kill -9 of web, of listeners and of Valkey, again and again in mid-load: streams resume with no gap and no repeat.

What must hold in any order: a listener that comes back with the last id it got has, in the end, every event that the
journal has, each once, and those of a tenant in the order of the journal.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from conftest import Topology
from doubledecker.errors import BusAway
from doubledecker.store import journal
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partition, Partitions, wait_for
from faults.test_kills import a_ground
from harness import ROOT_KEY, an_event, basic, until_ready
from processes import Fleet
from streams import a_stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 6
TENANTS = [f"tenant-{n}" for n in range(9)]


@dataclass
class Heard:
    """What a listener was told, over all its lives."""

    last_id: str
    ids: list[str] = field(default_factory=list)
    lives: int = 0


@pytest.mark.parametrize(
    ("victim", "shape"),
    [("web", "one"), ("web", "three"), ("web", "cluster"), ("valkey", "one"), ("valkey", "cluster")],
)
async def test_streams_resume_exactly_when_a_process_is_killed(shape: str, victim: str, tmp_path: Path):
    async with (
        a_ground(shape, tmp_path) as ground,
        Fleet(ground.topology, tmp_path, workers=0) as fleet,
        aiohttp.ClientSession() as http,
    ):
        await until_ready(http, fleet.url, path="/version")
        secret = await _token(http, fleet.url)
        async with a_stream(fleet.url, secret) as stream:
            listeners = [Heard(stream.last_id) for _ in range(3)]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            publishing = [tasks.create_task(_publish(http, fleet.url, secret, t, stop)) for t in TENANTS]
            listening = [tasks.create_task(_listen(fleet.url, secret, heard)) for heard in listeners]
            for _ in range(KILLS):
                await _until_heard_more(listeners)
                await asyncio.sleep(random.uniform(0.0, 0.3))
                await (_kill_valkey(ground.servers) if victim == "valkey" else _kill_web(fleet))
            await _until_heard_more(listeners)
            stop.set()
            await asyncio.gather(*publishing)
            events = await _journaled(ground.topology)
            await _until(lambda: all(len(heard.ids) >= len(events) for heard in listeners))
            for task in listening:
                task.cancel()

    for heard in listeners:
        assert sorted(heard.ids) == sorted(events)
        assert _by_tenant(heard.ids, events) == _by_tenant(list(events), events)
    # Each died several times by its own hand, and web or Valkey under it.
    assert all(heard.lives > KILLS for heard in listeners)


async def _listen(url: str, secret: str, heard: Heard) -> None:
    """Listen for ever; hang up every now and then, and come back after whatever happened."""
    while True:
        try:
            async with a_stream(url, secret, last_id=heard.last_id) as stream:
                heard.lives += 1
                for _ in range(random.randrange(1, 200)):
                    frame = await stream.frame()
                    if frame is None or frame.name == "dropped":
                        break
                    if frame.name == "gap":
                        pytest.fail(f"nothing was trimmed, yet there is a gap: {frame}")
                    heard.ids.append(frame.data["id"])
                    heard.last_id = stream.last_id
        except (aiohttp.ClientError, OSError, AssertionError):
            # Away, or a 503 as long as Valkey is.
            await asyncio.sleep(0.02)


async def _publish(http: aiohttp.ClientSession, url: str, secret: str, tenant: str, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        events = [an_event(number + n, tenant=tenant) for n in range(5)]
        try:
            async with http.post(f"{url}/events", json=events, headers=basic(secret)) as response:
                assert response.status in {202, 503}
        except aiohttp.ClientError:
            await asyncio.sleep(0.02)
        number += 5
        await asyncio.sleep(0.01)


async def _token(http: aiohttp.ClientSession, url: str) -> str:
    async with http.post(f"{url}/api_tokens", json={"name": "client"}, headers=basic(ROOT_KEY)) as response:
        return str((await response.json())["token"])


async def _kill_web(fleet: Fleet) -> None:
    await fleet.web.kill()
    await fleet.web.start()


async def _kill_valkey(servers: tuple[EmbeddedServer, ...]) -> None:
    victim = random.choice(servers)
    victim.kill()
    await victim.wait()
    await victim.restart()


async def _page(partition: Partition, after: str) -> list[journal.JournalEntry]:
    """A cluster may be down for a moment after the node that was killed is back."""
    while True:
        try:
            return await journal.read(partition, "events", after=after, count=1000)
        except BusAway:
            await asyncio.sleep(0.1)


async def _journaled(topology: Topology) -> dict[str, str]:
    """Every event in the journals with its tenant, in order: accepted, or written though the answer was lost."""
    partitions: Partitions = await wait_for(topology.url, namespace="rm:", count=topology.partitions, patience_s=9)
    found: dict[str, str] = {}
    for partition in partitions.all:
        after = "0-0"
        while entries := await _page(partition, after):
            lines = [line for entry in entries for _, value in entry.fields for line in value.split(b"\n")]
            found |= {event["id"]: event["tenant"] for event in map(msgspec.json.decode, lines)}
            after = entries[-1].id
    await partitions.close()
    return found


def _by_tenant(ids: list[str], events: dict[str, str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for id_ in ids:
        found[events[id_]].append(id_)
    return found


async def _until_heard_more(listeners: list[Heard]) -> None:
    before = [len(heard.ids) for heard in listeners]
    await _until(lambda: all(len(heard.ids) > count for heard, count in zip(listeners, before, strict=True)))


async def _until(holds) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
