"""Publishers share the writer of a partition: each keeps its order, and none waits for all that another has sent."""

import asyncio

import msgspec
import pytest

from conftest import Topology
from doubledecker import clock
from doubledecker.assembly.build import BusParts
from doubledecker.model import event as parsing
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.uid import event_id
from doubledecker.store import events, journal
from feed import Feed, a_feed


def drafts(topic: str, count: int) -> list[parsing.Draft]:
    made = [AcceptedEvent(topic=topic, type="update", t=n, id=event_id(n)) for n in range(count)]
    return [parsing.draft(each, is_id_given=False, index=i) for i, each in enumerate(made)]


async def another(bus: BusParts, name: str) -> str:
    return (await bus.registry.clients.create(name, f"secret-of-{name}", now_ms=clock.now_ms())).id


async def numbers(feed: Feed, topic: str) -> list[int]:
    """The events of a topic in the order in which they were written."""
    entries = await journal.read(feed.bus.partitions.home, "events", count=1_000)
    lines = [line for entry in entries for _, value in entry.fields for line in value.split(b"\n")]
    events = [msgspec.json.decode(line, type=AcceptedEvent) for line in lines]
    return [event.t for event in events if event.topic == topic]


async def test_an_event_waits_for_a_call_or_two_however_many_another_publisher_has_sent(one: Topology):
    """Twenty requests of ten thousand events each kept another client's single event waiting for 15 s."""
    async with a_feed(one) as feed:
        modest, publish = await another(feed.bus, "modest"), feed.bus.publisher.publish
        await publish(feed.publisher, drafts("many", 1))
        await publish(modest, drafts("few", 1))
        greedy = [asyncio.create_task(publish(feed.publisher, drafts("many", 2_000))) for _ in range(8)]
        await asyncio.sleep(0)
        await publish(modest, drafts("few", 1))
        done = sum(task.done() for task in greedy)
        await asyncio.gather(*greedy)

        assert done <= 3
        assert len(await numbers(feed, "many")) == 16_001


async def test_what_comes_along_with_a_reply_goes_with_the_next_call(one: Topology):
    """It went with the one after the next: under load a call carried a third less."""
    async with a_feed(one) as feed:
        publish = feed.bus.publisher.publish

        async def publish_twice() -> None:
            await publish(feed.publisher, drafts("twice", 1))
            await publish(feed.publisher, drafts("twice", 1))

        await publish(feed.publisher, drafts("twice", 1) + drafts("once", 1))
        twice = asyncio.create_task(publish_twice())
        # Then its first call is under way.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(twice, publish(feed.publisher, drafts("once", 1)))

        entries = await journal.read(feed.bus.partitions.home, "events", count=1_000)
        assert [sum(value.count(b"\n") + 1 for _, value in entry.fields) for entry in entries] == [2, 1, 2]


async def test_each_publisher_keeps_its_order_and_nothing_is_lost(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "WRITES_MAX", 20)
    async with a_feed(one) as feed:
        names = ["ann", "bob", "cid"]
        ids = [await another(feed.bus, name) for name in names]
        sent = [
            feed.bus.publisher.publish(id_, drafts(name, size)[first : first + 7])
            for name, id_, size in zip(names, ids, (7, 70, 140), strict=True)
            for first in range(0, size, 7)
        ]
        assert await asyncio.gather(*sent) == [{}] * len(sent)

        assert [await numbers(feed, name) for name in names] == [list(range(size)) for size in (7, 70, 140)]


async def test_a_whole_request_that_fills_a_call_is_written_beside_busy_publishers(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events, "WRITES_MAX", 20)
    async with a_feed(one) as feed:
        careful, publish = await another(feed.bus, "careful"), feed.bus.publisher.publish
        busy = [asyncio.create_task(publish(feed.publisher, drafts("many", 200))) for _ in range(3)]
        async with asyncio.timeout(20):
            refused = await publish(careful, drafts("whole", 20), is_whole=True)
        await asyncio.gather(*busy)

        assert refused == {}
        assert await numbers(feed, "whole") == list(range(20))
        assert len(await numbers(feed, "many")) == 600
