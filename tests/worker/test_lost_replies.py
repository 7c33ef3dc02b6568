"""Replies of Redis that get lost: what was asked is asked again, and nothing is delivered, logged or counted twice."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from conftest import Topology
from cutting import Road, a_road
from doubledecker.store import counters, jobs
from doubledecker.store.journal import AttemptRecord
from doubledecker.worker import deliver, process, push
from harness import TestBus, a_bus, an_event, within
from receiver import Receiver
from watching import a_queue, look, register, until_empty
from worker.test_deliver import _attempts, _until

EVENTS = 100
# Answers of every kind: delivered, failed twice in a row, refused.
PLAN = (200, 200, 500, 500, 200, 400, 200)

_LINE = re.compile(r"delivery\.attempted .*?attempt=(\d+) batch=(\S+) .*? outcome=(\w+) ")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are many pauses here, and Redis is never away."""
    for module in (deliver, push):
        monkeypatch.setattr(module, "_PAUSE_S", 0.01)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_an_attempt_is_logged_journaled_and_counted_once(
    one: Topology, concurrency: int, capsys: pytest.CaptureFixture[str]
):
    async with (
        a_bus(one, workers=0) as bus,
        Receiver(plan=lambda n: PLAN[n % len(PLAN)]) as receiver,
        a_road(one.url, "delivery_turn", every=4) as road,
    ):
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=concurrency)
        ids = await bus.publish(await bus.token("p"), [an_event(n) for n in range(EVENTS)])
        capsys.readouterr()
        async with a_worker(bus, road):
            await receiver.until_events(EVENTS, within_s=60)
            await _until(lambda: jobs.counts(bus.partitions.home), lambda found: found["main", "index"] == 0)

        assert road.cut > 10
        assert sorted(receiver.ids) == sorted(ids)
        assert receiver.in_flight_max <= concurrency
        attempts = await _attempts(bus.partitions)
        assert len(attempts) == receiver.attempts
        assert logged(capsys) == Counter((a.attempt, a.batch, a.outcome) for a in attempts)
        await _check_counts(bus, attempts)


async def test_a_pushed_batch_is_logged_journaled_and_counted_once(one: Topology, capsys: pytest.CaptureFixture[str]):
    async with (
        a_bus(one, workers=0) as bus,
        Receiver(plan=lambda n: PLAN[n % len(PLAN)]) as receiver,
        a_road(one.url, "permit_settle", every=3) as road,
    ):
        queue = a_queue(receiver.url, timeout_ms=0, max_events=1, concurrency=1, attempts_max=1_000)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("p"), [an_event(n) for n in range(60)])
        capsys.readouterr()
        async with a_worker(bus, road):
            await receiver.until_events(60, within_s=60)
            await until_empty(bus.partitions, queue)

        assert road.cut > 5
        assert (await look(bus.partitions, queue)).dead == 0
        attempts = await _attempts(bus.partitions)
        assert len(attempts) == receiver.attempts
        assert logged(capsys) == Counter((a.attempt, a.batch, a.outcome) for a in attempts)
        await _check_counts(bus, attempts)


async def test_a_job_whose_reply_was_lost_is_run_once_by_the_slot_that_has_it(one: Topology):
    async with (
        a_bus(one, workers=0) as bus,
        Receiver() as receiver,
        a_road(one.url, "delivery_turn", every=2) as road,
    ):
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("p")
        async with a_worker(bus, road):
            for number in range(10):
                await bus.publish(publisher, [an_event(number)])
                await receiver.until_events(number + 1)

        assert receiver.attempts == 10


async def _check_counts(bus: TestBus, attempts: list[AttemptRecord]) -> None:
    """The counters say what the journal says."""
    found = await counters.read(bus.partitions.home)
    name = re.compile(r"delivery\.(batches|events|time):subscriber=\S+,outcome=(\w+)")
    counted = {match.groups(): value for field, value in found.items() if (match := name.fullmatch(field))}
    outcomes = Counter(attempt.outcome for attempt in attempts)
    assert {what: value for (kind, what), value in counted.items() if kind == "batches"} == outcomes
    assert {what: value for (kind, what), value in counted.items() if kind == "events"} == outcomes
    took_ms: Counter[str] = Counter()
    for attempt in attempts:
        took_ms[attempt.outcome] += attempt.took_ms
    assert {what: value for (kind, what), value in counted.items() if kind == "time"} == took_ms


def logged(capsys: pytest.CaptureFixture[str]) -> Counter[tuple[int, str, str]]:
    """How often each attempt was logged."""
    found = _LINE.findall(capsys.readouterr().err)
    return Counter((int(attempt), batch, outcome) for attempt, batch, outcome in found)


@asynccontextmanager
async def a_worker(bus: TestBus, road: Road) -> AsyncIterator[None]:
    """A worker that goes to Redis by a road of its own."""
    stop = asyncio.Event()
    working = asyncio.create_task(process.run(replace(bus.settings, redis_url=road.url), stop))
    try:
        yield
    finally:
        stop.set()
        await within(working, 10)
