"""Batches that are not taken as a whole: split until the events to blame stand alone, which become dead letters."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

import pytest

from conftest import Topology
from doubledecker.model.dead_letter import DeadLetter, LetterFilter
from doubledecker.store import batches, counters, dead_letters
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from worker.test_deliver import _until
from worker.test_poison import refuse

# Attempts at an event that stands alone, one after the other.
RETRY = [10, 10, 10]
QUICK = {"backoff_base_ms": 20, "backoff_cap_ms": 200}


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_one_poison_event_in_a_hundred_costs_few_requests_and_becomes_a_dead_letter(
    one: Topology, status: int, concurrency: int
):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        poison = {"id-37"}
        refuse(receiver, frozenset(poison), status)
        subscriber = await bus.token("s")
        options = {"timeout": 20, "max": 100, "concurrency": concurrency, "retry": RETRY}
        await bus.subscribe(subscriber, receiver.url, "widgets", **options)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(n, id=f"id-{n}") for n in range(100)])

        async with others(bus, publisher):
            [letter] = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 1)

        assert sorted({*receiver.ids} & {f"id-{n}" for n in range(100)}) == good(100, poison)
        assert (letter.status, letter.reason, letter.attempts, letter.topic) == (status, "attempts", 4, "widgets")
        assert '"id-37"' in letter.event.decode()
        check_requests(receiver, poison, 100, tries=1 if status == 400 else 4)
        await nothing_waits(bus, subscriber)


@pytest.mark.parametrize("status", [400, 500])
async def test_five_poison_events_in_ten_thousand_are_found(one: Topology, status: int):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        poison = {"id-0", "id-1", "id-4711", "id-5000", "id-9999"}
        refuse(receiver, frozenset(poison), status)
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=1_000, max=10_000, retry=RETRY)
        publisher = await bus.token("p")
        for start in range(0, 10_000, 1_000):
            await bus.publish(publisher, [an_event(n, id=f"id-{n}") for n in range(start, start + 1_000)])

        async with others(bus, publisher):
            found = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == len(poison), within_s=60)

        assert sorted({*receiver.ids} & {f"id-{n}" for n in range(10_000)}) == good(10_000, poison)
        assert {letter.status for letter in found} == {status}
        check_requests(receiver, poison, 10_000, tries=1 if status == 400 else 4)
        await nothing_waits(bus, subscriber)


async def test_events_that_a_subscriber_names_as_failed_are_tried_again_and_then_dead(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        receiver.answer = lambda events: {"failed": [e["id"] for e in events if e["id"] in {"id-3", "id-5"}]}
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=50, max=10, retry=RETRY)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(10)])

        found = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 2)

        assert receiver.attempted == [[f"id-{n}" for n in range(10)], *[["id-3", "id-5"]] * 3]
        assert {(letter.status, letter.attempts, letter.detail) for letter in found} == {(200, 4, "named in `failed`")}
        rows = (await bus.get("/subscriber/attempts", subscriber))["attempts"]
        assert [each["detail"] for each in rows] == ["2 of 2 named as failed"] * 3 + ["2 of 10 named as failed"]
        await nothing_waits(bus, subscriber)
        [row] = await bus.get("/subscribers", subscriber)
        assert (row["events"]["sent"], row["dead"]) == (8, 2)
        counted = await counters.read(bus.partitions.home)
        events = f"delivery.events:subscriber={row['subscriber']},outcome="
        assert (counted[events + "delivered"], counted[events + "refused"]) == (8, 8)


async def test_a_batch_whose_events_are_all_named_as_failed_counts_none_as_sent(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        receiver.answer = lambda events: {"failed": [e["id"] for e in events]}
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=50, max=10, retry=[10, 10])
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(10)])

        await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 10)

        [row] = await bus.get("/subscribers", subscriber)
        assert (row["events"]["sent"], row["dead"]) == (0, 10)


async def test_broken_code_that_refuses_everything_is_probed_and_given_nothing_up(one: Topology):
    async with (
        a_bus(one, backoff_base_ms=1_000, backoff_cap_ms=300_000) as bus,
        Receiver(plan=lambda _: 400) as receiver,
    ):
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=100, concurrency=1)
        publisher = await bus.token("p")
        for start in range(0, 5_000, 1_000):
            await bus.publish(publisher, [an_event(start + n) for n in range(1_000)])
        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["failures"] > 0)

        await asyncio.sleep(2)

        assert receiver.attempts < 40
        assert row["events"]["queued"] == 5_000
        receiver.plan = lambda _: 200
        await receiver.until_events(5_000, within_s=20)
        assert await letters(bus, subscriber) == []


async def test_with_a_retry_of_its_own_an_absent_receiver_is_given_up(one: Topology):
    async with a_bus(one, **QUICK) as bus:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, "http://127.0.0.1:9/", "widgets", timeout=20, max=100, retry=[10, 10])
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(60)])

        found = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 60)

        assert {(letter.reason, letter.status) for letter in found} == {("attempts", 0)}
        await nothing_waits(bus, subscriber)


async def test_a_receiver_that_is_back_is_not_flooded(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver(plan=lambda n: 503 if n == 1 else 200, delay_s=0.05) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=8)
        seen: list[int] = []
        plan = receiver.plan
        receiver.plan = lambda n: seen.append(receiver.in_flight) or plan(n)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(0)])
        await receiver.until_attempts(1)
        await bus.publish(publisher, [an_event(n) for n in range(1, 40)])

        await receiver.until_events(40)

        assert seen[:3] == [1, 1, 1]
        assert max(seen[:4]) <= 2
        assert max(seen) == 8


def good(count: int, poison: set[str]) -> list[str]:
    return sorted({f"id-{n}" for n in range(count)} - poison)


def check_requests(receiver: Receiver, poison: set[str], count: int, *, tries: int) -> None:
    """About 2·log2(n) extra requests a poison: those that hold one, and the other half of each, until it is alone."""
    steps = math.ceil(math.log2(count))
    searching = [ids for ids in receiver.attempted if poison & {*ids} and len(ids) > 1]
    assert len(searching) <= tries + len(poison) * steps
    of_these = [ids for ids in receiver.attempted if {*ids} & {f"id-{n}" for n in range(count)}]
    alone = [ids for ids in of_these if len(ids) == 1 and ids[0] in poison]
    assert len(of_these) - len(alone) <= tries + len(poison) * 2 * steps


@contextlib.asynccontextmanager
async def others(bus: TestBus, publisher: str) -> AsyncIterator[None]:
    """Publish further events for as long as the block runs: while some are taken, it is not the receiver."""

    async def publish() -> None:
        while True:
            await bus.publish(publisher, [an_event(0)])
            await asyncio.sleep(0.02)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def letters(bus: TestBus, secret: str) -> list[DeadLetter]:
    [row] = await bus.get("/subscribers", secret)
    found: list[DeadLetter] = []
    for partition in bus.partitions.all:
        stamped = await dead_letters.choose(partition, row["subscriber"], LetterFilter(), most=100)
        found += await dead_letters.read(partition, row["subscriber"], [each.id for each in stamped])
    return found


async def nothing_waits(bus: TestBus, secret: str) -> None:
    """Every gauge is back at nothing, and no key of a batch is left."""
    await _until(lambda: bus.get("/subscribers", secret), lambda rows: rows[0]["events"]["queued"] == 0)
    for partition in bus.partitions.all:
        events, waiting = await batches.gauges(partition)
        assert (set(events.values()), set(waiting.values())) == ({0}, {0})
        assert await partition.command("KEYS", partition.key("batch:*")) == []
        assert await partition.command("HGETALL", partition.key("batches:bytes")) == []
        assert await partition.command("ZCARD", partition.key("batches:index")) == 0
