"""Slots that go on from one parked job of a subscriber to the next, without giving up their place."""

import asyncio

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus import registry
from doubledecker.model.event import Kind
from doubledecker.model.job import MAIN
from doubledecker.store import jobs, subscribers
from doubledecker.worker import process
from doubledecker.worker.monitor import Monitor
from harness import TestBus, a_bus, an_event, within
from receiver import Receiver

# A batch that is taken, refused, parked, put back, taken and admitted one by one needs eleven.
CALLS_MAX = 5


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


async def test_who_was_taken_first_is_parked_before_others_are_parked_without_asking(one: Topology):
    """A lock that was just released looks free, and a job that was just taken has not come to it: order was lost."""
    async with (
        a_bus(one, workers=0) as bus,
        build.open_bus(bus.settings) as own,
        build.open_chains(bus.settings) as chains,
    ):
        home, token = own.partitions.home, await bus.token("s")
        await bus.subscribe(token, "http://127.0.0.1:9/", "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(6)])
        await own.registry.refresh()
        deliverer = process.make_worker(bus.settings, own, chains, Monitor([]))._deliverer
        [subscriber] = own.registry.snapshot.subscribers.values()
        await subscribers.enter(home, subscriber, slot="other", lease_ms=60_000, partition=0, is_retry=False)
        first, *rest = (await jobs.take(home, {MAIN: [f"slot-{n}" for n in range(6)]}, process="p")).taken
        await deliverer.deliver(first)
        delivering = [asyncio.create_task(deliverer.deliver(taken)) for taken in rest]

        busy = await deliverer.busy()

        parked = await home.command("LRANGE", home.key(f"jobs:parked:main:{subscriber.token}"), 0, -1)
        assert busy == [subscriber.token]
        assert parked == [taken.packed for taken in reversed([first, *rest])]
        await asyncio.gather(*delivering)


async def test_a_worker_that_stops_goes_on_to_nothing_and_leaves_no_place_taken(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=0.02) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=2)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(60)])
        attempts_at_stop = await _work(bus, receiver, until_events=10)

        attempts = receiver.attempts
        holds = await bus.partitions.home.command("KEYS", bus.partitions.home.key("holds:*"))
        left = (await jobs.counts(bus.partitions.home))[MAIN, "index"]
        await _work(bus, receiver, until_events=60)

    assert holds == []
    assert left == 60 - attempts
    # Those that were calling, and those that had just got their next.
    assert attempts - attempts_at_stop <= 2 * 2
    assert sorted(receiver.ids) == sorted(ids)


async def test_no_partition_waits_until_another_has_nothing_left(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        tenants = [f"tenant-{n}" for n in range(12)]
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        events = [an_event(n, tenant=tenant) for n in range(40) for tenant in tenants]
        await bus.publish(await bus.token("publisher"), events)
        await receiver.until_events(len(events), within_s=20)

    places = [bus.partitions.of(Kind("widgets", "update", str(event["tenant"]))).index for event in receiver.events]
    assert set(places[:100]) == set(range(topology.partitions))


async def test_a_subscriber_that_begins_to_fail_is_not_gone_on_with(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if 20 <= n < 23 else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=4)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(100)])
        await receiver.until_events(100)

    assert sorted(receiver.ids) == sorted(ids)


@pytest.mark.parametrize("places", [1, 3])
async def test_fewer_places_are_kept_to_by_those_who_are_calling(
    one: Topology, places: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "FOLLOW_S", 0.05)
    async with a_bus(one, workers=2) as bus, Receiver(delay_s=0.02) as receiver:
        subscriber, publisher = await bus.token("s"), await bus.token("publisher")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=6)
        ids = await bus.publish(publisher, [an_event(n) for n in range(120)])
        await receiver.until_events(12)
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=places)
        await receiver.until_events(60)
        receiver.in_flight_max = 0
        await receiver.until_events(120)

    assert receiver.in_flight_max == places
    assert sorted(receiver.ids) == sorted(ids)


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
