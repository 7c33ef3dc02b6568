"""A lane of a replay: sent once and in order, however often and by however many tasks at once."""

import asyncio
import random

import msgspec
import pytest
from msgspec import structs

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.replay_writer import PastEvent, Rank, ReceiverTarget, Sender, TopicTarget
from doubledecker.errors import NotFound
from doubledecker.model import filter_syntax
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.replay import Replay
from doubledecker.model.token import Caller
from doubledecker.store import pipeline_jobs, queue_contents
from doubledecker.store.partitions import Partition
from feed import Feed, a_feed
from harness import quick_settings

ROOT = Caller("", "root", is_root=True)


def a_past(count: int) -> list[PastEvent]:
    """Events of one tenant; two of each millisecond, so that the place within it counts."""
    return [
        PastEvent(Rank(n // 2, 0, n % 2, 0), AcceptedEvent("orders", "made", t=n, id=f"id-{n}", tenant="acme"))
        for n in range(count)
    ]


def a_sender(feed: Feed, rate: int = 1_000_000) -> Sender:
    home = feed.bus.partitions.home
    target = ReceiverTarget(home, Replay("queue", "late", 0, 1, rate), "a-replay")
    return Sender(target, feed.bus.registry, home=home, partition=home, task="0" * 32, id_="a-replay", rate=rate)


async def numbers(feed: Feed) -> list[int]:
    found = await queue_contents.peek(feed.bus.partitions.home, RegisteredQueue("late", "", ()), "acme", most=10_000)
    return [msgspec.json.decode(text, type=AcceptedEvent).t for _, text in found]


async def test_a_task_that_is_run_again_goes_on_where_the_last_call_ended(one: Topology):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(RegisteredQueue("late", "", ("no:no:no",)), caller=ROOT)
        past = a_past(3_000)
        first = a_sender(feed)
        await first.send(past[:1_234])
        again = a_sender(feed)
        for start in range(0, 3_000, 700):
            await again.send(past[start : start + 700])

        assert (first.sent, first.passed) == (1_234, 0)
        assert (again.sent, again.passed) == (1_766, 1_234)
        assert await numbers(feed) == list(range(3_000))


async def test_two_attempts_at_once_send_each_event_once_and_in_order(one: Topology):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(RegisteredQueue("late", "", ("no:no:no",)), caller=ROOT)
        senders = [a_sender(feed, rate=1_000) for _ in range(3)]
        await asyncio.gather(*(sender.send(a_past(500)) for sender in senders))

        assert await numbers(feed) == list(range(500))
        assert sum(sender.sent for sender in senders) == 500
        assert all(sender.sent + sender.passed == 500 for sender in senders)


async def test_events_that_are_gone_when_it_is_run_again_do_no_harm(one: Topology):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(RegisteredQueue("late", "", ("no:no:no",)), caller=ROOT)
        past = a_past(600)
        await a_sender(feed).send(past[:300])
        left = [each for each in past if random.random() < 0.5]
        await a_sender(feed).send(left)

        assert await numbers(feed) == [*range(300), *(each.event.t for each in left if each.event.t >= 300)]


async def test_a_change_of_the_registry_is_noticed_and_a_queue_that_is_gone_ends_it(one: Topology):
    async with a_feed(one) as feed:
        for name in ("late", "other"):
            await feed.bus.registry.register_queue(RegisteredQueue(name, "", ("no:no:no",)), caller=ROOT)
        sender = a_sender(feed)
        await sender.send(a_past(10))
        async with build.open_bus(quick_settings(one)) as other:
            await other.registry.delete_queue(await other.registry.queue("other", caller=ROOT), discard=True)
            await sender.send(a_past(20))
            await other.registry.delete_queue(await other.registry.queue("late", caller=ROOT), discard=True)
            with pytest.raises(NotFound, match="no queue 'late' any more"):
                await sender.send(a_past(30))


async def test_a_queue_that_is_deleted_while_a_lane_waits_for_its_turn_gets_nothing(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_feed(one) as feed:
        registry = feed.bus.registry
        await registry.register_queue(RegisteredQueue("late", "", ("no:no:no",)), caller=ROOT)
        keep_turn = pipeline_jobs.keep_turn

        async def delete_meanwhile(home: Partition, id_: str, *, count: int, rate: int) -> int:
            await registry.delete_queue(await registry.queue("late", caller=ROOT), discard=True)
            return await keep_turn(home, id_, count=count, rate=rate)

        monkeypatch.setattr(pipeline_jobs, "keep_turn", delete_meanwhile)
        with pytest.raises(NotFound, match="no queue 'late' any more"):
            await a_sender(feed).send(a_past(10))

        assert await numbers(feed) == []


async def test_the_mark_is_the_last_field_and_nothing_else_of_the_event_changes(one: Topology):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(RegisteredQueue("late", "", ("no:no:no",)), caller=ROOT)
        event = AcceptedEvent(
            "orders", "made", t=7, id="id", tenant="acme", key="k", data=msgspec.Raw(b'{"b": 1,  "a":2}')
        )
        await a_sender(feed).send([PastEvent(Rank(1, 0, 0, 0), event)])
        [(_, text)] = await queue_contents.peek(
            feed.bus.partitions.home, RegisteredQueue("late", "", ()), "acme", most=10
        )

        assert text == msgspec.json.encode(event)[:-1] + b',"replay":"a-replay"}'


async def test_a_replay_to_one_queue_takes_no_heed_of_its_filter(one: Topology):
    async with a_feed(one) as feed:
        queue = RegisteredQueue("late", "", ("no:no:no",), filter=filter_syntax.parse({"key": ["none"]}).text)
        await feed.bus.registry.register_queue(queue, caller=ROOT)
        await a_sender(feed).send(a_past(3))

        assert await numbers(feed) == [0, 1, 2]


async def test_a_replay_to_a_topic_goes_by_the_filters_of_those_who_listen_there(one: Topology):
    async with a_feed(one) as feed:
        fits = filter_syntax.parse({"data": {"n": [{"numeric": [">=", 2]}]}}).text
        await feed.bus.registry.register_queue(RegisteredQueue("late", "", (".*",), filter=fits), caller=ROOT)
        home = feed.bus.partitions.home
        await feed.bus.registry.topics.claim(["again"], publisher=feed.publisher)
        replay = Replay("topic", "again", 0, 1, 1_000_000, publisher=feed.publisher)
        target = TopicTarget(home, replay, "a-replay", feed.bus.headroom, Notifier(home, Notify("never")))
        sender = Sender(
            target, feed.bus.registry, home=home, partition=home, task="0" * 32, id_="a-replay", rate=1_000_000
        )
        past = [
            each._replace(event=structs.replace(each.event, data=msgspec.Raw(b'{"n":%d}' % each.event.t)))
            for each in a_past(4)
        ]
        await sender.send(past)

        assert await numbers(feed) == [2, 3]
