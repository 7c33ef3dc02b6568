"""Direct replay: from the lake to a subscriber's callback, past Redis, in order by key, and nothing is left out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conftest import Topology
from doubledecker.errors import BadRequest
from doubledecker.model import moment
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.subscriber import Subscription
from doubledecker.store import batches, losses
from doubledecker.worker.backlog_bounds import BacklogBounds
from feed import Feed, a_feed
from lakes import Lake, a_lake
from receiver import Receiver
from replays import Desk
from web.asking import waiting as held

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def a_past(spark: SparkSession, feed: Feed, folder: Path) -> Lake:
    """200 events in the lake, and 50 in the journal that have not landed."""
    mine = await a_lake(spark, feed, folder)
    await feed.publish(200, call=7)
    await mine.land()
    await feed.publish(50, call=7)
    return mine


async def subscriber(
    feed: Feed, receiver: Receiver, *, max_: int = 10, topics: Sequence[str] = (), **fields: int
) -> str:
    token = await feed.bus.registry.clients.create("late", "secret-of-late", now_ms=0)
    await feed.bus.registry.subscriptions.put(token.id, Subscription(list(topics), receiver.url, max=max_, **fields))
    return token.id


def by_key(events: Iterable[tuple[object, object]]) -> dict[object, list[object]]:
    found = defaultdict(list)
    for key, number in events:
        found[key].append(number)
    return dict(found)


def received(receiver: Receiver) -> dict[object, list[object]]:
    return by_key(((event["tenant"], event["key"]), event["t"]) for event in receiver.events)


def published(events: list[AcceptedEvent]) -> dict[object, list[object]]:
    return by_key(((event.tenant, event.key), event.t) for event in events)


async def waiting(feed: Feed) -> int:
    return sum([sum((await batches.gauges(partition))[0].values()) for partition in feed.bus.partitions.all])


async def test_all_that_fits_arrives_in_order_and_marked_and_nothing_waits_in_redis(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed, Receiver() as late:
        mine = await a_past(spark, feed, tmp_path)
        await subscriber(feed, late)
        done = await Desk(mine, topology).replay(to_subscriber="late", topic="orders", direct=True)

        sent = [event for event in feed.events if event.topic == "orders"]
        assert (done.state, done.total, done.done) == ("done", len(sent), len(sent))
        assert received(late) == published(sent)
        assert {event["replay"] for event in late.events} == {done.id}
        assert max(len(batch.events) for batch in late.batches) <= 10
        assert await waiting(feed) == 0


async def test_what_a_bound_has_dropped_comes_back_by_the_time_that_is_kept(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    """From the lake and from the journal; what still waited is sent too, and marked."""
    async with a_feed(topology) as feed, Receiver() as late:
        mine, bus = await a_lake(spark, feed, tmp_path), feed.bus
        token = await subscriber(feed, late, topics=["orders"], backlog_max_bytes=3_000, timeout=0)
        await feed.publish(250, call=7)
        await BacklogBounds(bus.partitions, bus.registry).enforce()
        await mine.land()
        await feed.publish(30, call=7)
        kept = [await losses.of_subscribers(partition, [token]) for partition in bus.partitions.all]
        lost = losses.total([each for found in kept for each in found.get(token, ())])
        assert lost is not None
        left = {event["id"] for event in await held(bus)}
        start, end = (moment.to_text(moment.from_ms(at_ms)) for at_ms in (lost.from_ms, lost.upto_ms))
        done = await Desk(mine, topology).replay(
            to_subscriber="late", topic="orders", direct=True, start=start, end=end
        )

    orders = {event.id for event in feed.events if event.topic == "orders"}
    assert lost.events == len(orders - left) > 20
    assert done.state == "done"
    assert orders - left <= set(late.ids)


async def test_one_that_fails_for_a_while_holds_it_up_and_then_gets_the_rest(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed, Receiver(plan=lambda number: 500 if 3 <= number <= 5 else 200) as late:
        mine = await a_past(spark, feed, tmp_path)
        await subscriber(feed, late)
        desk = Desk(mine, one, backoff_base_ms=1, backoff_cap_ms=2)
        job = await desk.ask(to_subscriber="late", direct=True)
        while (now := await desk.read(job)).is_active:
            await desk.run()

        assert late.attempts == len(late.batches) + 3
        assert (now.state, now.done) == ("done", len(feed.events))
        assert sorted({str(event["id"]) for event in late.events}) == feed.ids
        # What was not taken came again, in its place.
        assert received(late) == published(feed.events)


async def test_one_that_was_cut_short_goes_on_from_its_ledger(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed, Receiver() as late:
        mine = await a_past(spark, feed, tmp_path)
        await subscriber(feed, late)
        desk = Desk(mine, one)
        job = await desk.ask(to_subscriber="late", direct=True)
        await desk.run()
        delivered = len(late.events)
        # As if the pipeline had died after the last window was posted, and before that was noted.
        counted = await desk.read(job)
        await desk.set(job, state="running", cursor=0, done=0)
        await desk.run()
        again = await desk.read(job)

        assert delivered == len(feed.events) == counted.total
        assert len(late.events) == delivered
        assert (again.state, again.done) == ("done", counted.total)


async def test_only_a_subscriber_can_be_replayed_to_directly(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)

        with pytest.raises(BadRequest, match="direct goes to a subscriber alone"):
            await Desk(mine, one).ask(to_queue="all", direct=True)
