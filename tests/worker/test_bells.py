"""Bells: of the processes that wait, one is told that there is something to take, and one that is able to."""

import asyncio
import time

import pytest

from conftest import Topology
from doubledecker.model.event import EventKind
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from worker.test_deliver import _until
from worker.test_failing import _circuits

pytestmark = pytest.mark.slow


async def test_an_idle_worker_takes_what_a_busy_one_was_told_of(topology: Topology):
    """A worker with all its slots busy in one partition was told of another's, and an idle one slept on for seconds."""
    async with (
        a_bus(topology, workers=2, worker_threads=1) as bus,
        Receiver(plan=lambda _: "hang") as hanging,
        Receiver() as quick,
    ):
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("hanging"), hanging.url, "gears", timeout=0)
        await bus.subscribe(await bus.token("quick"), quick.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event(0, "gears", tenant=_tenant_of(bus, "gears", 0))])
        await hanging.until_attempts(1)
        tenant = _tenant_of(bus, "widgets", topology.partitions - 1)
        waits_s = []
        for number in range(12):
            began_at = time.monotonic()
            await bus.publish(publisher, [an_event(number, tenant=tenant)])
            await quick.until_events(number + 1)
            waits_s.append(time.monotonic() - began_at)
            await asyncio.sleep(0.05)

    assert max(waits_s) < 1


async def test_a_probe_that_ends_makes_room_for_one_of_another_partition(topology: Topology):
    """It slept on until its timer."""
    plan = {1: 503, 2: "hang"}
    async with (
        a_bus(topology, worker_threads=3, delivery_timeout_s=1.0, acquire_timeout_s=60.0) as bus,
        Receiver(plan=lambda n: plan.get(n, 200)) as first,
        Receiver(plan=lambda n: 503 if n == 1 else 200) as second,
    ):
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("first"), first.url, "gears", timeout=0)
        await bus.subscribe(await bus.token("second"), second.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event(0, "gears", tenant=_tenant_of(bus, "gears", 0))])
        await first.until_attempts(2)  # the only probe at a time
        last = _tenant_of(bus, "widgets", topology.partitions - 1)
        await bus.publish(publisher, [an_event(0, tenant=last)])
        await second.until_attempts(1)

        await second.until_events(1, within_s=10)

        await _until(lambda: _circuits(bus), lambda found: found["second"] == "closed")


def _tenant_of(bus: TestBus, topic: str, partition: int) -> str:
    """A tenant whose events are in this partition."""
    names = (f"t{number}" for number in range(1_000))
    return next(name for name in names if bus.partitions.of(EventKind(topic, "update", name)).index == partition)
