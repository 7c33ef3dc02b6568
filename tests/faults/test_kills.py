"""Kill -9, again and again in mid-load, with a ledger: every event answered 2xx is delivered, and nothing is left over.

What must hold in any order: accepted ⊆ delivered, and all gauges end at zero. Repeats are allowed.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from cluster import ClusterOfThree
from conftest import Topology
from doubledecker.store import batches, counters, dead_letters, jobs, receivers
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partition, Partitions, wait_for
from harness import ROOT_KEY, an_event, basic, until_ready
from processes import Fleet
from receiver import Receiver
from worker.test_ordered import check_order, some_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KILLS = 20
PUBLISHERS = 4
SHAPES = ["one", "three", "cluster"]


@dataclass
class Ledger:
    """What was answered 2xx, and what was on its way at each kill."""

    accepted: set[str] = field(default_factory=set)
    under_way: int = 0
    in_flight_at_kills: list[int] = field(default_factory=list)


@dataclass
class Ground:
    """A store of our own that can be killed: a server, or the nodes of a cluster."""

    topology: Topology
    servers: tuple[EmbeddedServer, ...]


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_accepted_event_is_lost_when_web_is_killed(shape: str, tmp_path: Path):
    async with a_ground(shape, tmp_path) as ground, a_fleet(ground, tmp_path) as fleet:

        async def kill() -> None:
            await fleet.web.kill()
            await fleet.web.start()

        await kill_under_load(ground, fleet, kill)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_accepted_event_is_lost_when_workers_are_killed(shape: str, tmp_path: Path):
    async with a_ground(shape, tmp_path) as ground, a_fleet(ground, tmp_path) as fleet:

        async def kill() -> None:
            victim = random.choice(fleet.workers)
            await victim.kill()
            await victim.start()

        await kill_under_load(ground, fleet, kill)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_accepted_event_is_lost_when_valkey_is_killed(shape: str, tmp_path: Path):
    async with a_ground(shape, tmp_path) as ground, a_fleet(ground, tmp_path) as fleet:

        async def kill() -> None:
            victim = random.choice(ground.servers)
            victim.kill()
            await victim.wait()
            await victim.restart()

        await kill_under_load(ground, fleet, kill)


async def test_with_one_permit_order_holds_though_workers_are_killed(tmp_path: Path):
    """What the dead had in hand comes again, before all that is behind it."""
    async with (
        a_ground("one", tmp_path) as ground,
        a_fleet(ground, tmp_path) as fleet,
        aiohttp.ClientSession() as http,
        Receiver(delay_s=0.002) as receiver,
    ):
        await until_ready(http, fleet.url)
        [publisher, subscriber] = [await _token(http, fleet, name) for name in ("publisher", "ordered")]
        body = {"topics": ["widgets"], "callback": receiver.url, "timeout": 0, "max": 1, "concurrency": 1}
        async with http.post(f"{fleet.url}/subscription", json=body, headers=basic(subscriber)) as response:
            assert response.status == 204
        accepted: list[str] = []
        for kill in range(8):
            events = [an_event(number) for number in range(150)]
            async with http.post(f"{fleet.url}/events", json=events, headers=basic(publisher)) as response:
                accepted += (await response.json())["ids"]
            await receiver.until_events(len(receiver.events) + random.randrange(20, 120), within_s=30)
            victim = fleet.workers[kill % 2]
            await victim.kill()
            await victim.start()
        await receiver.until(lambda: set(accepted) <= set(receiver.ids), within_s=60)

    assert list(dict.fromkeys(receiver.ids)) == accepted
    assert receiver.in_flight_max == 1
    assert len(receiver.ids) - len(accepted) <= 8


@pytest.mark.parametrize("status", [400, 500])
async def test_order_holds_by_key_beside_poison_though_workers_are_killed(status: int, tmp_path: Path):
    """One event in a hundred is never taken: what is behind it waits, until it is a dead letter; all else goes on."""
    async with (
        a_ground("three", tmp_path) as ground,
        a_fleet(ground, tmp_path) as fleet,
        aiohttp.ClientSession() as http,
        Receiver(delay_s=0.002) as receiver,
    ):
        await until_ready(http, fleet.url)
        [publisher, subscriber] = [await _token(http, fleet, name) for name in ("publisher", "ordered")]
        poison = {f"id-{n}" for n in range(7, 1_600, 100)}
        receiver.plan = lambda _: status if poison & {*receiver.attempted[-1]} else 200
        body = {"topics": ["widgets", "gadgets"], "callback": receiver.url, "timeout": 20, "max": 50}
        body |= {"ordered": True, "retry": [200] * 4}
        async with http.post(f"{fleet.url}/subscription", json=body, headers=basic(subscriber)) as response:
            assert response.status == 204
        events = some_events(1_600)
        for kill in range(8):
            some = events[kill * 200 : kill * 200 + 200]
            async with http.post(f"{fleet.url}/events", json=some, headers=basic(publisher)) as response:
                assert response.status == 202
            await asyncio.sleep(random.uniform(0.05, 0.4))
            victim = fleet.workers[kill % 2]
            await victim.kill()
            await victim.start()
        good = {str(event["id"]) for event in events} - poison
        await receiver.until(lambda: good <= {*receiver.ids}, within_s=120)

    assert not poison & {*receiver.ids}
    check_order(events, receiver.ids, poison)


async def test_poison_is_found_and_pauses_hold_though_workers_are_killed(tmp_path: Path):
    """While batches are split, and events given up: each event is delivered, or is a dead letter."""
    async with (
        a_ground("one", tmp_path) as ground,
        a_fleet(ground, tmp_path) as fleet,
        aiohttp.ClientSession() as http,
        Receiver(delay_s=0.002) as receiver,
    ):
        await until_ready(http, fleet.url)
        [publisher, subscriber] = [await _token(http, fleet, name) for name in ("publisher", "poisoned")]
        poison = {f"id-{n}" for n in range(7, 1_600, 97)}
        receiver.plan = lambda n: (400 if n % 2 else 500) if poison & {*receiver.attempted[-1]} else 200
        body = {"topics": ["widgets"], "callback": receiver.url, "timeout": 50, "max": 100, "retry": [50] * 6}
        async with http.post(f"{fleet.url}/subscription", json=body, headers=basic(subscriber)) as response:
            assert response.status == 204
        for kill in range(8):
            events = [an_event(n, id=f"id-{n}") for n in range(kill * 200, kill * 200 + 200)]
            async with http.post(f"{fleet.url}/events", json=events, headers=basic(publisher)) as response:
                assert response.status == 202
            if kill == 4:
                await _act(http, fleet, subscriber, "pause")
                await asyncio.sleep(0.5)  # calls under way have ended
                seen = receiver.attempts
            await asyncio.sleep(random.uniform(0.05, 0.3))
            victim = fleet.workers[kill % 2]
            await victim.kill()
            await victim.start()
            if kill == 6:
                assert receiver.attempts == seen
                await _act(http, fleet, subscriber, "resume")
        partitions = await wait_for(ground.topology.url, namespace="rm:", count=1, patience_s=9)
        try:
            await _until_empty(partitions)
            [row] = await _get(http, fleet, "/subscribers", subscriber)
            count = (await dead_letters.totals(partitions.home, row["subscriber"])).count
        finally:
            await partitions.close()

    assert set(receiver.ids) == {f"id-{n}" for n in range(1_600)} - poison
    assert count == len(poison)


async def test_what_was_accepted_is_delivered_or_dropped_though_workers_are_killed(tmp_path: Path):
    """A receiver that is too slow for its load, and has a bound; in mid-drop too, each event leaves its batch once."""
    ledger = Ledger()
    async with (
        a_ground("three", tmp_path) as ground,
        a_fleet(ground, tmp_path) as fleet,
        aiohttp.ClientSession() as http,
        Receiver(delay_s=0.1) as slow,
    ):
        await until_ready(http, fleet.url)
        [publisher, subscriber] = [await _token(http, fleet, name) for name in ("publisher", "bounded")]
        body = {"topics": ["widgets"], "callback": slow.url, "timeout": 0, "max": 5, "concurrency": 3}
        body["backlog_max_bytes"] = 10_000
        async with http.post(f"{fleet.url}/subscription", json=body, headers=basic(subscriber)) as response:
            assert response.status == 204
        publishing = [
            asyncio.create_task(_publish_for_ever(http, fleet.url, publisher, ledger, str(n)))
            for n in range(PUBLISHERS)
        ]
        for kill in range(8):
            await _until_flowing(ledger)
            await asyncio.sleep(random.uniform(0.3, 1.2))
            victim = fleet.workers[kill % 2]
            await victim.kill()
            await victim.start()
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        partitions = await wait_for(ground.topology.url, namespace="rm:", count=3, patience_s=9)
        try:
            await _until_empty(partitions)
            [row] = await _get(http, fleet, "/subscribers", subscriber)
            found = Counter[str]()
            for partition in partitions.all:
                found.update(await counters.read(partition))
        finally:
            await partitions.close()

    token = row["subscriber"]
    added, dropped = found[f"events.added:subscriber={token}"], found[f"events.dropped:subscriber={token}"]
    delivered = found[f"delivery.events:subscriber={token},outcome=delivered"]
    assert added >= len(ledger.accepted)
    assert added == delivered + dropped
    assert row["dropped"]["events"] == dropped > 100
    assert len(ledger.accepted - set(slow.ids)) <= dropped


async def _act(http: aiohttp.ClientSession, fleet: Fleet, secret: str, action: str) -> None:
    async with http.post(f"{fleet.url}/subscriber/{action}", headers=basic(secret)) as response:
        assert response.status == 200


async def _get(http: aiohttp.ClientSession, fleet: Fleet, path: str, secret: str) -> list[dict[str, str]]:
    async with http.get(fleet.url + path, headers=basic(secret)) as response:
        return await response.json()


async def kill_under_load(ground: Ground, fleet: Fleet, kill: Callable[[], Awaitable[None]]) -> None:
    """Publish without pause, kill at random moments, then wait for the rest and compare."""
    ledger = Ledger()
    async with aiohttp.ClientSession() as http, Receiver(delay_s=0.02) as steady, Receiver(plan=_flaky) as flaky:
        secret = await _prepared(http, fleet, steady, flaky)
        partitions = await wait_for(
            ground.topology.url, namespace="rm:", count=ground.topology.partitions, patience_s=9
        )
        publishing = [
            asyncio.create_task(_publish_for_ever(http, fleet.url, secret, ledger, str(n))) for n in range(PUBLISHERS)
        ]
        for _ in range(KILLS):
            await _until_flowing(ledger)
            await asyncio.sleep(random.uniform(0.05, 0.6))
            ledger.in_flight_at_kills.append(ledger.under_way + len(ledger.accepted - set(steady.ids)))
            await kill()
        await until_ready(http, fleet.url)
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)

        try:
            await steady.until(lambda: ledger.accepted <= set(steady.ids), within_s=60)
            await flaky.until(lambda: ledger.accepted <= set(flaky.ids), within_s=60)
            await _until_empty(partitions)
        except TimeoutError:
            missing = [len(ledger.accepted - set(receiver.ids)) for receiver in (steady, flaky)]
            pytest.fail(f"{missing} events are missing; left in the store: {await _left(partitions)}")
        finally:
            await partitions.close()
    assert len(ledger.accepted) > 100
    assert sum(count > 0 for count in ledger.in_flight_at_kills) > KILLS // 2


def _flaky(number: int) -> int | str:
    return {0: 500, 5: "cut"}.get(number % 9, 200)


async def _prepared(http: aiohttp.ClientSession, fleet: Fleet, steady: Receiver, flaky: Receiver) -> str:
    await until_ready(http, fleet.url)
    secrets = {}
    for name in ("publisher", "steady", "flaky"):
        secrets[name] = await _token(http, fleet, name)
    for name, receiver, timeout in (("steady", steady, 0), ("flaky", flaky, 30)):
        body = {"topics": ["widgets"], "callback": receiver.url, "timeout": timeout, "max": 50}
        async with http.post(f"{fleet.url}/subscription", json=body, headers=basic(secrets[name])) as response:
            assert response.status == 204
    return str(secrets["publisher"])


async def _token(http: aiohttp.ClientSession, fleet: Fleet, name: str) -> str:
    async with http.post(f"{fleet.url}/api_tokens", json={"name": name}, headers=basic(ROOT_KEY)) as response:
        return str((await response.json())["token"])


async def _publish_for_ever(http: aiohttp.ClientSession, url: str, secret: str, ledger: Ledger, name: str) -> None:
    for number in itertools.count():
        events = [an_event(number, tenant=f"tenant-{name}-{i}") for i in range(5)]
        ledger.under_way += 1
        try:
            async with http.post(f"{url}/events", json=events, headers=basic(secret)) as response:
                if response.status == 202:
                    ledger.accepted.update((await response.json())["ids"])
                else:
                    assert response.status == 503, await response.text()
        except aiohttp.ClientError:
            await asyncio.sleep(0.02)
        finally:
            ledger.under_way -= 1
        await asyncio.sleep(0.005)


async def _until_flowing(ledger: Ledger) -> None:
    """Events are being accepted again: a kill while nothing flows would prove nothing."""
    before = len(ledger.accepted)
    async with asyncio.timeout(30):
        while len(ledger.accepted) == before:
            await asyncio.sleep(0.01)


async def _until_empty(partitions: Partitions) -> None:
    """Every gauge is zero, no delivery job is left in any state, and no permit is taken."""
    async with asyncio.timeout(30):
        for partition in partitions.all:
            while True:
                events, waiting = await batches.gauges(partition)
                counts = await jobs.counts(partition)
                left = counts["main", "index"] + await _taken(partition, list(events))
                if not any(events.values()) and not any(waiting.values()) and left == 0:
                    break
                await asyncio.sleep(0.05)


async def _taken(partition: Partition, tokens: list[str]) -> int:
    """Permits that are taken, and receivers that stand somewhere though nothing is due for them."""
    states = (await receivers.states(partition, tokens)).values()
    return sum(state.calls + state.seat for state in states)


async def _left(partitions: Partitions) -> list[tuple[str, object]]:
    """What the store still holds of jobs, for the failure's message."""
    found: list[tuple[str, object]] = []
    reads = {b"list": ["LRANGE", 0, -1], b"set": ["SMEMBERS"], b"zset": ["ZRANGE", 0, -1, "WITHSCORES"]}
    for partition in partitions.all:
        for pattern in ("jobs:*", "subscriber:*"):
            for key in await partition.command("KEYS", partition.key(pattern).replace("{", "?").replace("}", "?")):
                kind = await partition.command("TYPE", key)
                if kind in reads:
                    word, *rest = reads[kind]
                    found.append((key.decode(), await partition.command(word, key, *rest)))
    return found


@asynccontextmanager
async def a_ground(shape: str, directory: Path) -> AsyncIterator[Ground]:
    if shape == "cluster":
        cluster = await ClusterOfThree.start(directory / "cluster")
        urls = tuple(node.url for node in cluster.nodes)
        yield Ground(Topology("cluster", ",".join(urls), 3, urls), cluster.nodes)
        await cluster.stop()
        return
    server = await EmbeddedServer.start(directory / "valkey")
    yield Ground(Topology(shape, server.url, 3 if shape == "three" else 1, (server.url,)), (server,))
    await server.stop()


@asynccontextmanager
async def a_fleet(ground: Ground, directory: Path) -> AsyncIterator[Fleet]:
    settings = {"worker_dead_s": 1, "backoff_base_ms": 20, "backoff_cap_ms": 200}
    async with Fleet(
        ground.topology, directory, workers=2, delivery_timeout_s=2, log_level="warning", **settings
    ) as fleet:
        yield fleet
