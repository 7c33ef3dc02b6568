"""Snapshots: made for every request while there are few rows, kept and shared once there are many."""

import asyncio

from doubledecker.bus.snapshots import ROWS_MAX, SnapshotCache


class Counter:
    """Makes a value that is different each time, and costs what it is told to."""

    def __init__(self) -> None:
        self.made = 0
        self.cost_s = 0.0

    async def make(self) -> int:
        await asyncio.sleep(self.cost_s)
        self.made += 1
        return self.made


async def test_few_rows_are_read_for_every_request():
    snapshot = SnapshotCache(Counter().make)

    assert [await snapshot.get(rows=ROWS_MAX) for _ in range(3)] == [1, 2, 3]


async def test_many_rows_are_read_once_for_all_who_ask_at_the_same_time():
    counter = Counter()
    counter.cost_s = 0.05
    snapshot = SnapshotCache(counter.make)

    assert await asyncio.gather(*(snapshot.get(rows=ROWS_MAX + 1) for _ in range(20))) == [1] * 20


async def test_a_snapshot_that_costs_nothing_is_never_old():
    snapshot = SnapshotCache(Counter().make)
    first = await snapshot.get(rows=ROWS_MAX + 1)
    async with asyncio.timeout(10):
        while await snapshot.get(rows=ROWS_MAX + 1) == first:
            await asyncio.sleep(0)
