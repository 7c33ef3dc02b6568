"""Changes of tier while events come in: overlap is allowed, a gap never is."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bulk_ground import Ground, a_ground
from conftest import Topology
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import bulk, registry, subscribers
from harness import an_event, basic
from receiver import Receiver

pytestmark = pytest.mark.slow


@asynccontextmanager
async def publishing(ground: Ground, accepted: list[str]) -> AsyncIterator[None]:
    """Publish without pause while the block runs."""
    over = asyncio.Event()

    async def publish() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            made = [an_event(n, "orders", key=f"k{n}", tenant=f"t{(number + n) % 9}") for n in range(5)]
            accepted.extend(await ground.publish(made))
            await asyncio.sleep(0.005)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        over.set()
        await task


async def test_tiers_change_under_load_and_nothing_is_lost(spark: SparkSession, topology: Topology, tmp_path: Path):
    accepted: list[str] = []
    async with Receiver() as mail, a_ground(spark, topology, tmp_path, workers=1) as ground:
        await ground.subscribe("mail", mail.url, "orders", tier="live", timeout=50)
        async with publishing(ground, accepted):
            for tier in ("bulk", "live", "bulk", "live"):
                await asyncio.sleep(0.3)
                await ground.subscribe("mail", mail.url, "orders", tier=tier)
                await asyncio.sleep(0.3)
                await ground.deliver()
        await ground.until(lambda: set(accepted) <= set(mail.ids))
        # Once bulk delivery is through with what was its own, nothing of it stays.
        async with asyncio.timeout(60):
            while await ground.progress("mail") is not None:
                await ground.deliver()
        kept = await ground.bus.partitions.home.command("SMEMBERS", ground.bus.partitions.home.key("bulk"))
        sent = len(mail.ids)

    assert len(accepted) > 100
    assert set(mail.ids) == set(accepted)
    assert kept == []
    # Only what was accepted around the changes may have come twice.
    assert sent < 2 * len(accepted)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_each_tier_delivers_what_was_accepted_in_its_time(
    spark: SparkSession, one: Topology, tmp_path: Path, partitions: int
):
    """Without a publisher at the moment of the change there is no overlap either."""
    topology = Topology("own", one.url, partitions, one.node_urls)
    async with Receiver() as mail, a_ground(spark, topology, tmp_path, workers=1) as ground:

        async def publish(first: int) -> list[str]:
            tenants = [f"t{n}" for n in range(9)]
            return await ground.publish([an_event(first, "orders", tenant=tenant) for tenant in tenants])

        await ground.subscribe("mail", mail.url, "orders", tier="live", timeout=20)
        live = await publish(0)
        await mail.until_events(9)
        await ground.subscribe("mail", mail.url, "orders")
        in_bulk = await publish(1)
        await ground.subscribe("mail", mail.url, "orders", tier="live")
        waiting = await ground.seen("mail")
        live_again = await publish(2)
        await mail.until_events(18)
        before = set(mail.ids)
        await ground.deliver()
        await ground.deliver()

        assert before == {*live, *live_again}
        assert waiting["events"]["queued"] == 9
        assert sorted(mail.ids) == sorted([*live, *in_bulk, *live_again])
        assert await ground.progress("mail") is None


async def test_bulk_delivery_is_ended_though_whoever_made_the_subscriber_live_died(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, topology, tmp_path, workers=1) as ground:
        await ground.subscribe("mail", mail.url, "orders")
        partitions, token = ground.bus.partitions, await ground.id("mail")
        # The change at home, and nothing after it: neither the version elsewhere nor where bulk delivery ends.
        seen = await registry.version(partitions.home)
        live = Subscriber(token, mail.url, token, ("orders",), timeout_ms=10)
        assert await subscribers.save(partitions.home, live, seen=seen)
        ids = await ground.publish([an_event(n, "orders", tenant=f"t{n}") for n in range(9)])
        await ground.deliver()
        await ground.until(lambda: set(ids) <= set(mail.ids))
        await ground.deliver()

        assert await ground.progress("mail") is None
        versions = [await registry.version(partition) for partition in partitions.all]
        assert len(set(versions)) == 1


async def test_an_end_that_comes_late_does_not_end_a_subscriber_that_is_bulk_again(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders")
        token = await ground.id("mail")

        assert not await bulk.end(ground.bus.partitions, token)
        assert not await bulk.forget(ground.bus.partitions.home, token)
        assert (await ground.progress("mail")).until == {}


async def test_an_unknown_tier_is_refused_and_an_absent_one_stays(spark: SparkSession, one: Topology, tmp_path: Path):
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders")
        await ground.bus.subscribe(await ground.client("mail"), mail.url, "orders")
        url, body = f"{ground.bus.url}/subscription", {"topics": [], "callback": mail.url, "tier": "cheap"}
        async with ground.bus.http.post(url, json=body, headers=basic(await ground.client("mail"))) as response:
            status, text = response.status, await response.text()
        kept = await ground.seen("mail")

    assert kept["tier"] == "bulk"
    assert status == 400
    assert "tier is 'cheap'; it must be live or bulk" in text
