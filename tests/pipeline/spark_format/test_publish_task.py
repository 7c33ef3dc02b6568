"""A Spark task's rows, published without Spark around it: batches as Arrow brings them, some of them empty."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from conftest import Topology
from doubledecker.bus.replay_writer import Rank
from doubledecker.errors import OrderChanged
from doubledecker.model.replay import Replay
from doubledecker.pipeline.replay import resend_task
from doubledecker.pipeline.spark_format import publish_task
from doubledecker.pipeline.spark_format.publish_task import Counts, TaskWork
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from doubledecker.store import journal, write_offsets
from feed import Feed, a_feed
from harness import quick_settings

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("topic", pa.string()), ("type", pa.string()), ("data", pa.string())])


def a_batch(numbers: Sequence[int]) -> pa.RecordBatch:
    made = [{"topic": "orders", "type": "create", "data": str(number)} for number in numbers]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


async def publish(feed: Feed, *batches: Sequence[int], task: int = 0) -> Counts:
    work = TaskWork(quick_settings(feed.topology), feed.publisher, "a-query", 0, task)
    refused = RefusedRows("", query="a-query", batch=0)
    return await publish_task.publish_all(work, iter([a_batch(numbers) for numbers in batches]), refused)


async def test_rows_are_published_once_whichever_batches_are_empty(one: Topology):
    async with a_feed(one) as feed:
        first = await publish(feed, [], [1, 2], [], [3])
        again = await publish(feed, [1], [], [2, 3], [])
        none = await publish(feed, [], task=1)

    assert (first, again, none) == (Counts(3, 0), Counts(0, 3), Counts(0, 0))


async def test_a_task_without_rows_may_repeat_a_complete_write_and_one_with_more_rows_may_not(one: Topology):
    async with a_feed(one) as feed:
        await publish(feed, [1, 2])
        await write_offsets.complete(feed.bus.partitions.home, publish_task.write_of("a-query", 0), tasks=2)
        assert await publish(feed, [], task=1) == Counts(0, 0)
        assert await publish(feed, [1, 2]) == Counts(0, 2)
        for batches, task in (([[1, 2, 3]], 0), ([[1]], 1), ([[1]], 0)):
            with pytest.raises(OrderChanged):
                await publish(feed, *batches, task=task)


# A task of a source in the dump of 0.1.0 (tests/upgrade): its query, the name and the digest of its fence, and the row
# that it published. The digest of all three rows was made with the code of 0.1.0.
OLD_QUERY, OLD_NAME = "6a0433c4-eced-4e06-8b92-6a997611398d", "1918590c4c7b8c8f6fb4e530622cc64b"
OLD_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("topic", "type", "url", "tenant", "key", "id", "data")]
    + [("timestamp", pa.int64())]
)
OLD_ROWS = [
    {
        "topic": "orders",
        "type": "create",
        "url": "https://shop.example/orders/1",
        "tenant": "acme",
        "key": "c1",
        "timestamp": 1_793_527_200_000,
        "data": '{"order":1,"customer":"c1","total":9.5}',
    },
    {"topic": "orders", "type": "paid"},
    {"topic": "orders", "type": "paid", "tenant": "acme", "id": "order-1", "data": '{ "n": [1, "ä", null] }'},
]


@pytest.mark.parametrize(("rows", "digest"), [(1, "6332301d436b244b16a9691e"), (3, "eee4e8349b46a159b7ebe597")])
async def test_a_repeat_of_what_version_0_1_0_published_is_passed_over(rows: int, digest: str, one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        await home.command("HSET", home.key(f"fence:{OLD_NAME}"), "batch", 0, "rows", rows, "digest", digest)
        work = TaskWork(quick_settings(one), feed.publisher, OLD_QUERY, 0, 0)
        arrow = pa.RecordBatch.from_pylist(OLD_ROWS[:rows], schema=OLD_SCHEMA)
        counts = await publish_task.publish_all(work, iter([arrow]), RefusedRows("", query=OLD_QUERY, batch=0))
        written = await journal.read(home, "events", count=10)

    assert counts == Counts(0, rows)
    assert written == []


def test_the_lane_of_a_replay_is_named_and_remembered_as_in_version_0_1_0(one: Topology):
    """As a replay in the same dump was: its second lane had sent one event."""
    id_, sent = "pKPQSBuvzP9kpDDAPsI5", Rank(1_794_829_817_778, 0, 0, 0)
    task = resend_task.Work(quick_settings(one), id_, Replay("queue", "late", 0, 1, 1000)).task(1)

    assert task == "53673b414f2d6507d5ba748a5386fb04"
    assert str(sent) == "1794829817778-0-0-0"
    assert Rank.parse(str(sent)) == sent
