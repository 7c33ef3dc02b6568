"""The model: four methods, queues, workers, chains."""

import asyncio
from random import Random

import pytest

from doubledecker.stages import (
    Batch,
    Bulkhead,
    Chain,
    CoDel,
    Event,
    Fifo,
    Lifo,
    Priority,
    RateLimit,
    Retry,
    Router,
    Simulated,
    Stage,
    Timeout,
)
from doubledecker.stages.errors import ChainInvalid, DeadlinePassed, QueueFull, RateExceeded, Rejected
from doubledecker.stages.pool import Waiter
from stages.rehearsal import Broken, a_call, at, bind, ending, now, virtually


class Diary(Stage):
    """Writes down which of its methods were called."""

    def start(self) -> None:
        self.lines: list[str] = []

    def admit(self, event: Event) -> None:
        self.lines.append("admit")
        if event.key == "unwanted":
            raise Rejected(self.name)

    async def work(self, event: Event) -> object:
        self.lines.append("work")
        return await self.inner(event)

    def succeeded(self, event: Event, result: object) -> None:  # noqa: ARG002
        self.lines.append(f"succeeded {result}")

    def failed(self, event: Event, error: Exception) -> None:  # noqa: ARG002
        self.lines.append(f"failed {error}")

    def cancelled(self, event: Event) -> None:  # noqa: ARG002
        self.lines.append("cancelled")


def diary_of(event: Event, cancel_after_s: float | None = None) -> list[str]:
    async def main() -> list[str]:
        bound = bind(Diary())
        task = asyncio.create_task(ending(bound.run(event)))
        if cancel_after_s is not None:
            await asyncio.sleep(cancel_after_s)
            task.cancel()
        await task
        stage = bound["diary"]
        assert isinstance(stage, Diary)
        return stage.lines

    return virtually(main())


def test_an_event_that_succeeds_is_admitted_worked_on_and_succeeded():
    assert diary_of(a_call()) == ["admit", "work", "succeeded answer"]


def test_an_event_that_fails_is_failed():
    assert diary_of(a_call(fails=True)) == ["admit", "work", "failed broken"]


def test_a_rejected_event_has_no_end_because_it_never_began():
    assert diary_of(a_call(key="unwanted")) == ["admit"]


def test_cancelled_is_a_third_outcome():
    assert diary_of(a_call(10), cancel_after_s=1) == ["admit", "work", "cancelled"]


def test_an_exception_of_the_dependency_passes_unchanged():
    error = Broken()

    async def fail() -> None:
        raise error

    async def main() -> None:
        guarded = (Retry(2) | Bulkhead(workers=1) | Timeout(1))(fail)
        with pytest.raises(Broken) as caught:
            await guarded()
        assert caught.value is error

    virtually(main())


def test_chains_nest_and_it_does_not_matter_how():
    a, b, c = Retry(3), Bulkhead(workers=2), Timeout(1)

    assert (a | b) | c == a | (b | c) == Chain((a, b, c))
    assert Chain() | a == a | Chain() == Chain((a,))


def test_a_chain_with_other_settings_is_another_chain():
    chain = Retry(3) | Timeout(1, name="quick")

    assert chain.change("retry", attempts=5).change("quick", limit_s=2) == Retry(5) | Timeout(2, name="quick")
    assert chain == Retry(3) | Timeout(1, name="quick")
    with pytest.raises(ChainInvalid, match="no stage named 'slow'"):
        chain.change("slow", limit_s=2)
    with pytest.raises(ChainInvalid, match="retry has no setting 'tries'"):
        chain.change("retry", tries=2)


def test_nothing_can_stand_inside_a_dependency():
    with pytest.raises(ChainInvalid):
        Simulated() | Timeout(1)


def test_a_chain_bound_twice_has_two_states():
    async def main() -> None:
        chain = Chain() | RateLimit(1)
        first, second = chain.bind(), chain.bind()
        await first.run(a_call())

        with pytest.raises(RateExceeded):
            await first.run(a_call())
        assert await second.run(a_call()) == "answer"

    virtually(main())


def test_stages_of_one_name_are_told_apart():
    bound = bind(Retry(2) | Timeout(1) | Retry(3) | Timeout(2, name="inner"))

    assert [snapshot.stage for snapshot in bound.snapshots()] == ["retry", "timeout", "retry-2", "inner"]


def order_of_service(queue: Fifo | Lifo | Priority, priorities: list[int]) -> list[int]:
    """The numbers of the events in the order in which they end, with one worker busy until all have come."""

    async def main() -> list[int]:
        bound = bind(Bulkhead(workers=1, queue=queue))
        served: list[int] = []

        async def one(number: int, priority: int) -> None:
            await bound.run(a_call(1, priority=priority))
            served.append(number)

        await asyncio.gather(*(one(number, priority) for number, priority in enumerate(priorities)))
        return served

    return virtually(main())


def test_fifo_serves_in_order_lifo_newest_first_and_priority_the_highest_first():
    assert order_of_service(Fifo(), [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert order_of_service(Lifo(), [0, 1, 2, 3]) == [0, 3, 2, 1]
    assert order_of_service(Priority(), [0, 1, 2, 1, 2]) == [0, 2, 4, 1, 3]


def test_a_full_queue_rejects_and_so_does_none():
    async def main() -> None:
        for queue, served in ((Fifo(2), 3), (None, 1)):
            bound = bind(Bulkhead(workers=1, queue=queue))
            ends = await asyncio.gather(*(ending(bound.run(a_call(1))) for _ in range(5)))

            assert [end.how for end in ends] == ["ok"] * served + [QueueFull.__name__] * (5 - served)

    virtually(main())


def test_codel_lets_a_burst_pass_and_thins_a_standing_queue():
    async def main() -> tuple[int, int]:
        burst = bind(Bulkhead(workers=1, queue=CoDel(target_s=0.1, interval_s=1)))
        await asyncio.gather(*(burst.run(a_call(0.05)) for _ in range(15)))
        standing = bind(Bulkhead(workers=1, queue=CoDel(target_s=0.1, interval_s=1)))
        await asyncio.gather(*(at(now() + i * 0.04, standing, a_call(0.05)) for i in range(1000)))
        return burst["bulkhead"].snapshot().rejected, standing["bulkhead"].snapshot().rejected

    burst_dropped, standing_dropped = virtually(main())

    assert burst_dropped == 0
    # A fifth more arrives than can be served; most of that fifth has to go.
    assert 100 <= standing_dropped <= 250


def test_codel_drops_at_first_one_an_interval_then_ever_faster_and_stops_when_the_waiting_is_short():
    async def main() -> list[float]:
        queue = CoDel(target_s=0.1, interval_s=1.0)
        queue.push(Waiter(Event(), asyncio.get_running_loop().create_future(), 0.0))
        standing = [tenth / 10 for tenth in range(41) if queue.is_overdue(0.2, tenth / 10)]
        assert not queue.is_overdue(0.05, 4.1)
        assert not queue.is_overdue(0.2, 4.2)
        return standing

    # Above the target since 0: first at 1, then 1, 1/√2, 1/√3 and 1/√4 later, at the next look.
    assert virtually(main()) == [1.0, 2.0, 2.8, 3.3, 3.8]


def test_a_deadline_that_passes_in_the_queue_rejects_without_work():
    async def main() -> None:
        bound = bind(Bulkhead(workers=1, queue=Fifo()))
        first, late = await asyncio.gather(
            ending(bound.run(a_call(5))), ending(bound.run(a_call(1, deadline=now() + 3)))
        )

        assert (first.how, late.how) == ("ok", DeadlinePassed.__name__)
        assert bound["bulkhead"].snapshot().started == 1

    virtually(main())


def test_the_number_of_workers_changes_while_events_flow():
    async def main() -> list[int]:
        bound = bind(Bulkhead(workers=1, queue=Fifo()))
        calls = [asyncio.create_task(ending(bound.run(a_call(10)))) for _ in range(20)]
        working = []
        for workers in (1, 4, 2):
            await asyncio.sleep(0)
            bound["bulkhead"].resize(workers)
            await asyncio.sleep(11)
            working.append(bound["bulkhead"].snapshot().working)
        await asyncio.gather(*calls)
        return working

    assert virtually(main()) == [1, 4, 2]


def test_a_batch_asks_once_for_many_and_gives_each_its_own():
    async def main() -> None:
        asked: list[list[int]] = []
        chain = Chain() | Batch(size_max=3, wait_s=1, workers=1)

        @chain.batched
        async def double(numbers: list[int]) -> list[int]:
            asked.append(numbers)
            await asyncio.sleep(1)
            return [2 * number for number in numbers]

        assert await asyncio.gather(*(double(i) for i in range(7))) == [0, 2, 4, 6, 8, 10, 12]
        assert asked == [[0, 1, 2], [3, 4, 5], [6]]
        # Full batches go at once; the last one waits a second for company while it has none.
        assert now() == pytest.approx(4)
        assert double.bound()["batch"].snapshot().is_balanced

    virtually(main())


def test_a_batch_that_fails_fails_for_each():
    async def main() -> list[str]:
        @(Chain() | Batch(size_max=3)).batched
        async def fail(numbers: list[int]) -> list[int]:
            raise Broken

        return [end.how for end in await asyncio.gather(*(ending(fail(i)) for i in range(2)))]

    assert virtually(main()) == ["Broken", "Broken"]


def test_a_router_goes_by_key_and_branches_have_names():
    async def main() -> None:
        chain = Chain() | Router({"slow": Chain() | Timeout(10)}, otherwise=Chain() | Timeout(1))
        bound = bind(chain)
        slow, other = await asyncio.gather(
            ending(bound.run(a_call(5, key="slow"))), ending(bound.run(a_call(5, key="other")))
        )

        assert (slow.how, other.how) == ("ok", "TimedOut")
        assert bound["router/slow/timeout"].snapshot().succeeded == 1
        assert bound["router/otherwise/timeout"].snapshot().failed == 1

    virtually(main())


def test_the_same_seed_gives_the_same_chance():
    chain = Chain() | Simulated(availability=0.5)

    async def main() -> list[str]:
        bound = chain.bind(random=Random(5))
        return [(await ending(bound.run(Event()))).how for _ in range(50)]

    assert virtually(main()) == virtually(main())
