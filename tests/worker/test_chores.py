"""Chores: purge, wide events, telemetry."""

import asyncio
import socket
from dataclasses import replace

import pytest
from msgspec import structs

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.dead_letters import LetterOwner
from doubledecker.bus.letter_jobs import NAME, LetterJobs
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.job import Job
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.settlement import Settlement
from doubledecker.model.subscriber import Halt, Subscriber
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.queues import view
from doubledecker.store import batches, counters, dead_letters, deliveries, jobs, receivers, registry, subscribers
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition
from doubledecker.store.queues import LeasedMessage
from doubledecker.store.receivers import Answer, Permit
from doubledecker.worker.autodrop import Autodrop
from doubledecker.worker.backlogs import BacklogMeter
from doubledecker.worker.chores import ChoreRules, Chores
from doubledecker.worker.monitor import Monitor
from harness import a_bus, an_event, basic, quick_settings
from letters import a_letter
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


async def test_nothing_is_left_of_a_subscriber_that_had_nothing_waiting_when_it_went(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        leaver, publisher = await bus.token("leaver"), await bus.token("publisher")
        await bus.subscribe(leaver, receiver.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(20)])
        await receiver.until_events(20)
        async with asyncio.timeout(5):
            while any([await batches.oldest(partition) is not None for partition in bus.partitions.all]):
                await asyncio.sleep(0.02)
        async with bus.http.delete(f"{bus.url}/subscriber", headers=basic(leaver)) as response:
            assert response.status == 204

        assert [await batches.gauges(partition) for partition in bus.partitions.all] == [({}, {})] * topology.partitions


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


async def test_permits_that_a_process_died_before_it_told_are_told_by_the_sweep(topology: Topology):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets", timeout=0, max=1, concurrency=4)
        await other.registry.refresh()
        [subscriber] = other.registry.snapshot.subscribers.values()
        await subscribers.save(
            other.partitions.home, replace(subscriber, concurrency=9), seen=other.registry.snapshot.version
        )

        await _chores(other).sweep()

        shares = [receivers.permits(9, partition) for partition in other.partitions.all]
        assert [await _limit(partition, subscriber) for partition in other.partitions.all] == shares
        assert sum(shares) == 9


@pytest.mark.parametrize("is_paused", [True, False])
async def test_a_queue_that_is_paused_or_resumed_is_so_after_the_sweep_though_a_process_died(
    topology: Topology, is_paused: bool
):
    """One that was resumed was never called again."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        queue, states = await _pushing_queue(other), ReceiverStates(other.partitions)
        await (states.resume if is_paused else states.pause)("@hooks")
        home = other.partitions.home
        [former] = await registry.queues(home, ["hooks"])
        await registry.save_queue(home, structs.replace(former, paused=is_paused), former=former)

        await _chores(other).sweep()

        keeper = other.partitions.keeper("@hooks")
        state = (await receivers.states(keeper, ["@hooks"]))["@hooks"]
        assert (state.halt, state.limit) == (Halt.PAUSED if is_paused else Halt.NONE, queue.concurrency)


@pytest.mark.parametrize("change", ["move", "enable", "move queue", "enable queue"])
async def test_one_that_moved_or_was_enabled_begins_anew_by_the_sweep_though_a_process_died(
    topology: Topology, change: str
):
    """It was not called at its new address for as long as the former had asked for."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        home, states = other.partitions.home, ReceiverStates(other.partitions)
        if change.endswith("queue"):
            await _pushing_queue(other)
        else:
            await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets")
            await other.registry.refresh()
        [receiver] = other.registry.snapshot.pushed_to.values()
        if change.startswith("enable"):
            await states.disable(receiver, why="410 Gone", at=1)
        await _fail(other, receiver)
        # What is done at home, and no more.
        if change == "move":
            wanted = replace(receiver, callback=f"{DEAD_URL}new")
            await subscribers.save(home, wanted, seen=other.registry.snapshot.version)
        elif change == "enable":
            await subscribers.mark(home, receiver.token, {"disabled_at": 0, "disabled_why": ""})
        else:
            [queue] = await registry.queues(home, ["hooks"])
            moved = f"{DEAD_URL}new" if change == "move queue" else DEAD_URL
            wanted = structs.replace(queue, callback=moved, disabled_at=0, disabled_why="")
            await registry.save_queue(home, wanted, former=queue)

        await _chores(other).sweep()

        for partition in other.partitions.all:
            state = (await receivers.states(partition, [receiver.token]))[receiver.token]
            assert (state.failures, state.retry_at, state.halt) == (0, 0, Halt.NONE)
        [known] = other.registry.snapshot.pushed_to.values()
        assert known.anew_since > receiver.anew_since


async def _fail(bus: build.BusParts, receiver: Subscriber) -> None:
    """As one that asks for an hour, in all partitions."""
    for partition in bus.partitions.all:
        permit = Permit(Answer.GO, "lease", anew_since=receiver.anew_since)
        await receivers.save(partition, receiver.token, receiver, version=bus.registry.snapshot.version + 1)
        await receivers.settle(partition, receiver.token, permit, Settlement("failed", raises=True, probe_ms=3_600_000))
        assert (await receivers.states(partition, [receiver.token]))[receiver.token].failures == 1


async def test_the_sweep_forgets_receivers_that_a_process_died_before_it_forgot(topology: Topology):
    """A queue that was registered by that name next began with the failures of the former."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets")
        await _pushing_queue(other)
        [token] = other.registry.snapshot.subscribers
        home = other.partitions.home
        await registry.delete_queue(home, next(iter(other.registry.snapshot.queues.values())), discard=True)
        await subscribers.delete(home, Subscriber(token, "", ""))

        await _chores(other).sweep()

        for partition in other.partitions.all:
            assert await partition.command("HKEYS", partition.key("receivers")) == []


async def test_the_sweep_ends_a_topic_in_all_partitions_though_a_process_died(topology: Topology):
    """Who took the name next had the events of the former topic counted as its own."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.publish(await bus.token("publisher"), [an_event(n, tenant=f"t{n}") for n in range(30)])
        home = other.partitions.home
        await registry.delete_topic(home, "widgets", publisher="")

        await _chores(other).sweep()

        for partition in other.partitions.all:
            assert await partition.command("EXISTS", partition.key("topic:widgets")) == 0
        assert await registry.deleted_topics(home) == []


async def _pushing_queue(bus: build.BusParts) -> RegisteredQueue:
    queue = RegisteredQueue("hooks", "", (".*",), callback=DEAD_URL, concurrency=7)
    await bus.registry.register_queue(queue, caller=Caller("", "root", is_root=True))
    return queue


async def test_the_sweep_leaves_what_was_accepted_for_a_subscriber_that_came_after_its_look(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        publisher, secret = await bus.token("publisher"), await bus.token("s")
        real = batches.gauges

        async def gauges(partition: Partition) -> tuple[dict[str, int], dict[str, int]]:
            if not await subscribers.all_tokens(other.partitions.home):
                await bus.subscribe(secret, DEAD_URL, "widgets", timeout=60_000)
                await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(9)])
            return await real(partition)

        monkeypatch.setattr(batches, "gauges", gauges)
        await _chores(other).sweep()

        left = [sum((await real(partition))[0].values()) for partition in other.partitions.all]
        retired = [(await jobs.counts(partition))["aux", "index"] for partition in other.partitions.all]
        assert (sum(left), sum(retired)) == (9, 0)


@pytest.mark.parametrize("chore", ["purge", "sweep", "delete"])
async def test_letters_of_a_subscriber_that_is_back_stay(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, chore: str
):
    """A process that had not heard that it was back destroyed the letters that it had by then."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        secret, partition = await bus.token("s"), other.partitions.all[-1]
        await bus.subscribe(secret, DEAD_URL, "widgets")
        await other.registry.refresh()
        [token] = other.registry.snapshot.subscribers
        await dead_letters.add(partition, token, [a_letter(1)])
        real, is_gone = dead_letters.destroy, True

        async def destroy(at: Partition, receiver: str, *, version: int) -> bool:
            nonlocal is_gone
            if at is partition and is_gone:
                is_gone = False
                await bus.subscribe(secret, DEAD_URL, "widgets")
                await dead_letters.add(partition, token, [a_letter(2)])
            return await real(at, receiver, version=version)

        if chore == "delete":
            monkeypatch.setattr(dead_letters, "destroy", destroy)
            await other.registry.subscriptions.delete(token)
        else:
            await subscribers.delete(other.partitions.home, Subscriber(token, "", ""))
            await other.registry.refresh()
            monkeypatch.setattr(dead_letters, "destroy", destroy)
            await (_chores(other).sweep() if chore == "sweep" else _chores(other).purge(partition, token, uid()))

        assert not is_gone
        assert [letter.id async for letter in dead_letters.each(partition, token, most=9)] == [a_letter(2).id]


async def test_the_sweep_ends_the_subscriber_of_a_client_that_a_process_died_before_it_ended(topology: Topology):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets", timeout=60_000)
        await bus.publish(await bus.token("publisher"), [an_event()])
        home = other.partitions.home
        [token] = await subscribers.all_tokens(home)
        await registry.delete_token(home, token)

        await _chores(other).sweep()

        assert await subscribers.all_tokens(home) == []
        for partition in other.partitions.all:
            assert await partition.command("EXISTS", partition.key(f"batches:index:{token}")) == 0


async def test_who_subscribes_anew_has_no_letters_from_before_though_a_process_died(topology: Topology):
    """They stayed where batches waited as well."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        secret = await bus.token("s")
        await bus.subscribe(secret, DEAD_URL, "widgets", timeout=60_000)
        await bus.publish(await bus.token("publisher"), [an_event(n, tenant=f"t{n}") for n in range(20)])
        home = other.partitions.home
        [token] = await subscribers.all_tokens(home)
        for partition in other.partitions.all:
            await dead_letters.add(partition, token, [a_letter(1)])
        await subscribers.delete(home, Subscriber(token, "", ""))

        await bus.subscribe(secret, DEAD_URL, "widgets", timeout=60_000)

        for partition in other.partitions.all:
            assert [letter.id async for letter in dead_letters.each(partition, token, most=9)] == []


async def test_a_job_over_letters_that_is_begun_as_another_ends_is_carried_out_at_once(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """It waited for the sweep."""
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets")
        await other.registry.refresh()
        home, [token] = other.partitions.home, other.registry.snapshot.subscribers
        await dead_letters.add(home, token, [a_letter(1)])
        owner = LetterOwner.find(other.registry.snapshot, token, client=token)
        letter_jobs = LetterJobs(other.partitions, other.registry)
        assert owner is not None
        # Its aux job is at work, and has found nothing that runs.
        await jobs.push(home, Job(NAME, (token,)))
        [taken] = (await jobs.take(home, ["slot"], process="p")).taken
        real = jobs.ack

        async def begin_before(taken: Taken) -> None:
            await letter_jobs.begin(owner, "purge", LetterFilter(), rate_per_s=1)
            await real(taken)

        monkeypatch.setattr(jobs, "ack", begin_before)
        await _chores(other).run(taken)

        [again] = (await jobs.take(home, ["slot"], process="p")).taken
        assert again.job == taken.job


async def _limit(partition: Partition, subscriber: Subscriber) -> int:
    return (await receivers.states(partition, [subscriber.token]))[subscriber.token].limit


async def test_a_dead_slot_s_permit_goes_with_its_job(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        home = other.partitions.home
        await bus.subscribe(await bus.token("s"), DEAD_URL, "widgets", timeout=0, max=1, concurrency=1)
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(2)])
        await jobs.beat(home, ["dead"])
        [first] = (await deliveries.turn(home, [], ["dead"], process="p", probes_max=1)).jobs
        assert (await deliveries.turn(home, [], ["other"], process="p", probes_max=1)).jobs == []

        home.shift_ms = 2_000
        await _chores(other).scrub(home)

        [again] = (await deliveries.turn(home, [], ["other"], process="p", probes_max=1)).jobs
        assert (again.slot, again.batch) == ("other", first.batch)


async def test_what_is_due_in_a_queue_comes_back_though_nobody_pulls(topology: Topology):
    queue = RegisteredQueue("jobs", "", (".*",), attempts_max=1)
    async with a_bus(topology, workers=0) as bus, build.open_bus(quick_settings(topology)) as other:
        secret = await bus.token("publisher")
        await other.registry.register_queue(queue, caller=Caller("", "root", is_root=True))
        await bus.publish(secret, [an_event(n, tenant=f"t{n}") for n in range(6)])
        delayed = (await other.rings.pull(queue, most=3, lease_ms=1_000)).messages
        spared = [LeasedMessage(message.id, message.attempt, 1_000, is_spared=True) for message in delayed]
        await other.rings.nack(queue, spared, why="later")
        assert len((await other.rings.pull(queue, most=3, lease_ms=1_000)).messages) == 3
        await _chores(other).bring_back()
        assert _standing(await view.look(other.partitions, queue)) == (0, 3, 3, 0)

        for partition in other.partitions.all:
            partition.shift_ms = 3_000
        await _chores(other).bring_back()
        assert _standing(await view.look(other.partitions, queue)) == (3, 0, 0, 3)


def _standing(seen: view.QueueOverview) -> tuple[int, int, int, int]:
    return seen.waiting, seen.in_flight, seen.delayed, seen.dead


def _chores(bus: build.BusParts) -> Chores:
    autodrop = Autodrop(bus.partitions, bus.registry, bus.headroom.rules)
    meter = BacklogMeter(bus.partitions, bus.registry, bus.headroom.rules)
    rules = ChoreRules(dead_ms=1000, memory=bus.headroom.rules)
    return Chores(bus.partitions, bus.registry, Monitor([]), autodrop, meter, rules)


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
