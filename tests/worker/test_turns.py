"""Turns: slots are shared over subscribers, also when those with a backlog could use all of them and more.

Receivers stand in a ring, by how often they were called; one that had nothing due comes before all that were served.
"""

import asyncio
from string import ascii_lowercase

import pytest

from conftest import Topology
from doubledecker.worker import process
from harness import TestBus, a_bus, an_event
from receiver import Receiver

SLOTS = 8
PERMITS = 4
# The next slot that becomes free is the newcomer's: what begins until its event is written, and until a slot asks.
BEFORE_MAX = 2 * SLOTS


@pytest.mark.parametrize("after", [SLOTS, 100])
async def test_a_newcomer_does_not_wait_until_backlogs_have_ended(one: Topology, after: int):
    """With two backlogs for eight slots, it came after all of both: 312 calls."""
    async with a_bus(one, worker_threads=SLOTS) as bus, Receiver(delay_s=0.02) as slow, Receiver() as quick:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("newcomer"), quick.url, "gadgets", timeout=0, max=1)
        await _backlogs(bus, publisher, slow, count=2, depth=160, concurrency=PERMITS)
        await slow.until_attempts(after)
        before = slow.attempts

        await bus.publish(publisher, [an_event(0, topic="gadgets")])
        await quick.until_attempts(1, within_s=30)

        assert slow.attempts - before <= BEFORE_MAX


async def test_a_newcomer_does_not_wait_for_a_round_of_many_backlogs(one: Topology):
    """Seated behind all that were served last, it came after one call to each of them."""
    async with a_bus(one, worker_threads=4) as bus, Receiver(delay_s=0.01) as slow, Receiver() as quick:
        publisher = await bus.token("publisher")
        newcomers = [f"gadgets_{letter}" for letter in "abcde"]
        for topic in newcomers:
            await bus.subscribe(await bus.token(topic), quick.url, topic, timeout=0, max=1)
        await _backlogs(bus, publisher, slow, count=120, depth=8, concurrency=1)
        await slow.until_attempts(360, within_s=30)
        waits = []
        for number, topic in enumerate(newcomers):
            before = slow.attempts
            await bus.publish(publisher, [an_event(number, topic)])
            await quick.until_attempts(number + 1)
            waits.append(slow.attempts - before)

        assert max(waits) <= BEFORE_MAX


async def test_a_newcomer_to_any_partition_does_not_wait_until_backlogs_have_ended(topology: Topology):
    async with a_bus(topology, worker_threads=SLOTS) as bus, Receiver(delay_s=0.02) as slow, Receiver() as quick:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("newcomer"), quick.url, "gadgets", timeout=0, max=1, concurrency=6)
        await _backlogs(bus, publisher, slow, count=8, depth=120, concurrency=PERMITS)
        await slow.until_attempts(160, within_s=30)

        await bus.publish(publisher, [an_event(n, topic="gadgets", tenant=f"n{n}") for n in range(6)])
        await quick.until_events(6, within_s=30)

        assert slow.attempts < 8 * 120 - SLOTS


async def test_every_backlog_has_its_turn(one: Topology):
    """The first two kept all slots until they had ended."""
    async with a_bus(one, workers=0, worker_threads=4) as bus, Receiver(delay_s=0.005) as receiver:
        await _backlogs(bus, await bus.token("publisher"), receiver, count=8, depth=60, concurrency=2)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.run(bus.settings, stop))
            await receiver.until_events(8 * 60, within_s=30)
            stop.set()

    until_two_might_have_ended = [event["topic"] for event in receiver.events[: 2 * 60]]
    shares = [until_two_might_have_ended.count(topic) for topic in set(until_two_might_have_ended)]
    assert len(shares) == 8
    # Each has had 15 calls, but for those that are under way.
    assert min(shares) >= 15 - 4


async def test_no_job_of_a_subscriber_with_one_permit_is_overtaken_while_it_waits_for_its_turn(one: Topology):
    async with a_bus(one, worker_threads=3) as bus, Receiver(delay_s=0.005) as receiver:
        ids = await _backlogs(bus, await bus.token("publisher"), receiver, count=8, depth=80, concurrency=1)
        await receiver.until_events(8 * 80, within_s=60)

    by_topic: dict[str, list[str]] = {}
    for event in receiver.events:
        by_topic.setdefault(str(event["topic"]), []).append(str(event["id"]))
    assert by_topic == ids


async def _backlogs(
    bus: TestBus, publisher: str, receiver: Receiver, *, count: int, depth: int, concurrency: int
) -> dict[str, list[str]]:
    """So many subscribers with a backlog each, published one after the other; the events' ids by topic."""
    topics = [f"backlog_{one}{two}" for one in ascii_lowercase for two in ascii_lowercase][:count]
    for topic in topics:
        await bus.subscribe(await bus.token(topic), receiver.url, topic, timeout=0, max=1, concurrency=concurrency)
    return {
        topic: await bus.publish(publisher, [an_event(n, topic, tenant=f"t{n % 7}") for n in range(depth)])
        for topic in topics
    }
