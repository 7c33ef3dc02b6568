"""A receiver that fails: it is left alone, then probed with one batch at a time; nothing is lost, and order holds."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import Topology
from doubledecker.store.machine import free_port
from doubledecker.worker import process
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic, within
from receiver import Receiver
from worker.test_deliver import _attempts, _until

# A probe may be a minute away, but for tests that are about waiting for it.
PATIENT = {"backoff_base_ms": 60_000, "backoff_cap_ms": 60_000}
LATER = {"Retry-After": "60"}


async def test_what_is_not_tried_changes_neither_health_nor_attempts_nor_when_it_was_last_tried(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 503, headers=LATER) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=2)
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(n) for n in range(6)])
        await receiver.until_attempts(2)
        [before] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["health"] == 96)

        await bus.publish(publisher, [an_event(n) for n in range(6)])
        await asyncio.sleep(1.5)  # the chores have had their turns

        [after] = await bus.get("/subscribers", subscriber)
        assert receiver.attempts == 2
        # The two failed together, which is one piece of evidence.
        assert before["failures"] == 1
        same = ("health", "failures", "last_attempted_at")
        assert [after[field] for field in same] == [before[field] for field in same]
        assert after["events"]["queued"] == 12
        assert sorted(await _tries(bus)) == [0] * 10 + [1] * 2


@pytest.mark.slow
async def test_when_the_receiver_is_back_everything_arrives_and_the_circuit_closes(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver(plan=lambda n: 500 if n <= 12 else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event(n, tenant=f"t{n % 5}") for n in range(40)])

        await receiver.until_events(40, within_s=60)

        assert len(set(receiver.ids)) == len(receiver.ids) == 40
        await _until(lambda: _circuits(bus), lambda found: found["s"] == "closed")


async def test_a_failing_receiver_gets_one_call_at_a_time_and_all_of_them_when_one_has_succeeded(one: Topology):
    plan = {1: 500, 2: 500, 3: "hang"}
    async with a_bus(one, workers=2) as bus, Receiver(plan=lambda n: plan.get(n, 200), delay_s=0.05) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=2)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(8)])
        await receiver.until_attempts(3)
        receiver.in_flight_max = 0

        found = await _until(lambda: _circuits(bus), lambda seen: seen["s"] == "half-open")
        await asyncio.sleep(0.3)  # three times as long as the next probe would be away

        assert found["s"] == "half-open"
        assert receiver.attempts == 3
        receiver._released.set()  # the third fails, the fourth succeeds
        await receiver.until_events(8)
        assert receiver.in_flight_max == 2


async def test_metrics_show_the_circuit_of_every_receiver(one: Topology):
    async with (
        a_bus(one, workers=2) as bus,
        Receiver(plan=lambda _: 503, headers=LATER) as bad,
        Receiver() as good,
    ):
        await bus.subscribe(await bus.token("bad"), bad.url, "widgets", timeout=0, max=1)
        await bus.subscribe(await bus.token("good"), good.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(20)])
        await good.until_events(20)

        found = await _until(lambda: _circuits(bus), lambda seen: seen["bad"] == "open")

        assert found == {"bad": "open", "good": "closed"}


async def test_a_new_address_is_called_at_once_whatever_the_one_before_did(one: Topology):
    async with (
        a_bus(one) as bus,
        Receiver(plan=lambda _: 503, headers=LATER) as old,
        Receiver() as new,
    ):
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, old.url, "widgets", timeout=0, max=1, concurrency=1)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(5)])
        await old.until_attempts(1)
        await _until(lambda: _circuits(bus), lambda seen: seen["s"] == "open")

        await bus.subscribe(subscriber, new.url, "widgets", timeout=0, max=1, concurrency=1)
        await new.until_events(5, within_s=5)

        assert new.ids == ids
        assert await _circuits(bus) == {"s": "closed"}


async def test_a_subscriber_that_subscribes_again_to_the_same_address_is_left_alone_as_before(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 503, headers=LATER) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(5)])
        await receiver.until_attempts(1)
        await _until(lambda: _circuits(bus), lambda seen: seen["s"] == "open")

        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=3)
        await asyncio.sleep(0.5)

        assert receiver.attempts == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_receiver_that_was_down_gets_everything_in_order(one: Topology, workers: int):
    port = free_port()
    async with a_bus(one, workers=workers) as bus:
        url = f"http://127.0.0.1:{port}/callback"
        await bus.subscribe(await bus.token("s"), url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("publisher")
        ids = await bus.publish(publisher, [an_event(n) for n in range(30)])
        # Nobody listens: no batch is to blame, however often it is tried.
        await _until(lambda: _attempts(bus.partitions), lambda found: len(found) >= 4)

        async with Receiver(port=port) as receiver:
            ids += await bus.publish(publisher, [an_event(n) for n in range(30)])
            await receiver.until_events(60, within_s=20)

            assert receiver.ids == ids
            assert receiver.in_flight_max == 1
        refused = [attempt for attempt in await _attempts(bus.partitions) if attempt.outcome == "unreachable"]
        assert {tuple(attempt.events) for attempt in refused} == {(ids[0],)}


async def test_a_batch_that_fails_twice_is_put_aside_and_the_next_is_probed(one: Topology):
    async with a_bus(one, **PATIENT) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        receiver.plan = lambda _: 500 if "poison" in receiver.attempted[-1] else 200
        events = [an_event(n, id="poison" if n == 2 else f"id-{n}") for n in range(6)]
        await bus.publish(await bus.token("publisher"), events)

        await receiver.until_events(5)

        order = [id_ for [id_] in receiver.attempted]
        assert order == ["id-0", "id-1", "poison", "poison", "id-3", "id-4", "id-5"]


async def test_failing_receivers_hold_at_most_three_tenths_of_the_slots(one: Topology):
    """Twelve that hang, and ten slots: three of them, and all others are for the one that is well."""
    hanging = [Receiver(plan=lambda n: 503 if n == 1 else "hang") for _ in range(12)]
    async with a_bus(one, worker_threads=10) as bus, Receiver(delay_s=0.01) as well, _all(hanging):
        publisher = await bus.token("publisher")
        for number, receiver in enumerate(hanging):
            topic = f"bad_{'abcdefghijkl'[number]}"
            await bus.subscribe(await bus.token(topic), receiver.url, topic, timeout=0, max=1)
            await bus.publish(publisher, [an_event(0, topic)])
        await _until(lambda: _in_flight(hanging), lambda calls: calls == 3)
        await bus.subscribe(await bus.token("well"), well.url, "widgets", timeout=0, max=1, concurrency=20)
        await bus.publish(publisher, [an_event(n) for n in range(200)])
        await well.until_events(200, within_s=10)

        assert await _in_flight(hanging) == 3
        assert max(receiver.attempts for receiver in hanging) == 2
        assert well.in_flight_max == 7


async def test_retry_after_is_honoured_by_all_workers(one: Topology):
    async with (
        a_bus(one, workers=3) as bus,
        Receiver(plan=lambda n: 429 if n == 1 else 200, headers={"Retry-After": "1"}) as receiver,
    ):
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(5)])
        await receiver.until_attempts(1)
        asked_at = time.monotonic()
        await receiver.until_attempts(2)
        waited_s = time.monotonic() - asked_at
        await receiver.until_events(5)

        assert 0.95 <= waited_s < 3
        assert receiver.ids == ids


async def test_a_worker_that_stops_during_a_probe_leaves_the_receiver_to_others(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda n: (500, "hang", 200)[min(n, 3) - 1]) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(3)])
        async with _worker(bus):
            await receiver.until_attempts(2)
        async with _worker(bus):
            await receiver.until_events(3)

        assert receiver.ids == ids


@asynccontextmanager
async def _worker(bus: TestBus) -> AsyncIterator[None]:
    """A worker that waits for nothing when the block ends."""
    stop = asyncio.Event()
    working = asyncio.create_task(process.run(bus.settings, stop))
    yield
    stop.set()
    await within(working, 10)


@asynccontextmanager
async def _all(receivers: list[Receiver]) -> AsyncIterator[None]:
    for receiver in receivers:
        await receiver.__aenter__()
    yield
    for receiver in receivers:
        await receiver.__aexit__()


async def _in_flight(receivers: list[Receiver]) -> int:
    return sum(receiver.in_flight for receiver in receivers)


async def _tries(bus: TestBus) -> list[int]:
    """How often each waiting batch was tried."""
    partition = bus.partitions.home
    bids = await partition.command("ZRANGE", partition.key("batches:index"), 0, -1)
    return [int(await partition.command("LINDEX", partition.key(f"batch:{bid.decode()}"), 2)) for bid in bids]


async def _circuits(bus: TestBus) -> dict[str, str]:
    """The state of each receiver's circuit, by the client's name; one state a receiver."""
    async with bus.http.get(f"{bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    samples = [sample for sample in families["doubledecker_chain_circuits"].samples if sample.value]
    found = {sample.labels["subscriber"].rpartition("-")[0]: sample.labels["state"] for sample in samples}
    assert len(found) == len(samples)
    return found


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_late_answer_of_a_former_address_does_not_hold_up_the_present_one(one: Topology, is_made_anew: bool):
    later = {"Retry-After": "3600"}
    async with a_bus(one) as bus, Receiver(plan=lambda _: "late", headers=later) as former, Receiver() as present:
        subscriber, publisher = await bus.token("s"), await bus.token("publisher")
        await bus.subscribe(subscriber, former.url, "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(publisher, [an_event(1)])
        await former.until_attempts(1)
        if is_made_anew:
            async with bus.http.delete(f"{bus.url}/subscriber", headers=basic(subscriber)) as response:
                assert response.status == 204
        await bus.subscribe(subscriber, present.url, "widgets", timeout=0, max=1, concurrency=1)
        former.release()
        [last] = await bus.publish(publisher, [an_event(2)])

        await present.until(lambda: last in present.ids)
