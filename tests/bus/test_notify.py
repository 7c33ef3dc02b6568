"""Redis channels, heard by plain Redis clients: every accepted event once, after it is written, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis.asyncio as redis
from redis.asyncio.client import PubSub

from conftest import Topology
from doubledecker.store import journal
from harness import TestBus, a_bus, an_event, basic

TENANTS = [f"tenant-{n}" for n in range(6)]


@asynccontextmanager
async def a_listener(url: str, *, pattern: str = "", channel: str = "") -> AsyncIterator[PubSub]:
    async with redis.from_url(url) as client, client.pubsub() as heard:
        await (heard.psubscribe(pattern) if pattern else heard.subscribe(channel))
        assert await heard.get_message(timeout=5) is not None
        yield heard


async def told(heard: PubSub, count: int, *, within_s: float = 20.0) -> list[tuple[str, dict[str, object]]]:
    """The next messages, each with its channel."""
    found = []
    async with asyncio.timeout(within_s):
        while len(found) < count:
            message = await heard.get_message(timeout=1)
            if message is not None:
                found.append((message["channel"].decode(), msgspec.json.decode(message["data"])))
    return found


async def nothing_more(bus: TestBus, secret: str, heard: PubSub) -> None:
    """A last event is the very next that is heard: so nothing was told twice, or that should not have been."""
    [last] = await bus.publish(secret, [an_event(0, "page", tenant=TENANTS[0])])
    assert [event["id"] for _, event in await told(heard, 1)] == [last]


async def test_a_pattern_on_any_server_hears_each_accepted_event_once(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("publisher")
        async with a_listener(topology.node_urls[-1], pattern="*:page:*") as heard:
            ids: list[str] = []
            for n in range(20):
                ids += await bus.publish(secret, [an_event(n, "page", tenant=t, type="viewed") for t in TENANTS])
                await bus.publish(secret, [an_event(n, "order", tenant=t) for t in TENANTS])
            messages = await told(heard, len(ids))
            await nothing_more(bus, secret, heard)

    assert sorted(str(event["id"]) for _, event in messages) == sorted(ids)
    assert {channel for channel, _ in messages} == {f"{tenant}:page:viewed" for tenant in TENANTS}
    for tenant in TENANTS:
        mine = [event["url"] for _, event in messages if event.get("tenant") == tenant]
        assert mine == [f"https://example.org/{n}" for n in range(20)]


async def test_a_channel_is_heard_without_any_pattern(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("publisher")
        async with a_listener(topology.node_urls[0], channel="default:page:update") as heard:
            ids = await bus.publish(secret, [an_event(1, "page"), an_event(2, "page", tenant="other")])
            messages = await told(heard, 1)

    assert [(channel, event["id"]) for channel, event in messages] == [("default:page:update", ids[0])]


async def test_repeats_and_refused_events_are_not_told(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret, other = await bus.token("publisher"), await bus.token("other")
        await bus.publish(other, [an_event(0, "taken")])
        async with a_listener(topology.node_urls[0], pattern="*") as heard:
            for _ in range(3):
                await bus.publish(secret, [an_event(1, "page", id="once"), an_event(1, "taken")])
            messages = await told(heard, 1)
            await nothing_more(bus, secret, heard)

    assert [event["id"] for _, event in messages] == ["once"]


async def test_what_a_full_queue_refuses_is_not_told(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("publisher")
        body = {"pattern": "full:.*", "max_length": 1, "overflow": "refuse"}
        async with bus.http.put(f"{bus.url}/queues/small", json=body, headers=basic(secret)) as response:
            assert response.status < 300, await response.text()
        async with a_listener(topology.node_urls[0], pattern="*") as heard:
            ids = await bus.publish(secret, [an_event(n, "page", tenant="full") for n in range(3)])
            messages = await told(heard, 1)
            await nothing_more(bus, secret, heard)

    assert len(ids) == 1
    assert [event["id"] for _, event in messages] == ids


async def test_what_is_told_is_what_the_journal_holds_and_is_already_there(one: Topology):
    async with a_bus(one, workers=0) as bus, a_listener(one.url, pattern="*") as heard:
        secret = await bus.token("publisher")
        publishing = asyncio.create_task(bus.publish(secret, [an_event(7, "page", data={"n": 1.50})]))
        async with asyncio.timeout(10):
            while (message := await heard.get_message(timeout=1)) is None:
                pass
        partition = bus.partitions.home
        [entry] = await journal.read(partition, "events")
        await publishing

    assert [message["data"]] == [line for _, line in entry.fields]


@pytest.mark.parametrize(("notify", "is_told"), [("always", True), ("never", False)])
async def test_a_setting_tells_always_or_never(one: Topology, notify: str, is_told: bool):
    async with a_bus(one, workers=0, notify=notify) as bus, redis.from_url(one.url) as client:
        secret = await bus.token("publisher")
        async with a_listener(one.url, pattern="*"):
            await client.config_resetstat()
            await bus.publish(secret, [an_event(n, "page") for n in range(5)])
            await bus.publish(secret, [an_event(n, "page") for n in range(5)])
            async with asyncio.timeout(10):
                while is_told and await calls(client, "publish") < 10:
                    await asyncio.sleep(0.01)

        assert await calls(client, "publish") == (10 if is_told else 0)
        assert await calls(client, "pubsub|numpat") == 0


async def test_nothing_is_sent_while_nobody_listens(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("publisher")
        for url in topology.node_urls:
            async with redis.from_url(url) as client:
                await client.config_resetstat()
        for n in range(5):
            await bus.publish(secret, [an_event(n, "page", tenant=t) for t in TENANTS])
        sent = 0
        for url in topology.node_urls:
            async with redis.from_url(url) as client:
                sent += await calls(client, "publish")

    assert sent == 0


async def test_what_was_accepted_before_a_stop_is_told(one: Topology):
    async with a_listener(one.url, pattern="*") as heard:
        async with a_bus(one, workers=0) as bus:
            ids = await bus.publish(await bus.token("publisher"), [an_event(n, "page") for n in range(2000)])
        messages = await told(heard, len(ids))

    assert [event["id"] for _, event in messages] == ids


async def calls(client: redis.Redis, command: str) -> int:
    """How often a server has run a command since its counts were reset, or since its start."""
    stats = await client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
