"""Search: lake and journal are one, and an event is found once wherever it is."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.errors import BadRequest
from doubledecker.model.queue import Queue
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller
from doubledecker.pipeline import life, search
from doubledecker.pipeline.reading import Access
from doubledecker.pipeline.search import Ground, Wanted
from doubledecker.store import extents
from doubledecker.store.queues import Held
from errands import Desk
from feed import a_feed
from harness import a_bus, an_event
from lakes import Lake, a_lake
from receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def find(lake: Lake, **wanted: object) -> list[dict[str, object]]:
    ground = Ground(lake.spark, lake.access, lake.root)
    return await asyncio.to_thread(search.events, ground, Wanted(**wanted))


async def test_what_has_landed_and_what_has_not_is_found_once(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        nothing = await find(mine)
        await feed.publish(60, call=10)
        fresh = await find(mine)
        await mine.land()
        landed = await find(mine)
        await feed.publish(30, call=10)
        both = await find(mine)
        few = await find(mine, limit=7)

    assert nothing == []
    assert sorted(str(row["id"]) for row in fresh) == sorted(str(row["id"]) for row in landed)
    assert sorted(str(row["id"]) for row in both) == feed.ids
    assert [row["at"] for row in both] == sorted(str(row["at"]) for row in both)
    assert few == both[:7]


async def test_time_topic_tenant_and_condition_narrow_it(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(60, call=10)
        await mine.land()
        await feed.publish(60, call=10)
        whole = await find(mine, limit=1000)
        middle = str(whole[60]["at"])

        assert await find(mine, start=middle) == [row for row in whole if str(row["at"]) >= middle]
        assert await find(mine, end=middle) == [row for row in whole if str(row["at"]) < middle]
        assert await find(mine, topic="orders", tenant="tenant-2") == [
            row for row in whole if (row["topic"], row["tenant"]) == ("orders", "tenant-2")
        ]
        assert await find(mine, where="key = 'key-3' or timestamp < 4") == [
            row for row in whole if row["key"] == "key-3" or int(str(row["timestamp"])) < 4
        ]
        for wanted, told in (
            ({"where": "nonsense = 1"}, "it is SQL on partition, entry"),
            ({"where": "key = ("}, "cannot be used"),
            ({"start": "yesterday"}, "write it like"),
            ({"topic": "a' or '1' = '1"}, "letters, digits"),
        ):
            with pytest.raises(BadRequest, match=told):
                await find(mine, **wanted)


async def test_an_events_life_is_its_acceptance_and_every_attempt(spark: SparkSession, one: Topology, tmp_path: Path):
    async with Receiver(plan=lambda number: 503 if number == 1 else 200) as receiver, a_bus(one) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(await bus.token("mailer"), receiver.url, "widgets", timeout=0)
        [id_] = await bus.publish(secret, [an_event(1)])
        async with asyncio.timeout(20):
            while (await extents.read(bus.partitions.home, "attempts")).entries < 2:
                await asyncio.sleep(0.02)
        ground = Ground(spark, Access(one.url, "rm:", 1), str(tmp_path / "lake"))
        known = await asyncio.to_thread(life.look, ground, id_)
        stranger = await asyncio.to_thread(life.look, ground, "nobody")

    assert [row["id"] for row in known["events"]] == [id_]
    assert [(row["attempt"], row["outcome"], row["status"]) for row in known["attempts"]] == [
        (1, "refused", 503),
        (2, "delivered", 200),
    ]
    assert stranger == {"events": [], "attempts": [], "waiting": [], "replays": []}


async def test_an_events_life_has_where_it_waits_its_dead_letters_and_its_replays(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        root = Caller("", "root", is_root=True)
        for name in ("waits", "dies", "again"):
            pattern = "no:no:no" if name == "again" else ".*:orders:.*"
            await feed.bus.registry.register_queue(Queue(name, "", (pattern,), attempts_max=1), caller=root)
        token = await feed.bus.registry.create_token("mailer", "secret-of-the-mailer", now_ms=0)
        await feed.bus.registry.subscribe(token.id, Subscription(["orders"], "https://example.org/"))
        [event, other] = await feed.publish(2, topic="orders")
        dying = feed.bus.registry.snapshot.queues["dies"]
        for message in (await feed.bus.rings.pull(dying, most=2)).messages:
            await feed.bus.rings.nack(dying, [Held(message.id, message.attempt)], why="no good")
        await Desk(mine, topology).replay(to_queue="again", where="timestamp = 0")
        ground = Ground(spark, mine.access, mine.root)
        known = await asyncio.to_thread(life.look, ground, event.id)
        plain = await asyncio.to_thread(life.look, ground, other.id)

    def places(life_: dict[str, list[dict[str, object]]]) -> list[tuple[object, object]]:
        return sorted((row["kind"], row["name"]) for row in life_["waiting"])

    assert places(known) == [("batch", token.id), ("dead", "dies"), ("queue", "again"), ("queue", "waits")]
    assert places(plain) == [("batch", token.id), ("dead", "dies"), ("queue", "waits")]
    assert [row["why"] for row in known["waiting"] if row["kind"] == "dead"] == ["no good"]
    assert [(row["target"], row["name"], row["state"]) for row in known["replays"]] == [("queue", "again", "done")]
    assert plain["replays"] == []
