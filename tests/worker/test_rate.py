"""Receivers with a rate: their calls begin no closer together, over all processes, and nothing is lost."""

from conftest import Topology
from doubledecker.store import receivers
from harness import a_bus, an_event
from receiver import Receiver
from watching import a_queue, register, until_empty, watching
from worker.test_deliver import _until

RATE = 40
# What a process wakes late, up to 0.1 s, is made up for; the rest is for a machine that has much to do.
LATE_S = 0.25


async def test_a_subscriber_gets_so_many_calls_a_second_from_all_workers_and_loses_nothing(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver() as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, rate_per_s=RATE)
        events = [an_event(n, tenant=f"t{n % 8}") for n in range(40)]
        ids = await bus.publish(await bus.token("publisher"), events)
        await receiver.until_events(40, within_s=20)

        assert sorted(receiver.ids) == sorted(ids)
        check_rate(receiver)
        [row] = await bus.get("/subscribers", subscriber)
        assert row["rate_per_s"] == RATE


async def test_the_receiver_of_a_queue_has_its_whole_rate(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        queue = a_queue(receiver.url, max_events=1, concurrency=3, timeout_ms=0, rate_per_s=RATE)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n % 8}") for n in range(40)])
        async with watching(bus.settings, 2):
            await receiver.until_events(40, within_s=20)
            await until_empty(bus.partitions, queue)

        assert sorted(receiver.ids) == sorted(ids)
        check_rate(receiver)
        assert receiver.batches[-1].at - receiver.batches[0].at < 3 * 40 / RATE


async def test_batches_go_on_growing_while_the_rate_has_them_wait(one: Topology):
    """Calls count, not events."""
    async with a_bus(one) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=100, rate_per_s=2)
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(0)])
        await receiver.until_events(1)
        for n in range(1, 31):
            await bus.publish(publisher, [an_event(n)])
        await receiver.until_events(31)

        assert receiver.attempts == 2


async def test_a_probe_waits_for_the_rate_too(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=1, rate_per_s=0.001)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(3)])
        await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["failures"] == 1)

        [token] = [row["subscriber"] for row in await bus.get("/subscribers", subscriber)]
        state = (await receivers.states(bus.partitions.home, [token]))[token]
        await bus.subscribe(subscriber, receiver.url, "widgets", rate_per_s=0)
        await receiver.until_events(3)

        assert state.next_at > state.retry_at + 900_000


def check_rate(receiver: Receiver) -> None:
    """No more calls in any time than the rate allows in it, and in what processes may have been late."""
    began = sorted(batch.at for batch in receiver.batches)
    for first, at in enumerate(began):
        for last in range(first, len(began)):
            assert last - first <= RATE * (began[last] - at + LATE_S) + 1
