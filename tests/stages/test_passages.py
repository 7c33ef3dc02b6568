"""One event, sent twice: what a stage knows of one passage is never taken for that of another.

A retry sends the event that it has once more, and `Timeout(abandon=True)` leaves the first call running beside it. A
stage of one's own may send an event as often as it likes.
"""

import asyncio

import pytest

from doubledecker.stages import (
    Adaptive,
    Batch,
    Breaker,
    Bulkhead,
    Cache,
    CoDel,
    Count,
    Deadline,
    Event,
    Fifo,
    Hedge,
    Lifo,
    Priority,
    RateLimit,
    Retry,
    Shed,
    SingleFlight,
    Stage,
    Timeout,
)
from stages.rehearsal import Broken, bind, ending, now, virtually

INSIDE = {
    "adaptive": Adaptive(workers=4, queue=Fifo()),
    "rate limit": RateLimit(10, burst=1, wait_s_max=100),
    "breaker": Breaker(Count(2), open_s=0.5, probes=2),
    "slow breaker": Breaker(Count(20), slow_s=50.0),
    "bulkhead": Bulkhead(workers=4, queue=Fifo()),
    "lifo": Bulkhead(workers=4, queue=Lifo()),
    "priority": Bulkhead(workers=4, queue=Priority()),
    "codel": Bulkhead(workers=4, queue=CoDel()),
    "shed": Shed(50, 100),
    "deadline": Deadline(100.0),
    "cache": Cache(10),
    "single flight": SingleFlight(),
    "batch": Batch(2, workers=4),
    "hedge": Hedge(200.0),
    "stage": Stage(workers=4, queue=Fifo()),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_retry_beside_its_abandoned_call_brings_the_answer(name: str):
    takes_s = iter([5.0, 0.1])

    async def ask(*_: object) -> list[str]:
        await asyncio.sleep(next(takes_s))
        return ["answer"]

    async def main() -> tuple[str, str, int]:
        async with bind(Retry(2) | Timeout(1.0, abandon=True) | INSIDE[name]) as bound:
            ended = await ending(bound.run(Event("k", function=ask)))
            await asyncio.sleep(60)
            last = bound.snapshots()[-1]
            return ended.how, last.stage, last.failed + last.working

    how, _, wrong = virtually(main())

    # In a single flight the second call shares the first, and is as late.
    assert how == ("TimedOut" if name == "single flight" else "ok")
    assert wrong == 0


class Twice(Stage):
    """Sends what it gets twice, at the same time."""

    async def work(self, event: Event) -> object:
        return await asyncio.gather(self.inner(event), self.inner(event))


@pytest.mark.parametrize("name", sorted(INSIDE.keys() - {"batch"}))
def test_a_stage_may_send_one_event_twice_at_a_time(name: str):
    async def ask() -> str:
        await asyncio.sleep(1.0)
        return "answer"

    async def main() -> object:
        async with bind(Twice() | INSIDE[name]) as bound:
            return await bound.run(Event("k", function=ask))

    assert virtually(main()) == ["answer", "answer"]


def test_each_of_two_passages_waits_for_its_own_turn():
    moments: list[float] = []

    async def ask() -> None:
        moments.append(now())

    async def main() -> None:
        await bind(Twice() | Twice() | RateLimit(1, wait_s_max=10)).run(Event(function=ask))

    virtually(main())

    assert sorted(moments) == pytest.approx([0, 1, 2, 3])


def test_a_call_from_before_the_circuit_opened_is_not_taken_for_the_probe():
    """The abandoned call of the same event ends while its retry is the probe; it tells of the past."""
    ends = iter([(3.0, False), (0.1, True), (0.1, True), (9.0, False)])

    async def ask() -> str:
        takes_s, fails = next(ends)
        await asyncio.sleep(takes_s)
        if fails:
            raise Broken
        return "answer"

    async def main() -> list[str]:
        async with bind(Breaker(Count(2), calls_min=2, open_s=1.0)) as bound:
            event = Event(function=ask)
            old = asyncio.create_task(ending(bound.run(event)))
            await asyncio.sleep(0)
            for _ in range(2):
                await ending(bound.run(event))
            await asyncio.sleep(1.5)
            probe = asyncio.create_task(ending(bound.run(event)))
            await old
            states = [bound["breaker"].state]
            await probe
            return [*states, bound["breaker"].state]

    assert virtually(main()) == ["half-open", "closed"]


def test_each_attempt_has_a_deadline_of_its_own_and_the_event_keeps_what_it_had():
    async def ask() -> None:
        await asyncio.sleep(5.0)

    async def main() -> tuple[str, float, float | None]:
        event = Event(function=ask)
        ended = await ending(bind(Retry(3, never=()) | Deadline(1.0)).run(event))
        return ended.how, ended.at, event.deadline

    assert virtually(main()) == ("DeadlineReached", 3.0, None)


def test_a_priority_that_changes_in_the_queue_loses_nobody():
    async def main() -> list[str]:
        bound = bind(Bulkhead(workers=1, queue=Priority()))
        event = Event(function=lambda: asyncio.sleep(1.0))
        first = asyncio.create_task(ending(bound.run(event)))
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(ending(bound.run(event))) for _ in range(2)]
        await asyncio.sleep(0.1)
        event.priority = 7
        waiting[0].cancel()
        return [ended.how for ended in await asyncio.gather(first, *waiting)]

    assert virtually(main()) == ["ok", "Cancelled", "ok"]
