"""What a worker does with a batch: caps, retries, health, and what it writes down."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from conftest import Topology
from doubledecker.store import counters, deliveries, journal
from doubledecker.store.deliveries import Settled, Turn
from doubledecker.store.journal import AttemptRecord
from doubledecker.store.partitions import Partition, Partitions
from harness import a_bus, an_event
from receiver import Receiver


async def test_no_more_batches_are_in_flight_than_the_subscriber_allows_over_all_workers(topology: Topology):
    async with a_bus(topology, workers=3) as bus, Receiver(delay_s=0.02) as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=2)

        await bus.publish(publisher, [an_event(n, tenant=f"t{n % 9}") for n in range(60)])
        await receiver.until_events(60)

        # Each partition has a share of the permits, and one at least.
        assert receiver.in_flight_max == max(2, topology.partitions)


async def test_whoever_settles_offers_one_slot_more_than_it_frees(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """It offered all that were free, up to sixteen, and the server read each of them."""
    calls: list[tuple[int, int]] = []
    turn = deliveries.turn

    async def noted(partition: Partition, settled: Sequence[Settled], slots: Sequence[str], **more: Any) -> Turn:
        calls.append((len(settled), len(slots)))
        return await turn(partition, settled, slots, **more)

    monkeypatch.setattr(deliveries, "turn", noted)
    async with a_bus(one) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)

        await bus.publish(await bus.token("publisher"), [an_event()])
        async with asyncio.timeout(10):
            while not any(settled for settled, _ in calls):
                await asyncio.sleep(0.01)

    assert (1, 2) in calls


async def test_health_falls_by_two_and_rises_by_one(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if n <= 3 else 200) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0)

        await bus.publish(await bus.token("publisher"), [an_event()])
        await receiver.until_events(1)

        # It is written off the path of deliveries, a moment later.
        health = 100 - 3 * 2 + 1
        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["health"] == health)
        assert row["failures"] == 0
        assert row["last_attempted_at"] > 0


async def test_a_redirect_is_a_failure_and_is_not_followed(one: Topology):
    async with a_bus(one) as bus, Receiver() as other, Receiver(plan=lambda n: 302 if n == 1 else 200) as receiver:
        receiver.headers = {"Location": other.url}
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)

        await bus.publish(await bus.token("publisher"), [an_event()])
        await receiver.until_events(1)

        assert receiver.attempts == 2
        assert other.attempts == 0


async def test_retry_after_is_honoured(one: Topology):
    async with (
        a_bus(one) as bus,
        Receiver(plan=lambda n: 503 if n == 1 else 200, headers={"Retry-After": "1"}) as receiver,
    ):
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
        started = asyncio.get_running_loop().time()

        await bus.publish(await bus.token("publisher"), [an_event()])
        await receiver.until_events(1)

        assert asyncio.get_running_loop().time() - started >= 1.0


async def test_a_receiver_that_speaks_no_text_ends_nothing(one: Topology):
    """Its reason phrase could not be logged, and the worker ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 \xff\xfe\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    rude = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with rude, a_bus(one) as bus, Receiver() as receiver:
        url = f"http://127.0.0.1:{rude.sockets[0].getsockname()[1]}/"
        await bus.subscribe(await bus.token("rude"), url, "widgets", timeout=0)
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(1)])
        await _until(lambda: _attempts(bus.partitions), lambda found: len(found) >= 3)
        await bus.publish(publisher, [an_event(2)])
        await receiver.until_events(2)


async def test_every_attempt_is_journaled_with_the_ids_of_its_events(topology: Topology):
    async with a_bus(topology) as bus, Receiver(plan=lambda n: 500 if n == 1 else 204) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=20, max=50)

        ids = await bus.publish(await bus.token("publisher"), [an_event(n, tenant="one") for n in range(3)])
        await receiver.until_events(3)

        attempts = await _until(lambda: _attempts(bus.partitions), lambda found: len(found) == 2)
        assert [(a.attempt, a.outcome, a.status) for a in attempts] == [(1, "refused", 500), (2, "delivered", 204)]
        assert [list(a.events) for a in attempts] == [ids, ids]
        assert all(a.subscriber.startswith("s-") and len(a.batch) == 20 for a in attempts)


async def test_the_attempt_at_a_large_batch_takes_little_room_in_the_journal(one: Topology):
    """A thousand ids are 39 kB: they went through the script, into the log of the server, and stayed in memory."""
    async with a_bus(one) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=60_000, max=100)

        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(100)])

        [attempt] = await _until(lambda: _attempts(bus.partitions), lambda found: len(found) == 1)
        kept = (await journal.state(bus.partitions.home))["attempts_bytes"]
    assert list(attempt.events) == ids
    assert int(kept) < 1000


async def test_the_journal_holds_every_accepted_event_in_the_order_of_acceptance(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        publisher = await bus.token("publisher")
        ids = [id_ for n in range(10) for id_ in await bus.publish(publisher, [an_event(n, key="k")] * 3)]

        found = []
        for partition in bus.partitions.all:
            for entry in await journal.read(partition, "events", count=1000):
                found += [msgspec.json.decode(line)["id"] for _, lines in entry.fields for line in lines.split(b"\n")]
        assert found == ids


async def test_counters_tell_what_happened(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=10)
        id_ = (await bus.get("/subscribers", subscriber))[0]["subscriber"]

        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(4)])
        await receiver.until_events(4)

        found = await _until(
            lambda: counters.read(bus.partitions.home),
            lambda values: f"delivery.batches:subscriber={id_},outcome=delivered" in values,
        )
        assert found["events.published:topic=widgets"] == 4
        assert found[f"events.added:subscriber={id_}"] == 4
        assert found[f"events.removed:subscriber={id_}"] == 4
        assert found[f"delivery.batches:subscriber={id_},outcome=refused"] == 1
        assert found[f"delivery.events:subscriber={id_},outcome=delivered"] == 4
        assert sum(v for k, v in found.items() if k.startswith("latency.batches.first_attempt:")) == 1
        assert sum(v for k, v in found.items() if k.startswith("latency.batches.last_attempt:")) == 1


async def _attempts(partitions: Partitions) -> list[AttemptRecord]:
    found = []
    for partition in partitions.all:
        for entry in await journal.read(partition, "attempts", count=1000):
            found += [msgspec.json.decode(value, type=AttemptRecord) for _, value in entry.fields]
    return found


async def _until(look, is_enough, *, within_s: float = 20.0):
    """Look again until the condition holds."""
    async with asyncio.timeout(within_s):
        while not is_enough(seen := await look()):
            await asyncio.sleep(0.01)
    return seen
