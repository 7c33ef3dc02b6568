"""A Spark task's rows, published without Spark around it: batches as Arrow brings them, some of them empty."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from conftest import Topology
from doubledecker.errors import OrderChanged
from doubledecker.pipeline import publishing
from doubledecker.pipeline.publishing import Counts, TaskWork
from doubledecker.pipeline.refusals import RefusedRows
from doubledecker.store import fences
from feed import Feed, a_feed
from harness import quick_settings

SCHEMA = pa.schema([("topic", pa.string()), ("type", pa.string()), ("data", pa.string())])


def a_batch(numbers: Sequence[int]) -> pa.RecordBatch:
    made = [{"topic": "orders", "type": "create", "data": str(number)} for number in numbers]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


async def publish(feed: Feed, *batches: Sequence[int], task: int = 0) -> Counts:
    work = TaskWork(quick_settings(feed.topology), feed.publisher, "a-query", 0, task)
    refused = RefusedRows("", query="a-query", batch=0)
    return await publishing.publish_all(work, iter([a_batch(numbers) for numbers in batches]), refused)


async def test_rows_are_published_once_whichever_batches_are_empty(one: Topology):
    async with a_feed(one) as feed:
        first = await publish(feed, [], [1, 2], [], [3])
        again = await publish(feed, [1], [], [2, 3], [])
        none = await publish(feed, [], task=1)

    assert (first, again, none) == (Counts(3, 0), Counts(0, 3), Counts(0, 0))


async def test_a_task_without_rows_may_repeat_a_complete_write_and_one_with_more_rows_may_not(one: Topology):
    async with a_feed(one) as feed:
        await publish(feed, [1, 2])
        await fences.complete(feed.bus.partitions.home, publishing.write_of("a-query", 0), tasks=2)
        assert await publish(feed, [], task=1) == Counts(0, 0)
        assert await publish(feed, [1, 2]) == Counts(0, 2)
        for batches, task in (([[1, 2, 3]], 0), ([[1]], 1), ([[1]], 0)):
            with pytest.raises(OrderChanged):
                await publish(feed, *batches, task=task)
