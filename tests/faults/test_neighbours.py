"""One slow or dead receiver delays nobody else.

What must hold: beside receivers that hang, fail, refuse and never stop sending, a healthy one's p99 stays within twice
its undisturbed value. Other tests share the machine, so a little is added for their noise; a delay by a neighbour would
be two seconds or more, the deadline of one attempt.
"""

import asyncio

import pytest

from conftest import Topology
from harness import TestBus, a_bus, an_event
from receiver import Receiver

pytestmark = pytest.mark.slow

NOISE_S = 0.1
EVENTS = 150


async def test_a_healthy_subscriber_does_not_feel_its_sick_neighbours(topology: Topology):
    sick = [
        Receiver(plan=lambda _: "hang"),
        Receiver(plan=lambda _: 500),
        Receiver(plan=lambda _: 400),
        Receiver(plan=lambda _: "endless"),
        Receiver(plan=lambda _: "cut"),
    ]
    async with a_bus(topology, worker_threads=20, delivery_timeout_s=2.0) as bus, Receiver() as healthy:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("healthy"), healthy.url, "quiet", "noisy", timeout=0, concurrency=2)
        undisturbed = await _p99_s(bus, publisher, healthy, "quiet")
        for number, receiver in enumerate(sick):
            await receiver.__aenter__()
            await bus.subscribe(await bus.token(f"sick-{number}"), receiver.url, "noisy", timeout=0, max=1)

        disturbed = await _p99_s(bus, publisher, healthy, "noisy")

        attempts = [receiver.attempts for receiver in sick]
        for receiver in sick:
            await receiver.__aexit__()
        assert min(attempts) > 0
        assert disturbed <= 2 * undisturbed + NOISE_S


async def test_a_dead_endpoint_is_not_hammered(one: Topology):
    async with a_bus(one, backoff_base_ms=1000, backoff_cap_ms=300_000) as bus, Receiver(plan=lambda _: 500) as dead:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("dead"), dead.url, "widgets", timeout=0, max=1)
        await bus.publish(publisher, [an_event(n) for n in range(200)])
        await dead.until_attempts(1)

        await asyncio.sleep(3)

        # Routemaster made 46 tries in its first five seconds; four batches are in flight when the first one fails.
        assert dead.attempts <= 30


async def _p99_s(bus: TestBus, publisher: str, receiver: Receiver, topic: str) -> float:
    """The p99 from publishing one event to its arrival, one at a time."""
    took = []
    loop = asyncio.get_running_loop()
    for number in range(EVENTS):
        started = loop.time()
        [id_] = await bus.publish(publisher, [an_event(number, topic, tenant=f"t{number % 7}")])
        await receiver.until(lambda id_=id_: id_ in receiver.ids[-5:], within_s=20)
        took.append(loop.time() - started)
    return sorted(took)[int(EVENTS * 0.99)]
