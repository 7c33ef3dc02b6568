"""Kill -9 of workers and watches that push a queue, and of their Valkey, in mid-flow, with a ledger: every
event answered 2xx reaches the receiver.

What must hold in any order: accepted ⊆ delivered, and the queue ends empty, with no lease, permit or dead letter left
over. Repeats are allowed.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from conftest import Topology
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions, wait_for
from harness import ROOT_KEY, an_event, basic, quick_settings, until_ready
from processes import Fleet
from receiver import Receiver
from watching import a_queue, register, until_empty, watching

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 10
LEASE_S = 1.0
# Four processes that start at once on a busy machine.
START_S = 60.0


@dataclass
class Ledger:
    """What was answered 2xx, and how much of it was not yet delivered at each kill."""

    accepted: set[str] = field(default_factory=set)
    open_at_kills: list[int] = field(default_factory=list)


@pytest.mark.parametrize("shape", ["one", "three"])
async def test_no_message_is_lost_when_those_that_push_it_are_killed(shape: str, tmp_path: Path):
    async with Receiver(delay_s=0.02) as receiver:
        await kill_under_load(shape, tmp_path, receiver, _kill_one)


@pytest.mark.parametrize("shape", ["one", "three"])
async def test_no_message_is_lost_when_valkey_is_killed_under_a_watch(shape: str, tmp_path: Path):
    async with Receiver(delay_s=0.02) as receiver:
        await kill_under_load(shape, tmp_path, receiver, _kill_valkey)


async def test_a_killed_worker_is_replaced_by_a_watch_within_seconds(one: Topology, tmp_path: Path):
    """It held a batch and the only permit: another delivers the batch once its lease has ended."""
    await one.clear()
    async with Receiver(plan=lambda n: "hang" if n == 1 else 200) as receiver:
        queue = a_queue(receiver.url, concurrency=1)
        await register(quick_settings(one), queue)
        async with _fleet(one, tmp_path, watches=0) as fleet, aiohttp.ClientSession() as http:
            await until_ready(http, fleet.url, within_s=START_S)
            ids = await _publish(http, fleet.url, await _publisher(http, fleet.url), [an_event(1), an_event(2)])
            await receiver.until_attempts(1, within_s=START_S)
            async with watching(quick_settings(one, watch_lease_s=LEASE_S)):
                await asyncio.sleep(LEASE_S)
                killed_at = asyncio.get_running_loop().time()
                await fleet.workers[0].kill()
                await receiver.until_events(2, within_s=20)

        assert receiver.attempts == 2
        assert receiver.ids == ids
        # The lease, the longest sleep without a look, and what a busy machine adds.
        assert receiver.batches[0].at - killed_at < LEASE_S + 2 + 1


async def kill_under_load(
    shape: str, directory: Path, receiver: Receiver, kill: Callable[[Fleet, EmbeddedServer], Awaitable[None]]
) -> None:
    """Publish without pause, kill at random moments, then wait for the rest and compare."""
    server = await EmbeddedServer.start(directory / "valkey")
    topology = Topology(shape, server.url, 3 if shape == "three" else 1, (server.url,))
    queue = a_queue(receiver.url, max_events=20, timeout_ms=10, concurrency=3, attempts_max=1_000)
    await register(quick_settings(topology), queue)
    ledger = Ledger()
    async with _fleet(topology, directory, watches=1) as fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url, within_s=START_S)
        secret = await _publisher(http, fleet.url)
        publishing = asyncio.create_task(_publish_for_ever(http, fleet.url, secret, ledger))
        for _ in range(KILLS):
            before = len(receiver.batches)
            await receiver.until(lambda before=before: len(receiver.batches) > before + 3, within_s=START_S)
            await asyncio.sleep(random.uniform(0.05, 0.4))
            ledger.open_at_kills.append(len(ledger.accepted - set(receiver.ids)))
            await kill(fleet, server)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)

        partitions = await wait_for(topology.url, namespace="rm:", count=topology.partitions, patience_s=9)
        await receiver.until(lambda: ledger.accepted <= set(receiver.ids), within_s=60)
        view = await until_empty(partitions, queue, within_s=30)
        await _until_no_permit(partitions, queue)
        await partitions.close()
    await server.stop()

    assert (view.in_flight, view.delayed, view.dead) == (0, 0, 0)
    assert len(ledger.accepted) > 100
    assert sum(count > 0 for count in ledger.open_at_kills) > KILLS // 2


async def _kill_one(fleet: Fleet, _: EmbeddedServer) -> None:
    victim = random.choice([*fleet.workers, *fleet.watches])
    await victim.kill()
    await victim.start()


async def _kill_valkey(_: Fleet, server: EmbeddedServer) -> None:
    server.kill()
    await server.wait()
    await server.restart()


async def _until_no_permit(partitions: Partitions, queue: RegisteredQueue) -> None:
    """The permits of the dead end by themselves."""
    keeper = partitions.keeper(queue.receiver.token)
    async with asyncio.timeout(10):
        while await keeper.command(
            "ZCOUNT", keeper.key(f"permits:{queue.receiver.token}"), await keeper.time_ms(), "+inf"
        ):
            await asyncio.sleep(0.05)


def _fleet(topology: Topology, logs: Path, *, watches: int) -> Fleet:
    quick = {"backoff_base_ms": 20, "backoff_cap_ms": 200, "delivery_timeout_s": 2, "log_level": "warning"}
    return Fleet(topology, logs, workers=1, watches=watches, watch_lease_s=LEASE_S, **quick)


async def _publisher(http: aiohttp.ClientSession, url: str) -> str:
    async with http.post(f"{url}/api_tokens", json={"name": "shop"}, headers=basic(ROOT_KEY)) as response:
        return str((await response.json())["token"])


async def _publish(http: aiohttp.ClientSession, url: str, secret: str, events: list[dict[str, object]]) -> list[str]:
    async with http.post(f"{url}/events", json=events, headers=basic(secret)) as response:
        assert response.status in {202, 503}, await response.text()
        return list((await response.json())["ids"]) if response.status == 202 else []


async def _publish_for_ever(http: aiohttp.ClientSession, url: str, secret: str, ledger: Ledger) -> None:
    for number in itertools.count():
        events = [an_event(number, tenant=f"tenant-{i}") for i in range(5)]
        try:
            ledger.accepted.update(await _publish(http, url, secret, events))
        except aiohttp.ClientError:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.01)
