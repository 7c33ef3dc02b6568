"""Long polls: a waiting pull is woken by whatever gives it something to take, from wherever that comes."""

import asyncio
import time
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.queues import ring
from doubledecker.queues.call_batching import Pull
from doubledecker.queues.ring import Rings
from doubledecker.store import facets
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import LeasedMessage
from harness import within
from queues.pulling import a_queue, held, pass_time, push, quiet_rings, rings_with_bell


@pytest.fixture(autouse=True)
def nobody_looks_without_a_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not woken would find out by itself after a second."""
    monkeypatch.setattr(ring, "_WAIT_S_MAX", 600.0)


async def wait_for_one(rings: Rings, queue: RegisteredQueue, *, wait_ms: int = 600_000) -> "asyncio.Task[Pull]":
    """A pull that is really waiting."""
    waiting = asyncio.create_task(rings.pull_waiting(queue, most=10, wait_ms=wait_ms))
    await asyncio.sleep(0.15)
    assert not waiting.done()
    return waiting


async def test_a_waiting_pull_returns_empty_after_its_wait_and_not_before(plain: Partitions):
    async with rings_with_bell(plain) as rings:
        started = time.monotonic()
        pull = await rings.pull_waiting(a_queue(), most=10, wait_ms=150)

    assert pull.messages == ()
    assert time.monotonic() - started >= 0.14


async def test_a_push_wakes_whoever_waits_in_any_process(partitions: Partitions, topology: Topology):
    queue = a_queue()
    elsewhere = await Partitions.connect(topology.url, namespace="rm:", count=topology.partitions)
    async with rings_with_bell(partitions) as rings, rings_with_bell(elsewhere) as others:
        waiting = [await wait_for_one(each, queue) for each in (rings, others)]
        await push(elsewhere, queue, [f"t{n}" for n in range(30)])
        pulls = await asyncio.gather(*waiting)

        assert all(pull.messages for pull in pulls)
    await elsewhere.close()


async def test_an_ack_that_frees_a_place_wakes_whoever_waits(plain: Partitions):
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(concurrency=1))
    await push(plain, queue, ["ann", "ann"])
    async with rings_with_bell(plain) as rings:
        [first] = (await rings.pull(queue, most=10)).messages
        waiting = await wait_for_one(rings, queue)
        await rings.ack(queue, held([first]))

        [second] = (await waiting).messages
        assert second.id != first.id


@pytest.mark.parametrize("change", [FacetRule(), FacetRule(weight=2.0), FacetRule(concurrency=5)])
async def test_a_change_of_rules_wakes_whoever_waits(plain: Partitions, change: FacetRule):
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(paused=True))
    await push(plain, queue, ["ann"])
    async with rings_with_bell(plain) as rings:
        waiting = await wait_for_one(rings, queue)
        await facets.set_rule(plain.home, queue, "ann", change)

        assert len((await waiting).messages) == 1


async def test_a_rate_wakes_a_waiting_pull_when_the_next_message_may_go(plain: Partitions):
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(rate_per_s=4))
    await push(plain, queue, ["ann"] * 4)
    async with rings_with_bell(plain) as rings:
        started = time.monotonic()
        for _ in range(4):
            assert len((await rings.pull_waiting(queue, most=10, wait_ms=20_000)).messages) == 1

    # Three intervals of 250 ms, of which one may be caught up with by 50 ms.
    assert time.monotonic() - started >= 0.69


@pytest.mark.parametrize("rate_per_s", [100.0, 5_000.0])
async def test_a_high_rate_is_reached_also_by_pulls_that_are_far_apart(plain: Partitions, rate_per_s: float):
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(rate_per_s=rate_per_s))
    await push(plain, queue, ["ann"] * 2000)
    rings = quiet_rings(plain)
    served, started = 0, await plain.home.time_ms()
    for _ in range(10):
        pass_time(plain, 20)
        pull = await rings.pull(queue, most=200)
        served += len(pull.messages)
    took_s = (await plain.home.time_ms() - started) / 1000

    assert 0.7 * rate_per_s * 0.2 <= served <= rate_per_s * (took_s + 0.05) + 1


async def test_a_rate_holds_for_a_tenant_that_enqueues_one_message_at_a_time(plain: Partitions):
    """What the rate asks for was forgotten as soon as its line was empty."""
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(rate_per_s=0.01))
    rings = quiet_rings(plain)
    served = 0
    for _ in range(5):
        await push(plain, queue, ["ann"])
        pull = await rings.pull(queue, most=10)
        await rings.ack(queue, held(pull.messages))
        served += len(pull.messages)

    assert served == 1
    pass_time(plain, 100_000)
    assert len((await rings.pull(queue, most=10)).messages) == 1


async def test_the_end_of_a_lease_that_began_after_the_wait_is_noticed(plain: Partitions):
    """The one who waits does not know of it, and the one who knows has died."""
    queue = a_queue()
    await facets.set_rule(plain.home, queue, "ann", FacetRule(paused=True))
    await push(plain, queue, ["ann"])
    async with rings_with_bell(plain) as rings:
        waiting = await wait_for_one(rings, queue)
        # Taken away before the bell's news gets around, by one who then dies.
        await facets.set_rule(plain.home, queue, "ann", FacetRule())
        await quiet_rings(plain).pull(queue, most=1, lease_ms=400)
        pull = await within(waiting, 10)

    # Either it was quicker, or the lease's end gave it the message.
    assert len(pull.messages) == 1


async def test_a_delay_wakes_whoever_waits_when_it_is_over(plain: Partitions):
    queue = a_queue()
    await push(plain, queue, ["ann"])
    async with rings_with_bell(plain) as rings:
        [message] = (await rings.pull(queue, most=1)).messages
        started = time.monotonic()
        await rings.nack(queue, [LeasedMessage(message.id, message.attempt, delay_ms=300)])
        [again] = (await rings.pull_waiting(queue, most=1, wait_ms=20_000)).messages

    assert again.attempt == 2
    assert 0.29 <= time.monotonic() - started < 2


async def test_after_a_restart_of_the_server_the_bell_rings_again(data_dir: Path):
    server = await EmbeddedServer.start(data_dir)
    try:
        partitions = await Partitions.connect(server.url, namespace="rm:", count=1)
        queue = a_queue()
        async with rings_with_bell(partitions) as rings:
            await push(partitions, queue, ["ann"])
            assert len((await rings.pull_waiting(queue, most=1, wait_ms=5_000)).messages) == 1
            server.kill()
            await server.wait()
            await server.restart()
            # The listener tries again after half a second.
            await asyncio.sleep(1.2)
            waiting = await wait_for_one(rings, queue)
            await push(partitions, queue, ["bob"])

            assert len((await waiting).messages) == 1
            await partitions.close()
    finally:
        await server.stop()


async def test_settling_what_is_unknown_foreign_or_malformed_changes_nothing(partitions: Partitions):
    queue, other = a_queue("mine"), a_queue("other")
    await push(partitions, queue, ["ann"])
    await push(partitions, other, ["ann"])
    rings = quiet_rings(partitions)
    [message] = (await rings.pull(queue, most=1)).messages
    strange = [
        LeasedMessage("0-999", 1),
        LeasedMessage("99-1", 1),
        LeasedMessage("", 1),
        LeasedMessage("-", 1),
        LeasedMessage("x-1", 1),
        LeasedMessage("0", 1),
        LeasedMessage("0-", 1),
        LeasedMessage("-1-1", 1),
        LeasedMessage("٣-1", 1),
        LeasedMessage(message.id, 2),
        LeasedMessage(message.id, 0),
        LeasedMessage(message.id, -1),
    ]

    assert await rings.ack(queue, strange) == []
    assert await rings.nack(queue, strange) == []
    assert (await rings.extend(queue, strange))[1] == []
    # What another queue's consumer holds under the same id is not this one's.
    assert await rings.ack(other, held([message])) == []
    assert await rings.ack(queue, held([message, message])) == [message.id]


async def test_thousands_are_settled_in_one_call(partitions: Partitions):
    queue = a_queue()
    await push(partitions, queue, [f"t{n % 7}" for n in range(2500)])
    rings = quiet_rings(partitions)
    messages = []
    while len(messages) < 2500:
        messages += (await rings.pull(queue, most=200)).messages

    until, kept = await rings.extend(queue, held(messages), lease_ms=90_000)
    assert len(kept) == 2500
    assert until > messages[-1].lease_until
    assert len(await rings.nack(queue, held(messages))) == 2500
    again = []
    while len(again) < 2500:
        again += (await rings.pull(queue, most=200)).messages
    for tenant in {message.tenant for message in again}:
        numbers = [int(m.id.split("-")[1]) for m in again if m.tenant == tenant]
        assert numbers == sorted(numbers)
    assert len(await rings.ack(queue, held(again))) == 2500
