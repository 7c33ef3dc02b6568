"""Lanes: a worker looks for jobs whenever there may be some, and does nothing while there are none, or no slot."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from conftest import Topology
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BusAway
from doubledecker.store import deliveries, jobs, receivers
from doubledecker.store.deliveries import Settled, Turn
from doubledecker.store.partitions import Partition
from doubledecker.worker import deliver, process
from doubledecker.worker.deliver import Deliveries
from doubledecker.worker.watch import Watch
from harness import a_bus, an_event, within
from laws.world import Ear
from receiver import Receiver
from worker.test_bells import _tenant_of
from worker.test_deliver import _until

# So long that whoever sleeps until then has slept too long.
ASLEEP_S = 60.0


@pytest.fixture
def two(one: Topology) -> Topology:
    """Two partitions of one server."""
    return Topology("two", one.url, 2, one.node_urls)


async def test_a_bell_that_rings_during_a_call_is_heeded(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """The reply, that there was nothing to take, was believed; what was published meanwhile waited for five seconds."""
    turn = deliveries.turn
    async with a_bus(one, acquire_timeout_s=ASLEEP_S) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1)

        async def slowly(*words: object, **named: object) -> Turn:
            reply = await turn(*words, **named)  # type: ignore[arg-type]
            if words[2] and not reply.jobs:
                monkeypatch.setattr(deliveries, "turn", turn)
                await bus.publish(publisher, [an_event(2)])
                await asyncio.sleep(0.1)
            return reply

        monkeypatch.setattr(deliveries, "turn", slowly)
        await bus.publish(publisher, [an_event(1)])

        await receiver.until_events(2)


async def test_partitions_that_wait_for_a_slot_do_not_look_again(two: Topology, monkeypatch: pytest.MonkeyPatch):
    """They looked again and again, and used up a core."""
    looks = Counter[int]()
    turn = deliveries.turn

    async def counted(partition: Partition, *rest: Any, **more: Any) -> Turn:
        looks[partition.index] += 1
        return await turn(partition, *rest, **more)

    monkeypatch.setattr(deliveries, "turn", counted)
    async with (
        a_bus(two, workers=0, worker_threads=1, delivery_timeout_s=30.0) as bus,
        Receiver(plan=lambda _: "hang") as hanging,
    ):
        await bus.subscribe(await bus.token("s"), hanging.url, "widgets", timeout=0, max=1)
        tenants = [_tenant_of(bus, "widgets", index) for index in range(2)]
        await bus.publish(await bus.token("publisher"), [an_event(tenant=tenant) for tenant in tenants * 3])
        stop = asyncio.Event()
        working = asyncio.create_task(process.run(bus.settings, stop))
        await hanging.until_attempts(1)

        looks.clear()
        await asyncio.sleep(0.3)
        looked = looks.total()

        stop.set()
        await within(working, 10)
        assert looked < 10


async def test_a_bell_is_passed_on_though_the_first_call_about_it_failed(
    two: Topology, monkeypatch: pytest.MonkeyPatch
):
    """A worker without a free slot forgot that it had been told, and an idle one slept on."""
    turn = deliveries.turn
    failed = asyncio.Event()
    async with (
        a_bus(two, worker_threads=1, acquire_timeout_s=ASLEEP_S, delivery_timeout_s=30.0) as bus,
        Receiver(plan=lambda _: "hang") as hanging,
    ):
        other = bus.partitions.all[1]
        ear = Ear(other, "idle")
        await ear.open()

        async def failing_once(partition: Partition, settled: object, slots: object, **named: object) -> Turn:
            if partition.index == 1 and not settled and not slots and not failed.is_set():
                failed.set()
                await other.command("SADD", other.key("jobs:hungry:main"), "idle")
                raise BusAway("for a moment")
            return await turn(partition, settled, slots, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(deliveries, "turn", failing_once)
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), hanging.url, "widgets", timeout=0, max=1)
        await bus.publish(publisher, [an_event(tenant=_tenant_of(bus, "widgets", 0))])
        await hanging.until_attempts(1)
        await bus.publish(publisher, [an_event(tenant=_tenant_of(bus, "widgets", 1))])
        await within(failed.wait(), 10)

        assert await _until(ear.heard, lambda bells: bells > 0)
        await ear.close()


async def test_a_job_waits_where_it_is_until_the_registry_is_read(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """It went back to the front of its line, again and again."""
    catch_up = LiveRegistry.catch_up
    failures = [BusAway("for a moment")] * 2

    async def failing_twice(self: LiveRegistry, version: int) -> None:
        if failures:
            raise failures.pop()
        await catch_up(self, version)

    async with a_bus(one) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("publisher")
        monkeypatch.setattr(LiveRegistry, "catch_up", failing_twice)
        ids = await bus.publish(publisher, [an_event(n) for n in range(5)])
        await receiver.until_events(5)

        assert receiver.ids == ids
        [row] = await bus.get("/subscribers")
        [state] = (await receivers.states(bus.partitions.home, [row["subscriber"]])).values()
        assert state.begun == 5


async def test_a_worker_that_stops_is_told_of_nothing_more_and_passes_on_what_it_was_told(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """While its watch still ran, it was told of jobs that it did not take, and an idle worker slept on."""
    stop, may_end = asyncio.Event(), asyncio.Event()

    async def linger(_: Watch, __: asyncio.Event) -> None:
        await may_end.wait()

    async with a_bus(one, workers=0, acquire_timeout_s=ASLEEP_S) as bus:
        home, hungry = bus.partitions.home, bus.partitions.home.key("jobs:hungry:main")
        await bus.subscribe(await bus.token("s"), "http://127.0.0.1:9/", "widgets", timeout=0, max=1)
        publisher = await bus.token("publisher")
        ear = Ear(home, "idle")
        await ear.open()
        monkeypatch.setattr(Watch, "run", linger)
        working = asyncio.create_task(process.run(bus.settings, stop))
        await _until(lambda: home.command("SCARD", hungry), lambda many: many == 1)
        monkeypatch.setattr(Deliveries, "wake", lambda *_: None)
        await bus.publish(publisher, [an_event()])
        await home.command("SADD", hungry, "idle")

        stop.set()
        await _until(ear.heard, lambda bells: bells > 0)

        assert await home.command("SCARD", hungry) == 0
        may_end.set()
        await within(working, 10)
        await ear.close()


async def test_of_many_settlements_some_are_written_in_one_call(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """All were, and with a thousand the script could not write its hashes, so the partition stood still."""
    sizes = _settled_by_calls(monkeypatch)
    monkeypatch.setattr(deliveries, "SETTLED_MAX", 3)
    async with a_bus(one, worker_threads=16) as bus, Receiver(delay_s=0.1) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=16)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(64)])
        await receiver.until_events(64)
        await _until(lambda: jobs.counts(bus.partitions.home), lambda found: found["main", "index"] == 0)

    assert max(sizes) == 3


async def test_small_batches_that_are_under_way_together_are_settled_together(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """Some ended while a call was under way, and went with the next one alone: twice as many calls, from then on."""
    sizes = _settled_by_calls(monkeypatch)
    monkeypatch.setattr(deliver, "_GATHER_S", 60)
    async with a_bus(one) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=4)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(40)])
        await receiver.until_events(40)

    # A bell may have hurried one or two.
    assert sizes.count(4) >= 8


async def test_large_batches_do_not_wait_for_all_that_are_under_way(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deliver, "_GATHER_S", 60)
    async with a_bus(one) as bus, Receiver(plan=lambda n: "hang" if n in (1, 2) else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=4)

        large = [an_event(n, data="x" * 10_000) for n in range(20)]
        await bus.publish(await bus.token("publisher"), large)

        await receiver.until_events(18)


def _settled_by_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each call settles."""
    turn = deliveries.turn
    sizes = []

    async def noted(partition: Partition, settled: Sequence[Settled], *words: object, **named: object) -> Turn:
        sizes.append(len(settled))
        return await turn(partition, settled, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(deliveries, "turn", noted)
    return sizes
