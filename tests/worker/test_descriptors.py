"""A worker without file descriptors: nobody can be called, and no receiver is blamed for it."""

import asyncio
from collections.abc import Callable

import pytest

from conftest import Topology
from descriptors import no_descriptors
from doubledecker.store import facets
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from watching import a_queue, counters, register

EXHAUSTED = "descriptors.exhausted"
# Calls that could not be made come again after a fifth of a second.
LONG_S = 0.7


async def publish_without_descriptors(bus: TestBus, publisher: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what was logged while calls could not be made, several times."""
    text = ""
    with no_descriptors():
        await bus.publish(publisher, [an_event()])
        async with asyncio.timeout(10):
            while EXHAUSTED not in text:
                text += "".join(capsys.readouterr())
                await asyncio.sleep(0.02)
        await until(lambda: False, within_s=LONG_S)
    return text + "".join(capsys.readouterr())


async def until(is_so: Callable[[], bool], *, within_s: float) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not is_so() and loop.time() < end_s:
        await asyncio.sleep(0.02)


async def test_a_subscriber_that_could_not_be_called_has_not_failed(one: Topology, capsys: pytest.CaptureFixture[str]):
    async with a_bus(one) as bus, Receiver() as receiver:
        publisher, subscriber = await bus.token("publisher"), await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0)
        logged = await publish_without_descriptors(bus, publisher, capsys)
        [during] = await bus.get("/subscribers", subscriber)
        counted = await counters(bus.partitions)
        await receiver.until_events(1)

        assert logged.count(EXHAUSTED) == 1
        assert (during["failures"], during["health"]) == (0, 100)
        assert not any(name.startswith("delivery.") for name in counted)
        assert receiver.attempts == 1


async def test_messages_that_could_not_be_pushed_were_not_attempted(one: Topology, capsys: pytest.CaptureFixture[str]):
    async with a_bus(one) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        queue = a_queue(receiver.url, attempts_max=1)
        await register(bus.settings, queue)
        await bus.publish(publisher, [an_event(0, "other")])
        logged = await publish_without_descriptors(bus, publisher, capsys)
        [during] = await facets.look(bus.partitions.home, [queue])
        counted = await counters(bus.partitions)
        await receiver.until_events(1)

        assert logged.count(EXHAUSTED) == 1
        assert during.dead == 0
        assert not any(name.startswith("delivery.") for name in counted)
        assert receiver.attempts == 1
