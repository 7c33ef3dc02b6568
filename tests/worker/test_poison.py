"""Poison: events that their receiver never takes. They hold up nothing else, and cost few calls."""

import asyncio

import pytest

from conftest import Topology
from doubledecker.store import receivers
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from worker.test_deliver import _until

EVENTS = 736
# One in twenty, spread over the line so that no five are neighbours.
POISON = frozenset(f"id-{n}" for n in range(10, EVENTS, 20))
# As the product waits unless it is set otherwise.
BACKOFF = {"backoff_base_ms": 1_000, "backoff_cap_ms": 300_000}
SECONDS = 60.0


def refuse(receiver: Receiver, poison: frozenset[str], status: int) -> None:
    """Have a receiver answer so to what it never takes."""
    receiver.plan = lambda _: status if poison & set(receiver.attempted[-1]) else 200


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("status", [400, 422, 500, 503])
async def test_the_others_are_delivered_within_seconds(one: Topology, status: int, concurrency: int):
    """With one event that was always refused, 10 of 736 were delivered in 150 s."""
    async with a_bus(one, **BACKOFF) as bus, Receiver() as receiver:
        refuse(receiver, POISON, status)
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=concurrency)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(EVENTS)])

        others = EVENTS - len(POISON)
        await receiver.until_events(round(0.95 * others), within_s=SECONDS)
        await receiver.until_events(others, within_s=SECONDS)

        assert sorted(receiver.ids) == sorted({f"id-{n}" for n in range(EVENTS)} - POISON)
        assert receiver.in_flight_max <= concurrency


@pytest.mark.parametrize("status", [400, 403, 404, 500])
async def test_one_event_that_is_never_taken_stops_nobody(one: Topology, status: int):
    async with a_bus(one, **BACKOFF) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-10"}), status)
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(100)])

        await receiver.until_events(99, within_s=10)

        assert receiver.ids == [f"id-{n}" for n in range(100) if n != 10]


@pytest.mark.parametrize(("status", "neighbours"), [(400, 9), pytest.param(404, 2, marks=pytest.mark.slow), (500, 5)])
async def test_neighbours_that_are_never_taken_do_not_use_up_all_probes(one: Topology, status: int, neighbours: int):
    """Those put aside came back before all others: twelve of them kept 88 good events waiting for good."""
    async with a_bus(one, backoff_base_ms=50, backoff_cap_ms=300_000) as bus, Receiver() as receiver:
        refuse(receiver, frozenset(f"id-{n}" for n in range(neighbours)), status)
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(50)])

        await receiver.until_events(50 - neighbours, within_s=60)

        assert receiver.ids == [f"id-{n}" for n in range(neighbours, 50)]


async def test_a_receiver_is_failing_after_its_last_attempt_failed_whatever_came_before(one: Topology):
    """A single event that always fails left it healthy, with twenty failures in a row."""
    async with a_bus(one, backoff_base_ms=20, backoff_cap_ms=20) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-0"}), 500)
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}") for n in range(5)])
        await receiver.until_events(4)

        await receiver.until_attempts(receiver.attempts + 10)

        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["failures"] > 0)
        assert row["failures"] == 1


async def test_a_receiver_that_refuses_shows_as_refusing_and_its_health_falls(one: Topology):
    async with a_bus(one, backoff_base_ms=300_000, backoff_cap_ms=300_000) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-0", "id-1", "id-2"}), 400)
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(n, id=f"id-{n}") for n in range(3)])
        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["health"] == 94)
        assert (row["failures"], row["refusals"]) == (0, 3)

        await bus.publish(publisher, [an_event(3)])
        await receiver.until_events(1)

        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["health"] == 95)
        assert (row["failures"], row["refusals"]) == (0, 0)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_five_different_batches_refused_in_a_row_slow_a_receiver_to_probes(one: Topology, concurrency: int):
    """Ten thousand waiting batches are not ten thousand requests to broken code."""
    async with a_bus(one, **BACKOFF) as bus, Receiver(plan=lambda _: 400) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=concurrency)
        publisher = await bus.token("p")
        for start in range(0, 10_000, 1_000):
            await bus.publish(publisher, [an_event(start + n) for n in range(1_000)])
        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["failures"] > 0)

        await asyncio.sleep(2)

        # Five, those that were under way then, their own retries, and a few probes.
        assert receiver.attempts < 5 + concurrency + 20
        assert row["events"]["queued"] == 10_000
        receiver.plan = lambda _: 200
        await receiver.until_events(200, within_s=10)


async def test_a_refused_batch_is_tried_again_by_its_own_schedule_alone(one: Topology):
    async with a_bus(one, backoff_base_ms=50, backoff_cap_ms=50) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-0"}), 422)
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(0, id="id-0")])
        await receiver.until_attempts(8)
        [state] = await _states(bus)

        ids = await bus.publish(publisher, [an_event(n) for n in range(20)])
        await receiver.until_events(20)

        # However often the one was refused, it is one refusal.
        assert (state.failures, state.refusals) == (0, 1)
        assert receiver.ids == ids


async def test_a_neighbour_of_poison_is_served_meanwhile(one: Topology):
    async with a_bus(one, **BACKOFF) as bus, Receiver(plan=lambda _: 400) as refusing, Receiver() as well:
        await bus.subscribe(await bus.token("bad"), refusing.url, "widgets", timeout=0, max=1, concurrency=8)
        await bus.subscribe(await bus.token("good"), well.url, "widgets", timeout=0, max=1, concurrency=1)

        ids = await bus.publish(await bus.token("p"), [an_event(n) for n in range(200)])
        await well.until_events(200, within_s=5)

        assert well.ids == ids


async def _states(bus: TestBus) -> list[receivers.ReceiverRecord]:
    tokens = [row["subscriber"] for row in await bus.get("/subscribers")]
    return list((await receivers.states(bus.partitions.home, tokens)).values())
