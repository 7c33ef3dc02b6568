"""Replay: one target gets what is asked for, in order and once, and nobody else gets anything."""

import asyncio
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import mixed
from conftest import Topology
from doubledecker.errors import BadRequest, Forbidden, NotFound
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.scopes import ScopesWanted
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller, TokenWanted
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.store import journal, queue_contents
from feed import Feed, a_feed
from harness import ROOT_KEY, a_bus, an_event, basic
from lakes import Lake, a_lake
from receiver import Receiver
from replays import ROOT, Desk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MINE = "https://example.org/"


async def subscriber(feed: Feed, name: str, *topics: str) -> str:
    token = await feed.bus.registry.clients.create(name, f"secret-of-{name}", now_ms=0)
    # All in one batch: those of one millisecond have no order among them.
    await feed.bus.registry.subscriptions.put(token.id, Subscription(list(topics), MINE, timeout=3_600_000, max=10_000))
    return token.id


async def waiting_for(feed: Feed, token: str) -> list[AcceptedEvent]:
    """The events in a subscriber's batches, in the order of each partition."""
    found = []
    for partition in feed.bus.partitions.all:
        bids = await partition.command("ZRANGE", partition.key(f"batches:index:{token}"), 0, -1)
        for bid in bids:
            chunks = await partition.command("LRANGE", partition.key(f"batch:{bid.decode()}"), 4, -1)
            found += [msgspec.json.decode(line, type=AcceptedEvent) for line in b"\n".join(chunks).split(b"\n")]
    return found


async def waiting_in(feed: Feed, name: str) -> list[AcceptedEvent]:
    """The events in a queue, in the order of each facet."""
    found = []
    for partition in feed.bus.partitions.all:
        for tenant in await queue_contents.tenants(partition, name):
            rows = await queue_contents.peek(partition, RegisteredQueue(name, "", ()), tenant, most=10_000)
            found += [msgspec.json.decode(text, type=AcceptedEvent) for _, text in rows]
    return found


async def journaled(feed: Feed) -> int:
    return sum([(await journal.read_extent(partition, "events")).entries for partition in feed.bus.partitions.all])


def by_tenant(events: list[AcceptedEvent]) -> dict[str, list[int]]:
    """The numbers of the events of each tenant, in the order in which they are given."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        found[event.tenant].append(event.t)
    return dict(found)


def wanted(events: list[AcceptedEvent], **fields: str) -> list[AcceptedEvent]:
    return [each for each in events if all(getattr(each, name) == value for name, value in fields.items())]


async def a_past(spark: SparkSession, feed: Feed, folder: Path) -> Lake:
    """120 events in the lake, and 60 in the journal that have not landed."""
    mine = await a_lake(spark, feed, folder)
    await feed.publish(60, call=7)
    await mine.land()
    await feed.publish(60, call=7)
    await mine.land()
    await feed.publish(60, call=7)
    return mine


async def test_a_subscriber_gets_the_past_in_order_and_marked_and_nobody_else_does(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_past(spark, feed, tmp_path)
        late, other = await subscriber(feed, "late"), await subscriber(feed, "other", "orders", "users")
        await feed.bus.registry.register_queue(RegisteredQueue("all", "", (".*",)), caller=ROOT)
        before = await journaled(feed)
        done = await Desk(mine, topology).replay(to_subscriber="late", topic="orders")

        got = await waiting_for(feed, late)
        sent = wanted(feed.events, topic="orders")
        assert (done.state, done.total, done.done) == ("done", len(sent), len(sent))
        assert sum(count for _, _, count in done.counts) == len(sent)
        assert {topic for topic, _, _ in done.counts} == {"orders"}
        assert by_tenant(got) == by_tenant(sent)
        assert {event.replay for event in got} == {done.id}
        plain = sorted((msgspec.structs.replace(event, replay="") for event in got), key=lambda event: event.t)
        assert [msgspec.json.encode(event) for event in plain] == [msgspec.json.encode(event) for event in sent]
        assert await waiting_for(feed, other) == []
        assert await waiting_in(feed, "all") == []
        assert await journaled(feed) == before


async def test_past_events_are_sent_as_they_were_accepted_however_the_journal_keeps_them(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        landed = await mixed.write(feed.bus.partitions.home)
        await mine.land()
        fresh = await mixed.write(feed.bus.partitions.home, first=1001)
        late = await subscriber(feed, "late")
        done = await Desk(mine, one).replay(to_subscriber="late", topic="mixed")
        got = await waiting_for(feed, late)

    assert (done.state, done.done) == ("done", len(landed) + len(fresh))
    plain = [msgspec.json.encode(msgspec.structs.replace(event, replay="")) for event in got]
    assert plain == [each.message for each in landed + fresh]


async def test_workers_deliver_it_to_the_subscriber_alone_with_the_mark_after_all_other_fields(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver() as late, Receiver() as other, a_bus(one) as bus:
        shop = await bus.token("shop")
        ids = await bus.publish(shop, [an_event(n, tenant=f"t{n % 2}", data={"n": n}) for n in range(10)])
        await bus.subscribe(await bus.token("late"), late.url, timeout=0, max=4)
        await bus.subscribe(await bus.token("other"), other.url, "widgets", timeout=0)
        access = Access(one.url, "rm:", 1)
        replayer = Replayer(SparkReadContext(spark, access, str(tmp_path / "lake")), bus.settings)
        answer = await bus.http.post(f"{bus.url}/replays", json={"to_subscriber": "late"}, headers=basic(ROOT_KEY))
        id_ = (await answer.json())["id"]
        while (await asyncio.to_thread(replayer.round)).has_more:
            pass
        await late.until_events(10, within_s=30)
        shown = await bus.get(f"/replays/{id_}")

        assert (shown["state"], shown["sent"], shown["total"]) == ("done", 10, 10)
        assert sorted(late.ids) == sorted(ids)
        assert {list(event)[-1] for event in late.events} == {"replay"}
        assert {event["replay"] for event in late.events} == {id_}
        assert other.attempts == 0


async def test_a_queue_gets_what_fits_and_nobody_else_does(spark: SparkSession, topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_past(spark, feed, tmp_path)
        other = await subscriber(feed, "other", "orders", "users", "clicks")
        for name in ("one", "two"):
            await feed.bus.registry.register_queue(RegisteredQueue(name, "", (".*",)), caller=ROOT)
        asked = {"to_queue": "one", "tenant": "tenant-2", "where": "timestamp % 2 = 0"}
        done = await Desk(mine, topology).replay(**asked)

        got = await waiting_in(feed, "one")
        sent = [event for event in wanted(feed.events, tenant="tenant-2") if event.t % 2 == 0]
        assert (done.state, done.done) == ("done", len(sent))
        assert [event.id for event in got] == [event.id for event in sent]
        assert {event.replay for event in got} == {done.id}
        assert await waiting_in(feed, "two") == []
        assert await waiting_for(feed, other) == []


async def test_a_limited_token_gets_none_of_the_past_beyond_its_limits(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_past(spark, feed, tmp_path)
        clients, asked = feed.bus.registry.clients, ScopesWanted(topics=["ord*", "users"], tenants=["tenant-2"])
        token = await clients.add(TokenWanted("late", scopes=asked), "secret-of-late", now_ms=0)
        limited = Caller(token.id, "late", scopes=token.scopes)
        for name in ("by-itself", "by-root"):
            await feed.bus.registry.register_queue(RegisteredQueue(name, token.id, (".*",)), caller=limited)
        desk = Desk(mine, one)
        await desk.replay(limited, to_queue="by-itself")
        await desk.replay(ROOT, to_queue="by-root")
        got = [await waiting_in(feed, name) for name in ("by-itself", "by-root")]
        sent = [event for event in wanted(feed.events, tenant="tenant-2") if event.topic in {"orders", "users"}]

    assert sent
    assert [sorted(event.id for event in some) for some in got] == [sorted(event.id for event in sent)] * 2


async def test_a_topic_gets_new_events_for_all_who_listen_there(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        mine = await a_past(spark, feed, tmp_path)
        await feed.publish(1, topic="again")
        hearing, deaf = await subscriber(feed, "hearing", "again"), await subscriber(feed, "deaf", "users")
        done = await Desk(mine, topology).replay(to_topic="again", topic="users")
        got = await waiting_for(feed, hearing)
        assert await waiting_for(feed, deaf) == []
        await mine.land()

    sent = wanted(feed.events, topic="users")
    assert done.done == len(sent)
    assert by_tenant(got) == by_tenant(sent)
    assert {event.replay_of for event in got} == {event.id for event in sent}
    assert not {event.id for event in got} & {event.id for event in sent}
    landed = {row["replay_of"]: row for row in mine.rows() if row["replay"] == done.id}
    assert landed.keys() == {event.id for event in sent}
    assert {(row["topic"], row["publisher"]) for row in landed.values()} == {("again", feed.publisher)}
    assert {row["replay"] for row in mine.rows() if row["topic"] == "users"} == {None}


async def test_what_a_full_queue_refuses_on_a_topic_is_counted_and_a_topic_that_is_gone_ends_it(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(20, topic="orders")
        await feed.publish(1, topic="again")
        small = RegisteredQueue("small", "", (".*:again:.*",), max_length=5, overflow="refuse")
        await feed.bus.registry.register_queue(small, caller=ROOT)
        desk = Desk(mine, one)
        done = await desk.replay(to_topic="again", topic="orders")
        held = await waiting_in(feed, "small")
        asked = await desk.ask(to_topic="again", topic="orders")
        await feed.bus.registry.topics.delete("again", publisher="")
        await desk.run()
        gone = await desk.read(asked)

    assert (done.state, done.done, done.refused) == ("done", 20, 15)
    assert len(held) == 5
    assert gone.state == "failed"
    assert "may not publish on topic 'again' any more" in gone.error


async def test_time_bounds_hold_and_what_comes_later_is_not_replayed(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(20)
        await asyncio.sleep(0.05)
        start = datetime.now(UTC)
        await asyncio.sleep(0.05)
        middle = await feed.publish(20)
        await asyncio.sleep(0.05)
        end = datetime.now(UTC)
        await asyncio.sleep(0.05)
        last = await feed.publish(20)
        await mine.land()
        late, later = await subscriber(feed, "late"), await subscriber(feed, "later")
        desk = Desk(mine, one)
        await desk.replay(to_subscriber="late", start=start.isoformat(), end=end.isoformat())
        asked = await desk.ask(to_subscriber="later", start=end.isoformat())
        await feed.publish(20)
        await desk.run()

        assert by_tenant(await waiting_for(feed, late)) == by_tenant(middle)
        assert by_tenant(await waiting_for(feed, later)) == by_tenant(last)
        assert (await desk.read(asked)).done == 20


async def test_a_dry_run_counts_and_writes_nothing(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_past(spark, feed, tmp_path)
        late = await subscriber(feed, "late")
        version = mine.table().version()
        done = await Desk(mine, one).replay(to_subscriber="late", dry_run=True)

        assert (done.state, done.total, done.done) == ("done", 180, 0)
        assert [(topic, count) for topic, _, count in done.counts] == [("clicks", 60), ("orders", 60), ("users", 60)]
        assert await waiting_for(feed, late) == []
        assert mine.table().version() == version


async def test_it_waits_for_a_receiver_that_has_much_to_do_and_can_be_cancelled(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_past(spark, feed, tmp_path)
        late = await subscriber(feed, "late")
        desk = Desk(mine, one, replay_backlog_max=50)
        asked = await desk.ask(to_subscriber="late")
        await desk.run()
        held = await desk.read(asked)
        first = len(await waiting_for(feed, late))

        assert 0 < first == held.done <= 60
        assert held.state == "running"
        assert "events wait for subscriber" in held.note
        await feed.bus.registry.subscriptions.delete(late)
        await desk.run()
        gone = await desk.read(asked)
        assert (gone.state, gone.done) == ("failed", first)
        assert "no subscriber" in gone.error


async def test_a_condition_that_cannot_be_used_fails_the_replay_and_says_why(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        mine = await a_past(spark, feed, tmp_path)
        await subscriber(feed, "late")
        desk = Desk(mine, one)
        strange = await desk.replay(to_subscriber="late", where="nonsense = 1")
        broken = await desk.replay(to_subscriber="late", where="1 / (timestamp - 3) > 0")
        good = await desk.replay(to_subscriber="late", where="timestamp = 3")

    assert strange.state == "failed"
    assert "it is SQL on partition, entry" in strange.error
    assert broken.state == "failed"
    assert "DIVIDE_BY_ZERO" in broken.error
    assert (good.state, good.done) == ("done", 1)


async def test_who_may_replay_what_to_whom(spark: SparkSession, one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_lake(spark, feed, tmp_path)
        await feed.publish(3, topic="orders")
        late = await subscriber(feed, "late")
        await feed.bus.registry.register_queue(RegisteredQueue("theirs", late, (".*",)), caller=ROOT)
        me, other = Caller(late, "late"), Caller(feed.publisher, "feed")
        desk = Desk(mine, one)

        assert (await desk.ask(me, to_subscriber="late")).owner == late
        assert (await desk.ask(me, to_subscriber=late)).owner == late
        assert (await desk.ask(me, to_queue="theirs")).owner == late
        assert (await desk.ask(other, to_topic="orders")).owner == feed.publisher
        assert (await desk.ask(me, to_topic="fresh")).owner == late
        for caller, asked, error, told in (
            (other, {"to_subscriber": "late"}, Forbidden, "not yours"),
            (other, {"to_subscriber": "feed"}, NotFound, "no subscriber named 'feed'"),
            (other, {"to_queue": "theirs"}, Forbidden, "another client"),
            (me, {"to_topic": "orders"}, Forbidden, "another client"),
            (me, {"to_subscriber": "late", "where": "1 = 1"}, Forbidden, "root key"),
            (ROOT, {"to_topic": "nobodys"}, NotFound, "no topic"),
            (ROOT, {"to_queue": "none"}, NotFound, "no queue"),
            (ROOT, {}, BadRequest, "one target"),
            (ROOT, {"to_queue": "theirs", "to_topic": "orders"}, BadRequest, "to_queue and to_topic"),
            (ROOT, {"to_queue": "theirs", "rate": 0}, BadRequest, "rate is 0"),
            (ROOT, {"to_queue": "theirs", "start": "yesterday"}, BadRequest, "write it like"),
            (ROOT, {"to_queue": "theirs", "end": "2999-01-01"}, BadRequest, "in the future"),
            (ROOT, {"to_queue": "theirs", "start": "2026-01-02", "end": "2026-01-01"}, BadRequest, "not before"),
            (ROOT, {"to_queue": "theirs", "topic": "no topic"}, BadRequest, "must match"),
            (ROOT, {"to_queue": "theirs", "tenant": "a b"}, BadRequest, "must match"),
        ):
            with pytest.raises(error, match=told):
                await desk.ask(caller, **asked)


async def test_a_window_that_is_sent_again_sends_nothing_twice(spark: SparkSession, topology: Topology, tmp_path: Path):
    """What a driver that died before it could say how far it had come leaves behind, again and again."""
    async with a_feed(topology) as feed:
        mine = await a_past(spark, feed, tmp_path)
        late = await subscriber(feed, "late")
        desk = Desk(mine, topology)
        asked = await desk.ask(to_subscriber="late", rate=10)
        await asyncio.to_thread(desk.replayer.round)
        counted = await desk.read(asked)
        for _ in range(3):
            # Fifty events at ten a second; and then nobody knows of it.
            await asyncio.to_thread(desk.replayer.round)
            await desk.set(asked, cursor=counted.cursor, done=0)
        once = len(await waiting_for(feed, late))
        quick = msgspec.json.decode(counted.asked) | {"rate": 1_000_000}
        await desk.set(asked, asked=msgspec.Raw(msgspec.json.encode(quick)))
        await desk.run()
        got, done = await waiting_for(feed, late), await desk.read(asked)

    assert 0 < once <= 60
    assert (done.state, done.done) == ("done", 180)
    assert by_tenant(got) == by_tenant(feed.events)
