"""Chores: purge, wide events, telemetry."""

import asyncio
import socket
from typing import cast

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.verdict import Backoff
from doubledecker.delivery.chains import Chains
from doubledecker.model.queue import Queue
from doubledecker.model.token import Caller
from doubledecker.queues import view
from doubledecker.store import batches, chains, counters, jobs
from doubledecker.store.chains import ChainState
from doubledecker.store.queues import Held
from doubledecker.store.subscribers import Condition
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.backlogs import BacklogMeter
from doubledecker.worker.chores import ChoreRules, Chores, queues_to_try
from doubledecker.worker.deliver import Deliverer, DeliveryRules
from doubledecker.worker.monitor import Monitor
from harness import a_bus, an_event, basic, quick_settings
from receiver import Receiver

DEAD_URL = "http://127.0.0.1:9/"


async def test_what_waited_for_a_subscriber_goes_with_it(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        leaver, publisher = await bus.token("leaver"), await bus.token("publisher")
        await bus.subscribe(leaver, DEAD_URL, "widgets", timeout=3_600_000, max=2)
        await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(20)])

        async with bus.http.delete(f"{bus.url}/subscriber", headers=basic(leaver)) as response:
            assert response.status == 204
        await bus.subscribe(leaver, receiver.url, "widgets", timeout=0)
        [late] = await bus.publish(publisher, [an_event(99)])
        await receiver.until_events(1)

        async with asyncio.timeout(5):
            for partition in bus.partitions.all:
                while await batches.oldest(partition) is not None or (await jobs.counts(partition))["aux", "index"]:
                    await asyncio.sleep(0.02)
        assert receiver.ids == [late]


async def test_datagrams_equal_the_counters(one: Topology):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.setblocking(False)
        address = f"127.0.0.1:{statsd.getsockname()[1]}"
        async with (
            a_bus(one, metric_adapters="statsd", statsd_address=address, monitor_interval_s=0.2) as bus,
            Receiver() as receiver,
        ):
            await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
            publisher = await bus.token("publisher")
            for n in range(30):
                await bus.publish(publisher, [an_event(n)])
            await receiver.until_events(30)
            sums: dict[str, int] = {}
            async with asyncio.timeout(10):
                while True:
                    _add_datagrams(statsd, sums)
                    if sums == await counters.read(bus.partitions.home):
                        break
                    await asyncio.sleep(0.05)

    assert sums["events.published:topic=widgets"] == 30


def test_a_failing_subscriber_gets_one_retry_when_its_delay_is_over():
    failing = Condition(failures=3, retry_at=1_000)

    assert queues_to_try(failing, now_ms=999) == ()
    assert queues_to_try(failing, now_ms=1_000) == ("retry",)
    assert queues_to_try(Condition(failures=3, retry_at=1_000, calls=1), now_ms=1_000) == ()


def test_a_failing_subscriber_gets_a_first_try_when_no_retry_came_for_long():
    assert queues_to_try(Condition(failures=3, retry_at=1_000), now_ms=100_000) == ("retry", "main")


async def test_what_a_process_told_of_its_chains_is_forgotten_long_after_its_death(one: Topology):
    await one.clear()
    async with build.open_bus(quick_settings(one)) as bus:
        home = bus.partitions.home
        await chains.tell(home, "dead", [ChainState("s", "open", 1, 2)], counts={"delivery.rejected:stage=x": 3})
        await chains.tell(home, "dead", [ChainState("s", "open", 1, 2)], counts={"delivery.rejected:stage=x": 4})
        assert await chains.states(home, silent_ms_max=5_000) == [ChainState("s", "open", 1, 2)]

        home.shift_ms = 6_000
        assert await chains.states(home, silent_ms_max=5_000) == []
        await _chores(bus).scrub()
        assert await chains.silent(home, silent_ms_max=5_000) == ["dead"]

        home.shift_ms = 11_000
        await _chores(bus).scrub()
        assert await chains.silent(home, silent_ms_max=0) == []
        assert (await counters.read(home))["delivery.rejected:stage=x"] == 7


async def test_what_is_due_in_a_queue_comes_back_though_nobody_pulls(topology: Topology):
    queue = Queue("jobs", "", (".*",), attempts_max=1)
    async with a_bus(topology, workers=0) as bus, build.open_bus(quick_settings(topology)) as other:
        secret = await bus.token("publisher")
        await other.registry.register_queue(queue, caller=Caller("", "root", is_root=True))
        await bus.publish(secret, [an_event(n, tenant=f"t{n}") for n in range(6)])
        delayed = (await other.rings.pull(queue, most=3, lease_ms=1_000)).messages
        spared = [Held(message.id, message.attempt, 1_000, is_spared=True) for message in delayed]
        await other.rings.nack(queue, spared, why="later")
        assert len((await other.rings.pull(queue, most=3, lease_ms=1_000)).messages) == 3
        await _chores(other).bring_back()
        assert _standing(await view.look(other.partitions, queue)) == (0, 3, 3, 0)

        for partition in other.partitions.all:
            partition.shift_ms = 3_000
        await _chores(other).bring_back()
        assert _standing(await view.look(other.partitions, queue)) == (3, 0, 0, 3)


def _standing(seen: view.QueueView) -> tuple[int, int, int, int]:
    return seen.waiting, seen.in_flight, seen.delayed, seen.dead


def _chores(bus: build.Bus) -> Chores:
    delivery = DeliveryRules(Backoff(), lease_ms=1000, heal_points=1, damage_points=2)
    # None of these chores makes a call, so there are no chains.
    deliverer = Deliverer(bus.partitions, bus.registry, cast("Chains", None), delivery)
    autodrop = Autodrop(bus.partitions, bus.registry, bus.headroom.rules)
    meter = BacklogMeter(bus.partitions, bus.registry, bus.headroom.rules)
    rules = ChoreRules(dead_ms=1000, memory=bus.headroom.rules)
    return Chores(bus.partitions, bus.registry, deliverer, Monitor([]), autodrop, meter, rules)


def _add_datagrams(statsd: socket.socket, sums: dict[str, int]) -> None:
    """Add up what came, under the names that the counters have."""
    while True:
        try:
            datagram = statsd.recv(65536).decode()
        except BlockingIOError:
            return
        for line in datagram.split("\n"):
            name, rest = line.removeprefix("doubledecker.").split(":", 1)
            value, kind, *tags = rest.split("|")
            if kind == "c":
                labels = tags[0][1:].replace(":", "=") if tags else ""
                field = f"{name}:{labels}" if labels else name
                sums[field] = sums.get(field, 0) + int(value)
