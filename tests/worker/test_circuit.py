"""A subscriber whose circuit is open: nothing is sent, nothing is counted against it, nothing is lost."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import Topology
from doubledecker.store import chains, jobs
from doubledecker.store.chains import ChainState
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from receiver import Receiver
from worker.test_deliver import _until


async def test_a_rejection_changes_neither_health_nor_attempts_nor_when_it_was_last_tried(one: Topology):
    """Two failures open the circuit for a minute; then batches come back from their backoff, and none gets through."""
    slow = {"breaker_calls": 4, "breaker_open_s": 60.0, "backoff_base_ms": 1, "backoff_cap_ms": 1}
    async with a_bus(one, worker_dead_s=1.0, **slow) as bus, Receiver(plan=lambda _: 500) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(6)])
        rejected = await _until(lambda: _rejected(bus), lambda count: count > 0, within_s=10)
        [before] = await bus.get("/subscribers", subscriber)
        attempts = receiver.attempts

        await asyncio.sleep(1.5)  # the repair chore has looked at the parked ones

        [after] = await bus.get("/subscribers", subscriber)
        assert rejected > 0
        assert receiver.attempts == attempts == before["failures"]
        same = ("health", "failures", "last_attempted_at")
        assert [after[field] for field in same] == [before[field] for field in same]
        assert before["health"] == 100 - 2 * attempts
        assert after["events"]["queued"] == 6
        assert sorted(await _attempts(bus)) == [0] * (6 - attempts) + [1] * attempts


@pytest.mark.slow
async def test_when_the_receiver_is_back_everything_arrives_and_the_circuit_closes(topology: Topology):
    quick = {"breaker_calls": 4, "breaker_open_s": 0.3, "worker_dead_s": 1.0}
    async with a_bus(topology, workers=2, **quick) as bus, Receiver(plan=lambda n: 500 if n <= 12 else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1)
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(n, tenant=f"t{n % 5}") for n in range(40)])

        await receiver.until_events(40, within_s=60)

        assert len(set(receiver.ids)) == 40

        async def states_after_more() -> list[ChainState]:
            # One worker may have delivered all of it: the other's circuit closes with the next that it gets.
            await bus.publish(publisher, [an_event(n, tenant=f"t{n % 5}") for n in range(8)])
            return await chains.states(bus.partitions.home, silent_ms_max=10_000)

        await _until(states_after_more, lambda found: {state.circuit for state in found} == {"closed"})
        await _until(
            lambda: chains.states(bus.partitions.home, silent_ms_max=10_000),
            lambda found: {state.calls for state in found} == {0},
        )
        for partition in bus.partitions.all:
            await _until(lambda p=partition: jobs.counts(p), lambda counts: counts["retry", "index"] == 0)


async def test_metrics_show_the_circuits_of_all_workers(one: Topology):
    stuck = {"breaker_calls": 2, "breaker_open_s": 60.0, "worker_dead_s": 1.0}
    async with a_bus(one, workers=2, **stuck) as bus, Receiver(plan=lambda _: 500) as bad, Receiver() as good:
        await bus.subscribe(await bus.token("bad"), bad.url, "widgets", timeout=0, max=1)
        await bus.subscribe(await bus.token("good"), good.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(20)])
        await good.until_events(20)

        found = await _until(lambda: _metrics(bus), lambda seen: seen.get(("bad", "open"), 0) >= 1, within_s=10)

        assert found["bad", "closed"] + found["bad", "open"] + found["bad", "half-open"] <= 2
        assert found["good", "open"] == 0
        assert found["good", "closed"] >= 1


async def test_a_worker_that_stops_takes_its_chains_with_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        async with a_bus_worker(bus), Receiver() as receiver:
            await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
            await bus.publish(await bus.token("publisher"), [an_event()])
            await receiver.until_events(1)
            await _until(
                lambda: chains.states(bus.partitions.home, silent_ms_max=10_000), lambda found: len(found) == 1
            )

        assert await chains.states(bus.partitions.home, silent_ms_max=10_000) == []
        assert await chains.silent(bus.partitions.home, silent_ms_max=0) == []


def a_bus_worker(bus: TestBus):
    from flow.test_redis_keys import a_worker

    return a_worker(bus, worker_dead_s=1.0)


async def _attempts(bus: TestBus) -> list[int]:
    """How often each waiting batch was tried."""
    partition = bus.partitions.home
    bids = await partition.command("ZRANGE", partition.key("batches:index"), 0, -1)
    return [int(await partition.command("LINDEX", partition.key(f"batch:{bid.decode()}"), 2)) for bid in bids]


async def _rejected(bus: TestBus) -> int:
    async with bus.http.get(f"{bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    family = families.get("doubledecker_delivery_rejected")
    return sum(sample.value for sample in family.samples) if family else 0


async def _metrics(bus: TestBus) -> dict[tuple[str, str], float]:
    async with bus.http.get(f"{bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    samples = families["doubledecker_chain_circuits"].samples
    return {(s.labels["subscriber"].rpartition("-")[0], s.labels["state"]): s.value for s in samples}
