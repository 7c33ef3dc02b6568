"""A Spark task that is run again: it publishes what is left of the same rows, and refuses any others."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec import structs

from conftest import Topology
from doubledecker.bus.exactly_once import ExactlyOnceWriter, PublishedRow
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.errors import OrderChanged, TopicOwned, TopicReserved, WritesLost
from doubledecker.model import filter_syntax
from doubledecker.model.event import AcceptedEvent, EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.store import journal, queue_contents, write_offsets
from doubledecker.store.write_offsets import Fence, RowRefusal, Write
from feed import Feed, a_feed
from harness import within

ROOT = Caller("", "root", is_root=True)
FENCE = "fence:a-task"


def rows(numbers: Sequence[int], *, topic: str = "orders") -> list[PublishedRow]:
    return [
        PublishedRow(EventKind(topic, "made", "acme"), "", text, text, "", at)
        for at, text in enumerate(
            msgspec.json.encode(AcceptedEvent(topic, "made", t=number, id=f"id-{number}", tenant="acme"))
            for number in numbers
        )
    ]


def a_task(feed: Feed, *, batch: int = 0, is_complete: bool = False) -> ExactlyOnceWriter:
    home = feed.bus.partitions.home
    return ExactlyOnceWriter(
        home,
        feed.bus.registry,
        feed.bus.headroom,
        Notifier(home, Notify("never")),
        publisher=feed.publisher,
        task="a-task",
        batch=batch,
        is_complete=is_complete,
    )


async def run(task: ExactlyOnceWriter, numbers: Sequence[int]) -> ExactlyOnceWriter:
    """All of a task's rows, three at a time."""
    for first in range(0, len(numbers), 3):
        await task.publish(rows(numbers[first : first + 3]))
    await task.finish()
    return task


async def published(feed: Feed) -> list[int]:
    entries = await journal.read(feed.bus.partitions.home, "events", count=1000)
    lines = [line for entry in entries for _, value in entry.fields for line in value.split(b"\n")]
    return [msgspec.json.decode(line, type=AcceptedEvent).t for line in lines]


async def test_the_same_rows_again_are_passed_over(one: Topology):
    async with a_feed(one) as feed:
        await run(a_task(feed), range(10))
        again = await run(a_task(feed), range(10))

        assert (again.tally.published, again.tally.repeated) == (0, 10)
        assert await published(feed) == list(range(10))


async def test_a_task_that_was_cut_short_goes_on_where_it_was(one: Topology):
    async with a_feed(one) as feed:
        await a_task(feed).publish(rows(range(4)))
        again = await run(a_task(feed), range(10))

        assert (again.tally.published, again.tally.repeated) == (6, 4)
        assert await published(feed) == list(range(10))


@pytest.mark.parametrize("numbers", [range(4), range(100, 104), range(0), [0, 1, 2, 9], range(9)])
async def test_a_repeat_with_fewer_rows_is_an_error(one: Topology, numbers: Sequence[int]):
    async with a_feed(one) as feed:
        await run(a_task(feed), range(10))

        with pytest.raises(OrderChanged, match=f"this time it has {len(numbers)}"):
            await run(a_task(feed), numbers)
        assert await published(feed) == list(range(10))


async def test_a_repeat_with_other_rows_is_an_error_however_many_they_are(one: Topology):
    async with a_feed(one) as feed:
        await run(a_task(feed), range(10))

        for numbers in (range(100, 110), range(100, 120), [*range(9), 100]):
            with pytest.raises(OrderChanged, match="are not those that it published before"):
                await run(a_task(feed), numbers)
        assert await published(feed) == list(range(10))


async def test_more_rows_than_a_complete_write_had_are_an_error(one: Topology):
    async with a_feed(one) as feed:
        await run(a_task(feed), range(10))
        with pytest.raises(OrderChanged, match="had 10 rows when it was complete"):
            await run(a_task(feed, is_complete=True), range(11))
        await run(a_task(feed, is_complete=True), range(10))

        assert await published(feed) == list(range(10))


async def test_a_batch_that_is_older_than_what_was_published_is_an_error(one: Topology):
    async with a_feed(one) as feed:
        await run(a_task(feed, batch=7), range(10))
        with pytest.raises(OrderChanged, match=r"batch 5 .* batch 7"):
            await run(a_task(feed, batch=5), range(20, 30))
        with pytest.raises(OrderChanged, match=r"batch 5 .* batch 7"):
            await run(a_task(feed, batch=5), range(0))

        assert await published(feed) == list(range(10))


async def test_a_server_that_lost_its_last_writes_ends_the_task_so_that_it_is_run_again(one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        task = a_task(feed)
        await task.publish(rows(range(4)))
        before = await home.command("HGETALL", home.key(FENCE))
        await task.publish(rows(range(4, 8)))
        await home.command("HSET", home.key(FENCE), *before)

        with pytest.raises(WritesLost, match=r"confirmed 8 rows .* and has 4"):
            await within(task.publish(rows(range(8, 10))), 30)


async def test_rows_that_a_full_queue_refused_are_refused_again_when_the_task_is_repeated(one: Topology):
    async with a_feed(one) as feed:
        queue = RegisteredQueue("small", feed.publisher, ("acme:orders:made",), max_length=6, overflow="refuse")
        await feed.bus.registry.register_queue(queue, caller=ROOT)
        first, again = a_task(feed), a_task(feed)
        await first.publish(rows(range(10)))
        await again.publish(rows(range(10)))
        await again.finish()

        assert first.tally.refused == dict.fromkeys(range(6, 10), "queue 'small' is full")
        assert again.tally.refused == first.tally.refused
        assert (again.tally.published, again.tally.repeated) == (0, 6)


async def test_rows_on_another_clients_topic_are_refused_again_when_the_task_is_repeated(one: Topology):
    async with a_feed(one) as feed:
        other = await feed.bus.registry.clients.create("other", "secret-of-the-other", now_ms=0)
        await feed.bus.registry.topics.claim(["theirs"], publisher=other.id)
        mixed = [*rows([1]), *rows([2], topic="theirs"), *rows([3])]
        given = [msgspec.structs.replace(row, index=at) for at, row in enumerate(mixed)]
        tasks = [a_task(feed) for _ in range(2)]
        for task in tasks:
            await task.publish(given)
            await task.finish()

        assert [task.tally.refused for task in tasks] == [{1: TopicOwned("theirs", other.id).detail}] * 2
        assert [(task.tally.published, task.tally.repeated) for task in tasks] == [(2, 0), (0, 2)]
        # The next batch knows nothing of it.
        later = a_task(feed, batch=1)
        await later.publish(rows(range(20, 23)))
        await later.finish()
        assert later.tally.refused == {}


async def test_a_write_is_complete_with_as_many_tasks_as_published(one: Topology):
    async with a_feed(one) as feed:
        home, write = feed.bus.partitions.home, Write("a-write", 0)
        for task in (0, 2):
            assert not await write_offsets.enter(home, write, task=task)
        with pytest.raises(OrderChanged, match="has 2 tasks; before, 3 tasks"):
            await write_offsets.complete(home, write, tasks=2)
        await write_offsets.complete(home, write, tasks=3)

        assert await write_offsets.enter(home, write, task=2)
        with pytest.raises(OrderChanged, match="complete"):
            await write_offsets.enter(home, write, task=3)
        await write_offsets.complete(home, write, tasks=5)


async def test_a_later_batch_of_a_write_begins_anew_and_an_older_one_is_an_error(one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        await write_offsets.enter(home, Write("a-write", 3), task=8)
        await write_offsets.complete(home, Write("a-write", 3), tasks=9)

        assert not await write_offsets.enter(home, Write("a-write", 4), task=0)
        await write_offsets.complete(home, Write("a-write", 4), tasks=1)
        older = Write("a-write", 3)
        for call in (write_offsets.enter(home, older, task=0), write_offsets.complete(home, older, tasks=9)):
            with pytest.raises(OrderChanged, match=r"batch 3 .* batch 4"):
                await call


async def test_what_refused_rows_is_kept_whole_and_in_its_former_form_too(one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        odd = RowRefusal("topic", "orders", 'a "client" of\nours')
        await home.command("HSET", home.key(FENCE), "batch", 0, "rows", 4, "digest", "")
        [*_, told, _] = Fence("task", 0, 0, 1, "", {odd: [0]}).packed
        former = ["queue jobs\n1", "topic orders other-1a2b3c4d\n2", "topic orders \n3"]
        await home.command("RPUSH", home.key("refused:a-task"), *told, *former)
        reached = await write_offsets.read(home, "a-task")

    others = [
        RowRefusal("queue", "jobs"),
        RowRefusal("topic", "orders", "other-1a2b3c4d"),
        RowRefusal("topic", "orders"),
    ]
    assert reached.refused == dict(enumerate([odd, *others]))


async def test_rows_on_reserved_topics_are_refused_and_published_by_no_later_attempt(one: Topology):
    async with a_feed(one) as feed:
        tasks = [a_task(feed), a_task(feed)]
        for task in tasks:
            await task.publish(rows([1], topic="doubledecker.receivers"))
            await task.finish()

        why = TopicReserved("doubledecker.receivers").detail
        assert [task.tally.refused for task in tasks] == [{0: why}] * 2
        assert await published(feed) == []


async def test_a_queue_gets_of_a_tasks_rows_what_its_filter_fits(one: Topology):
    async with a_feed(one) as feed:
        fits = filter_syntax.parse({"key": [{"anything-but": "k-1"}]}).text
        await feed.bus.registry.register_queue(RegisteredQueue("some", "", (".*",), filter=fits), caller=ROOT)
        task = a_task(feed)
        await task.publish([structs.replace(row, key=f"k-{at}") for at, row in enumerate(rows(range(3)))])
        await task.finish()

        found = await queue_contents.peek(feed.bus.partitions.home, RegisteredQueue("some", "", ()), "acme", most=10)
        assert [msgspec.json.decode(text, type=AcceptedEvent).t for _, text in found] == [0, 2]
        assert await published(feed) == [0, 1, 2]
