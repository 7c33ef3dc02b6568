"""Permits: how many calls to a subscriber are under way, over all workers, and how little it costs to keep to that."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from conftest import Topology
from doubledecker.model.event import EventKind
from doubledecker.model.job import MAIN
from doubledecker.store import deliveries, jobs, receivers
from doubledecker.worker import process
from harness import TestBus, a_bus, an_event, within
from receiver import Receiver

# One call settles what slots have done and gives them what is next. With one permit the worker also looks, in vain,
# whether there is more for its other slots. Those of chores and the registry are among these too.
CALLS_MAX = 2.4
CALLS_MAX_OF_FOUR = 0.8


async def test_a_backlog_is_delivered_in_order_and_a_batch_takes_few_calls(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        before = await _calls(bus)

        ids = await bus.publish(publisher, [an_event(n) for n in range(300)])
        await receiver.until_events(300)

        assert receiver.ids == ids
        assert receiver.in_flight_max == 1
        assert await _calls(bus) - before < 300 * CALLS_MAX


async def test_what_calls_at_a_time_have_done_is_settled_together(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=4)
        before = await _calls(bus)

        await bus.publish(publisher, [an_event(n) for n in range(600)])
        await receiver.until_events(600)

        assert await _calls(bus) - before < 600 * CALLS_MAX_OF_FOUR


async def test_a_worker_that_stops_takes_nothing_more_and_leaves_no_permit_taken(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=0.02) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=2)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(60)])
        attempts_at_stop = await _work(bus, receiver, until_events=10)

        attempts = receiver.attempts
        held = await _held(bus)
        left = (await jobs.counts(bus.partitions.home))[MAIN, "index"]
        await _work(bus, receiver, until_events=60)

    assert held == 0
    assert left == 60 - attempts
    # Those that were calling, and those that had just got their next.
    assert attempts - attempts_at_stop <= 2 * 2
    assert sorted(receiver.ids) == sorted(ids)


async def test_at_a_trickle_an_event_takes_two_calls_to_take_and_to_settle_it(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """Chores are looked for when there are some, not with every event."""
    calls = Counter[str]()
    monkeypatch.setattr(deliveries, "turn", _counted(calls, "turn", deliveries.turn))
    monkeypatch.setattr(jobs, "take", _counted(calls, "take", jobs.take))
    async with a_bus(one) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event()])
        await receiver.until_events(1)
        calls.clear()
        for number in range(50):
            await bus.publish(publisher, [an_event(number)])
            await receiver.until_events(number + 2)
            await asyncio.sleep(0.01)

    # A few more of both are by timers.
    assert 50 < calls["turn"] <= 2 * 50 + 10
    assert calls["take"] <= 25


def _counted(
    calls: Counter[str], name: str, call: Callable[..., Awaitable[object]]
) -> Callable[..., Awaitable[object]]:
    async def counted(*words: object, **named: object) -> object:
        calls[name] += 1
        return await call(*words, **named)

    return counted


async def test_no_partition_waits_until_another_has_nothing_left(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        tenants = [f"tenant-{n}" for n in range(12)]
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        events = [an_event(n, tenant=tenant) for n in range(40) for tenant in tenants]
        await bus.publish(await bus.token("publisher"), events)
        await receiver.until_events(len(events), within_s=20)

    places = [
        bus.partitions.of(EventKind("widgets", "update", str(event["tenant"]))).index for event in receiver.events
    ]
    assert set(places[:100]) == set(range(topology.partitions))


async def test_a_subscriber_that_fails_for_a_moment_gets_everything(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if 20 <= n < 23 else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=4)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(100)])
        await receiver.until_events(100)

    assert sorted(receiver.ids) == sorted(ids)


@pytest.mark.parametrize("permits", [1, 3, 8])
async def test_a_change_of_concurrency_holds_at_once(one: Topology, permits: int):
    """No worker has to hear of it: permits are counted in Redis."""
    async with a_bus(one, workers=2) as bus, Receiver(delay_s=0.05) as receiver:
        subscriber, publisher = await bus.token("s"), await bus.token("publisher")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=4)
        ids = await bus.publish(publisher, [an_event(n) for n in range(100)])
        await receiver.until_attempts(12)

        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=permits)
        # Those that were under way then may still be.
        await receiver.until_attempts(receiver.attempts + 4)
        await receiver.until(lambda: receiver.in_flight <= permits)
        receiver.in_flight_max = 0
        await receiver.until_attempts(receiver.attempts + 24)
        seen = receiver.in_flight_max
        await receiver.until_events(100)

    assert seen == permits
    assert sorted(receiver.ids) == sorted(ids)


async def test_several_partitions_divide_the_permits_and_have_one_at_least(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver(delay_s=0.02) as few, Receiver(delay_s=0.02) as many:
        await bus.subscribe(await bus.token("few"), few.url, "widgets", timeout=0, max=1, concurrency=1)
        await bus.subscribe(await bus.token("many"), many.url, "widgets", timeout=0, max=1, concurrency=5)
        await bus.publish(await bus.token("publisher"), [an_event(n, tenant=f"t{n % 12}") for n in range(120)])
        await few.until_events(120, within_s=30)
        await many.until_events(120, within_s=30)

    assert few.in_flight_max == topology.partitions
    assert many.in_flight_max == 5


async def _work(bus: TestBus, receiver: Receiver, *, until_events: int) -> int:
    """Run a worker until so many events have come; says how many calls had come when it was told to stop."""
    stop = asyncio.Event()
    working = asyncio.create_task(process.run(bus.settings, stop))
    await receiver.until_events(until_events)
    stop.set()
    attempts = receiver.attempts
    await within(working, 10)
    return attempts


async def _calls(bus: TestBus) -> int:
    """How many scripts the server has run."""
    reply = await bus.partitions.home.command("INFO", "commandstats")
    assert isinstance(reply, bytes)
    [line] = [line for line in reply.decode().splitlines() if line.startswith("cmdstat_evalsha:")]
    return int(line.partition("calls=")[2].partition(",")[0])


async def _held(bus: TestBus) -> int:
    """How many permits of any receiver are taken."""
    tokens = [row["subscriber"] for row in await bus.get("/subscribers")]
    states = [await receivers.states(partition, tokens) for partition in bus.partitions.all]
    return sum(state.calls for part in states for state in part.values())
