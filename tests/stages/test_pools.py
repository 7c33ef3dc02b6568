"""Queues and worker pools of a user's own have their place in the model."""

import asyncio
import heapq
from dataclasses import dataclass, field

import pytest

from doubledecker.stages import (
    Adaptive,
    Batch,
    Breaker,
    Bulkhead,
    Event,
    Fifo,
    Queue,
    Shed,
    Stage,
    Waiter,
    WorkerPool,
)
from doubledecker.stages.errors import ChainInvalid, SettingInvalid
from stages.rehearsal import a_call, bind, ending, virtually


class Shortest(Queue):
    """Who asks for the least goes first; on a heap of its own, and without a length."""

    def __init__(self, size_max: int | None = None) -> None:
        super().__init__(size_max)
        self._heap: list[tuple[float, int, Waiter]] = []

    def push(self, waiter: Waiter) -> None:
        heapq.heappush(self._heap, (waiter.event.args[0], id(waiter), waiter))

    def pop(self) -> Waiter:
        return heapq.heappop(self._heap)[2]

    def discard(self, waiter: Waiter) -> None:
        self._heap = [each for each in self._heap if each[2] is not waiter]
        heapq.heapify(self._heap)


@dataclass
class Declared(Queue):
    """The same idea as a dataclass; newest first."""

    store: list[Waiter] = field(default_factory=list)

    def push(self, waiter: Waiter) -> None:
        self.store.append(waiter)

    def pop(self) -> Waiter:
        return self.store.pop()

    def discard(self, waiter: Waiter) -> None:
        self.store.remove(waiter)


def test_a_queue_with_its_own_store_decides_who_is_next():
    async def main() -> list[float]:
        bound = bind(Bulkhead(workers=1, queue=Shortest(10)))
        ends = [asyncio.create_task(ending(bound.run(a_call(takes_s)))) for takes_s in (5.0, 3.0, 2.0, 4.0)]
        return [end.at for end in await asyncio.gather(*ends)]

    assert virtually(main()) == [5.0, 10.0, 7.0, 14.0]


@pytest.mark.parametrize("queue", [Shortest(2), Declared(2)], ids=["class", "dataclass"])
def test_a_queue_with_its_own_store_is_bounded_counted_and_left(queue: Queue):
    async def main() -> tuple[list[str], list[int]]:
        bound = bind(Bulkhead(workers=1, queue=queue))
        calls = [asyncio.create_task(ending(bound.run(a_call(1.0)))) for _ in range(4)]
        await asyncio.sleep(0.5)
        queued = [bound["bulkhead"].queued]
        calls[1].cancel()
        await asyncio.sleep(0.1)
        queued.append(bound["bulkhead"].snapshot().queued)
        return [end.how for end in await asyncio.gather(*calls)], queued

    for _ in range(2):  # each binding has a store of its own
        ends, queued = virtually(main())
        assert sorted(ends) == ["Cancelled", "QueueFull", "ok", "ok"]
        assert queued == [2, 1]


def test_a_batch_takes_from_a_queue_with_its_own_store():
    asked: list[list[object]] = []

    async def ask(numbers: list[object]) -> list[object]:
        asked.append(numbers)
        await asyncio.sleep(1)
        return numbers

    async def main() -> None:
        async with bind(Batch(2, queue=Shortest())) as bound:
            await asyncio.gather(*(bound.run(Event(function=ask, args=(number,))) for number in (9, 1, 5, 3, 2)))

    virtually(main())

    assert asked == [[1, 2], [3, 5], [9]]


class Shift(WorkerPool):
    """Some workers now, others after `change`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @property
    def size(self) -> int:
        return self.workers

    def has_free(self) -> bool:
        return self.busy < self.workers

    def change(self, workers: int) -> None:
        self.workers = workers
        self.changed()


STAGES = {"bulkhead": Bulkhead, "stage": Stage, "shed": Shed, "breaker": Breaker}


@pytest.mark.parametrize("name", STAGES)
def test_a_worker_pool_of_ones_own_decides_how_many_work(name: str):
    async def main() -> tuple[list[float], int | None]:
        bound = bind(STAGES[name](workers=Shift(2), queue=Fifo()))
        ends = await asyncio.gather(*(ending(bound.run(a_call(1.0))) for _ in range(5)))
        last = bound[name].snapshot()
        assert last.arrived == last.started == last.succeeded == 5
        return [end.at for end in ends], last.workers

    assert virtually(main()) == ([1.0, 1.0, 2.0, 2.0, 3.0], 2)


def test_a_worker_pool_may_grow_by_itself_and_a_full_queue_turns_away():
    class Shared(Shift):
        def fresh(self) -> "Shared":
            return self

    async def main() -> tuple[list[str], list[float]]:
        pool = Shared(1)
        bound = bind(Bulkhead(workers=pool, queue=Fifo(2)))
        calls = [asyncio.create_task(ending(bound.run(a_call(2.0)))) for _ in range(4)]
        await asyncio.sleep(1)
        pool.change(3)
        ends = await asyncio.gather(*calls)
        assert pool.busy == 0
        return [end.how for end in ends], [end.at for end in ends]

    hows, moments = virtually(main())

    assert hows == ["ok", "ok", "ok", "QueueFull"]
    assert moments == [2.0, 3.0, 3.0, 0.0]


def test_a_waiter_that_gives_up_as_it_is_served_gives_its_worker_back():
    async def main() -> list[str]:
        bound = bind(Bulkhead(workers=Shift(1), queue=Fifo()))
        calls = [asyncio.create_task(ending(bound.run(a_call(1.0)))) for _ in range(3)]
        # At the moment at which the first ends, and the second has its worker but has not woken.
        asyncio.get_running_loop().call_later(1.0, calls[1].cancel)
        return [end.how for end in await asyncio.gather(*calls)]

    assert virtually(main()) in (["ok", "Cancelled", "ok"], ["ok", "ok", "ok"])


def test_batches_ask_a_worker_pool_too():
    async def ask(numbers: list[object]) -> list[object]:
        await asyncio.sleep(1)
        return numbers

    async def main() -> list[float]:
        async with bind(Batch(2, workers=Shift(2), queue=Fifo())) as bound:
            events = [Event(function=ask, args=(number,)) for number in range(6)]
            return [end.at for end in await asyncio.gather(*(ending(bound.run(event)) for event in events))]

    assert virtually(main()) == [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]


def test_a_pool_of_ones_own_is_changed_by_itself():
    async def main() -> None:
        with pytest.raises(ChainInvalid, match="bulkhead has a worker pool of its own"):
            bind(Bulkhead(workers=Shift(1)))["bulkhead"].resize(3)

    virtually(main())
    with pytest.raises(SettingInvalid, match=r"adaptive\.workers"):
        Adaptive(workers=Shift(1))
