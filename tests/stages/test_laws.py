"""Laws that hold for every technique and any traffic."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubledecker.stages import (
    Adaptive,
    Backoff,
    Batch,
    Bound,
    Breaker,
    Budget,
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
    Notice,
    Priority,
    RateLimit,
    Retry,
    Router,
    Shed,
    SingleFlight,
    Snapshot,
    Stage,
    Time,
    Timeout,
    presets,
    value,
)
from stages.rehearsal import Ending, a_call, ending, now, virtually

STAGES: list[Stage] = [
    Stage(),
    Retry(3, Backoff(0.5, 2), Budget(0.5)),
    Timeout(2.0),
    Timeout(1.5, abandon=True),
    Deadline(3.0),
    Breaker(calls_min=2, open_s=2.0),
    Breaker(Time(3.0), calls_min=1, open_s=1.0, per_key=True),
    presets.circuit_breaker(capacity=3, time_in_open_state=2),
    Shed(1, 4),
    RateLimit(2.0, burst=2, wait_s_max=1.0),
    Cache(2, ttl_s=1.0, stale_s=1.0, negative_s=1.0),
    SingleFlight(),
    Hedge(0.7),
    Fallback(Chain() | Timeout(1.0), value("else")),
    Router({"a": Chain() | Timeout(1.0)}),
    Fault(0.2, delay_rate=0.2, delay=Constant(0.5)),
]
POOLED: list[Stage] = [
    Bulkhead(workers=2, queue=Fifo(3)),
    Bulkhead(workers=1, queue=Lifo(3)),
    Bulkhead(workers=1, queue=Priority(4)),
    Bulkhead(workers=1, queue=CoDel(target_s=0.5, interval_s=1.0)),
    Bulkhead(workers=2),
    Adaptive(workers=2, queue=Fifo(2), target_s=1.0),
    Breaker(calls_min=2, open_s=2.0, workers=1, queue=Fifo(2)),
    Batch(3, wait_s=0.5, workers=1, queue=Fifo(4)),
]


@dataclass(frozen=True)
class Call:
    """A call at `at`, that takes and ends as it says, given up after a while or never."""

    at: float
    takes_s: float
    fails: bool
    key: str
    priority: int
    patience_s: float | None


tenths = st.integers(0, 40).map(lambda n: n / 10)
calls = st.lists(
    st.builds(
        Call,
        at=tenths,
        takes_s=tenths,
        fails=st.booleans(),
        key=st.sampled_from(["a", "b", "c"]),
        priority=st.integers(0, 2),
        patience_s=st.one_of(st.none(), tenths),
    ),
    max_size=20,
)


async def make(call: Call, bound: Bound) -> Ending:
    await asyncio.sleep(call.at)
    event = a_call(call.takes_s, fails=call.fails, key=call.key, priority=call.priority)
    task = asyncio.create_task(ending(bound.run(event)))
    if call.patience_s is not None:
        asyncio.get_running_loop().call_later(call.patience_s, task.cancel)
    return await task


async def trace(chain: Chain, calls: list[Call]) -> tuple[list[Ending], list[tuple[object, ...]]]:
    """How every call ended and when, and what the stages counted; without the workers, of which one has none."""
    async with chain.bind(random=Random(3)) as bound:
        ends = list(await asyncio.gather(*(make(call, bound) for call in calls)))
        await asyncio.sleep(100)
        counted = [(s.arrived, s.rejected, s.started, s.succeeded, s.failed, s.cancelled) for s in bound.snapshots()]
        return ends, counted


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
@settings(max_examples=12, deadline=None)
@given(calls=calls)
def test_without_a_queue_is_exactly_as_with_an_unlimited_queue_and_pool(stage: Stage, calls: list[Call]):
    without = virtually(trace(Chain((stage,)), calls))
    unlimited = virtually(trace(Chain((replace(stage, queue=Fifo()),)), calls))
    plenty = virtually(trace(Chain((replace(stage, queue=Fifo(), workers=10**9),)), calls))

    assert without == unlimited == plenty


@settings(max_examples=150, deadline=None)
@given(
    stages=st.lists(st.sampled_from(STAGES + POOLED), min_size=1, max_size=4),
    calls=calls,
    looks=st.lists(tenths, max_size=5),
)
def test_at_every_moment_what_arrived_is_somewhere(stages: list[Stage], calls: list[Call], looks: list[float]):
    async def look(bound: Bound, moment: float) -> bool:
        await asyncio.sleep(moment)
        return all(snapshot.is_balanced for snapshot in bound.snapshots())

    async def main() -> None:
        async with Chain(tuple(stages)).bind(random=Random(3)) as bound:
            made = asyncio.gather(*(make(call, bound) for call in calls))
            assert all(await asyncio.gather(*(look(bound, moment) for moment in looks)))
            await made
            await asyncio.sleep(200)

            for snapshot in bound.snapshots():
                assert snapshot.is_balanced, snapshot
                assert (snapshot.queued, snapshot.working) == (0, 0), snapshot
            assert len(bound.context.tasks) == 0

    virtually(main())


@settings(max_examples=150, deadline=None)
@given(stages=st.lists(st.sampled_from(STAGES + POOLED), min_size=1, max_size=3), calls=calls)
def test_a_hook_hears_every_step_of_every_event_exactly_once(stages: list[Stage], calls: list[Call]):
    """What a hook counts is what the stages count; each event arrives once at a stage, and its last step is an end."""
    heard: dict[str, Counter[str]] = defaultdict(Counter)
    walks: dict[tuple[str, int], list[str]] = defaultdict(list)
    kept: list[Event] = []

    def hook(notice: Notice) -> None:
        if notice.what in {"arrived", "rejected", "started", "succeeded", "failed", "cancelled"}:
            heard[notice.stage][notice.what] += 1
            kept.append(notice.event)  # alive, so that no other event gets its id
            walks[notice.stage, id(notice.event)].append(notice.what)

    async def main() -> tuple[Snapshot, ...]:
        async with Chain(tuple(stages)).bind(random=Random(3), hook=hook) as bound:
            await asyncio.gather(*(make(call, bound) for call in calls))
            await asyncio.sleep(200)
            return bound.snapshots()

    for one in virtually(main()):
        counted = {"arrived": one.arrived, "rejected": one.rejected, "started": one.started}
        counted |= {"succeeded": one.succeeded, "failed": one.failed}
        counted |= {"cancelled": one.cancelled + one.cancelled_in_queue}
        assert {what: heard[one.stage][what] for what in counted} == counted, one.stage
    for steps in walks.values():
        # A retry leads the same event to the stage inside more than once, and beside a call that was abandoned.
        arrived = started = ended = 0
        for step in steps:
            arrived, started = arrived + (step == "arrived"), started + (step == "started")
            ended += step not in {"arrived", "started"}
            assert started <= arrived >= ended, steps
        assert ended == arrived, steps


@settings(max_examples=50, deadline=None)
@given(calls=calls, workers=st.integers(1, 3), places=st.integers(0, 3))
def test_never_more_at_work_or_waiting_than_allowed(calls: list[Call], workers: int, places: int):
    async def main() -> None:
        bound = (Chain() | Bulkhead(workers=workers, queue=Fifo(places))).bind()
        made = asyncio.gather(*(make(call, bound) for call in calls))
        while now() < 5:
            snapshot = bound["bulkhead"].snapshot()
            assert snapshot.working <= workers
            assert snapshot.queued <= places
            assert snapshot.queued == 0 or snapshot.working == workers
            await asyncio.sleep(0.05)
        await made

    virtually(main())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=3_000), st.floats(0.01, 1))
def test_a_quantile_is_at_most_nine_percent_off(durations_s: list[float], share: float):
    from math import ceil

    from doubledecker.stages.statistics import Histogram

    histogram = Histogram()
    for duration_s in durations_s:
        histogram.note(duration_s)
    frozen = histogram.freeze()
    exact = sorted(durations_s)[ceil(share * len(durations_s)) - 1]

    assert frozen.count == len(durations_s)
    assert frozen.quantile_s(share) == pytest.approx(exact, rel=0.09, abs=1e-9)
    assert [under for _, under in frozen.cumulative()][-1] == len(durations_s)
