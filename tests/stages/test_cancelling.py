"""Cancellation at every await point of every technique: it leaks no worker, no probe and no task.

A call is led step by step. It is cancelled at its first suspension, in the next run at its second, and so on until it
has none left to be cancelled at; each in two ways: while it waits, and between the end of the waiting and its waking,
which is where a worker handed over can get lost.
"""

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import coroutine

import pytest

from doubledecker.stages import (
    Adaptive,
    AsideCache,
    Backoff,
    Batch,
    Bound,
    Breaker,
    Bulkhead,
    Cache,
    Chain,
    CoDel,
    Constant,
    Deadline,
    Event,
    Fallback,
    Fault,
    Fifo,
    Hedge,
    Lifo,
    Priority,
    RateLimit,
    Retry,
    Router,
    Shed,
    Simulated,
    SingleFlight,
    Stage,
    Timeout,
    presets,
)
from stages.rehearsal import Broken, bind, ending, now, virtually


@dataclass
class Cut:
    """Cancels its task at suspension number `number`."""

    number: int
    when_waking: bool
    seen: int = 0
    is_done: bool = field(default=False)

    @coroutine
    def lead(self, work: Coroutine[object, object, object]) -> Generator[object, object, object]:
        step = partial(work.send, None)
        while True:
            try:
                waited_for = step()
            except StopIteration as end:
                return end.value
            self._suspended(waited_for)
            try:
                value = yield waited_for
                step = partial(work.send, value)
            except BaseException as error:  # noqa: BLE001 - led on, whatever it is
                step = partial(work.throw, error)

    def _suspended(self, waited_for: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.seen == self.number:
            self.is_done = True
            if self.when_waking and asyncio.isfuture(waited_for):
                # Before the task's own callback, which is added only after this.
                waited_for.add_done_callback(lambda _: task.cancel())
            else:
                task.get_loop().call_soon(task.cancel)
        self.seen += 1


async def in_three_steps() -> str:
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    await asyncio.sleep(0)
    return "answer"


async def fail() -> str:
    await asyncio.sleep(1)
    raise Broken


async def many(numbers: list[int]) -> list[str]:
    await asyncio.sleep(1)
    return ["answer" for _ in numbers]


@dataclass(frozen=True)
class Case:
    """A chain, what it calls, and how many others are inside at the same time."""

    chain: Chain
    function: object = in_three_steps
    others: int = 2
    fails_before: int = 0
    goes_on: bool = False  # by design: work that nobody waits for is not cancelled with its caller
    rest_s: float = 0.0


def one(stage: Stage) -> Chain:
    return Chain((stage,))


QUEUES = (Fifo(), Lifo(), Priority(), CoDel())
CASES = {
    "plain": Case(one(Stage())),
    **{type(queue).__name__: Case(one(Bulkhead(workers=1, queue=queue))) for queue in QUEUES},
    "no queue": Case(one(Bulkhead(workers=1))),
    "retry": Case(one(Retry(3, Backoff(1, 1))), fail),
    "timeout": Case(one(Timeout(0.5))),
    "timeout that is not reached": Case(one(Timeout(5))),
    "timeout that abandons": Case(one(Timeout(0.5, abandon=True)), goes_on=True),
    "deadline": Case(Deadline(0.5) | Bulkhead(workers=1, queue=Fifo())),
    "breaker": Case(one(Breaker())),
    "breaker, half-open": Case(one(Breaker(calls_min=1, open_s=5)), others=0, fails_before=1, rest_s=6),
    "breaker with a queue": Case(
        one(Breaker(calls_min=1, open_s=5, probes=2, workers=1, queue=Fifo())), others=1, fails_before=1, rest_s=6
    ),
    "breaker of the original": Case(one(presets.circuit_breaker())),
    "shed": Case(one(Shed(2, 5))),
    "rate limit": Case(one(RateLimit(1, wait_s_max=9))),
    "rate limit with a queue": Case(one(RateLimit(1, wait_s_max=9, workers=1, queue=Fifo()))),
    "adaptive": Case(one(Adaptive(workers=1, queue=Fifo()))),
    "cache": Case(one(Cache(ttl_s=0.1, stale_s=100))),
    "aside cache": Case(one(AsideCache()), goes_on=True),
    "single-flight": Case(one(SingleFlight())),
    "single-flight, alone": Case(one(SingleFlight()), others=0),
    "hedge": Case(one(Hedge(0.3, attempts=3))),
    "fallback": Case(one(Fallback(Chain() | Timeout(0.5))), fail),
    "router": Case(one(Router({"k": Chain() | Bulkhead(workers=1, queue=Fifo())}))),
    "fault": Case(one(Fault(0.5, delay_rate=1, delay=Constant(1)))),
    "simulated": Case(one(Simulated(Constant(1), workers=1, queue=Fifo()))),
    "batch": Case(one(Batch(2, wait_s=0.5)), many, goes_on=True),
    "all together": Case(
        Deadline(9)
        | Retry(2, Backoff(0.1, 0.1))
        | SingleFlight()
        | Hedge(0.5)
        | Breaker()
        | Bulkhead(workers=1, queue=Fifo())
        | RateLimit(1, wait_s_max=9)
        | Timeout(2)
    ),
}


def event_of(case: Case) -> Event:
    args = (1,) if case.function is many else ()
    return Event("k", function=case.function, args=args)


async def run_and_cut(case: Case, cut: Cut) -> Bound:
    """Send some others, then the one that is cut, and wait until all is quiet."""
    bound = bind(case.chain)
    for _ in range(case.fails_before):
        await ending(bound.run(Event("k", function=fail)))
    await asyncio.sleep(case.rest_s)
    others = [asyncio.create_task(ending(bound.run(event_of(case)))) for _ in range(case.others)]
    await asyncio.sleep(0)
    await asyncio.create_task(ending(cut.lead(bound.run(event_of(case)))))
    await asyncio.gather(*others)
    await asyncio.sleep(100)
    return bound


HOLDINGS = ("_due", "_began", "_flights", "_renewing", "_fetching", "_inside", "_is_gathering", "_full")


def leaks(bound: Bound) -> list[str]:
    """What is still held though nobody is inside."""
    found = [f"task {task.get_name()}" for task in asyncio.all_tasks() - {asyncio.current_task()}]
    for stage in bound._stages.values():
        snapshot = stage.snapshot()
        if not snapshot.is_balanced or snapshot.working or snapshot.queued or (stage.pool and stage.pool.busy):
            found.append(f"{stage.name}: {snapshot}")
        found += [f"{stage.name}.{name}" for name in HOLDINGS if getattr(stage, name, None)]
        if isinstance(stage, Breaker) and stage._shared.probes:
            found.append(f"{stage.name}: a probe")
    return found


@pytest.mark.parametrize("when_waking", [False, True], ids=["waiting", "waking"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_cancelling_leaks_nothing_wherever_it_hits(case: Case, when_waking: bool):
    async def main(cut: Cut) -> None:
        bound = await run_and_cut(case, cut)

        assert leaks(bound) == []
        # And the next one is not worse off for it.
        end = await ending(bound.run(event_of(case)))
        assert end.how in {"ok", "Broken", "TimedOut", "FaultInjected", "DeadlineReached"}, end
        await bound.close()

    for number in count():
        cut = Cut(number, when_waking)
        virtually(main(cut))
        if not cut.is_done:
            break
    # An aside cache never suspends its caller, and a full bulkhead only rejects.
    assert number > 0 or case in (CASES["aside cache"], CASES["no queue"], CASES["cache"])


@pytest.mark.parametrize("case", [case for case in CASES.values() if not case.goes_on])
def test_who_is_cancelled_leaves_nothing_running_behind(case: Case):
    async def main(cut: Cut) -> None:
        bound = bind(case.chain)
        await ending(cut.lead(bound.run(event_of(case))))
        moment = now()
        for _ in range(9):  # tasks that were cancelled end in the next turns of the loop
            await asyncio.sleep(0)

        assert leaks(bound) == []
        assert now() == moment

    for number in count():
        cut = Cut(number, when_waking=False)
        virtually(main(cut))
        if not cut.is_done:
            break


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_closing_in_the_middle_ends_all_that_runs_in_the_background(case: Case):
    async def main(moment: float) -> None:
        bound = bind(case.chain)
        calls = [asyncio.create_task(ending(bound.run(event_of(case)))) for _ in range(3)]
        await asyncio.sleep(moment)
        await bound.close()
        assert len(bound.context.tasks) == 0
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.sleep(100)
        await bound.close()

        assert len(asyncio.all_tasks()) == 1
        assert all(snapshot.is_balanced and snapshot.working == 0 for snapshot in bound.snapshots())

    for tenth in range(0, 25, 3):
        virtually(main(tenth / 10))


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_half_open_never_admits_more_than_its_probes(probes: int):
    """In any order of arrivals, answers and cancellations; here at every moment of a crowded half-open."""
    inside = 0
    most = 0

    async def ask(takes_s: float) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await asyncio.sleep(takes_s)
        finally:
            inside -= 1

    async def main() -> None:
        nonlocal most
        bound = bind(Breaker(calls_min=1, open_s=5, probes=probes))
        await ending(bound.run(Event(function=fail)))
        await asyncio.sleep(6)
        most = 0
        calls = []
        for i in range(60):
            calls.append(asyncio.create_task(ending(bound.run(Event(function=ask, args=(1_000,))))))
            if i % 7 == 6:
                calls[i - 3].cancel()
            await asyncio.sleep(0.1)
        assert bound["breaker"].state == "half-open"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    virtually(main())

    assert 0 < most <= probes
