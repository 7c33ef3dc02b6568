"""Receivers that are paused or disabled: nothing is sent to them, and nothing of what waits for them is lost."""

import asyncio

import pytest
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import receivers
from doubledecker.worker import process
from doubledecker.worker.autodrop import Autodrop
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from web.asking import ask
from worker.test_deliver import _until

LATER = {"Retry-After": "60"}


async def test_a_pause_under_load_sends_nothing_and_loses_nothing(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver(delay_s=0.005) as receiver:
        subscriber, publisher = await bus.token("s"), await bus.token("publisher")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=5)
        ids: list[str] = []
        for first in range(0, 200, 20):
            ids += await bus.publish(publisher, [an_event(n, tenant=f"t{n % 5}") for n in range(first, first + 20)])
            if first == 60:
                await ask(bus, "POST", "/subscriber/pause", subscriber)
                await _until_idle(bus)
                seen = receiver.attempts

        [paused] = await bus.get("/subscribers", subscriber)
        assert receiver.attempts == seen
        assert paused["events"]["queued"] == 200 - len(receiver.events)
        await ask(bus, "POST", "/subscriber/resume", subscriber)
        await receiver.until_events(200)

        assert sorted(receiver.ids) == sorted(ids)


async def test_one_that_fails_is_paused_at_once_and_found_as_it_was(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 503 if n == 1 else 200, headers=LATER) as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(3)])
        await receiver.until_attempts(1)
        await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["failures"] == 1)

        await ask(bus, "POST", "/subscriber/pause", subscriber)
        await ask(bus, "POST", "/subscriber/resume", subscriber)
        [state] = (await receivers.states(bus.partitions.home, [await _id(bus, subscriber)])).values()

        assert (state.failures, state.seat) == (1, 3)
        assert receiver.attempts == 1
        await ask(bus, "POST", "/subscriber/enable", subscriber)  # was not disabled: it changes nothing
        assert receiver.attempts == 1
        await bus.subscribe(subscriber, receiver.url + "?new", "widgets", timeout=0, max=1, concurrency=1)
        await receiver.until_events(3)
        assert receiver.ids == ids


async def test_a_pause_outlasts_the_workers(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1)
        await ask(bus, "POST", "/subscriber/pause", subscriber)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(3)])

        for _ in range(2):
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(process.run(bus.settings, stop))
                await asyncio.sleep(0.4)  # it has looked, and swept
                stop.set()

        assert receiver.attempts == 0
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.run(bus.settings, stop))
            await ask(bus, "POST", "/subscriber/resume", subscriber)
            await receiver.until_events(3)
            stop.set()
        assert sorted(receiver.ids) == sorted(ids)


async def test_410_disables_until_it_is_enabled(topology: Topology):
    with capture_logs() as lines:
        async with a_bus(topology) as bus, Receiver(plan=lambda n: 410 if n == 1 else 200) as receiver:
            subscriber = await bus.token("s")
            await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=1, concurrency=1)
            ids = await bus.publish(await bus.token("publisher"), [an_event(n, tenant="t") for n in range(4)])
            await receiver.until_attempts(1)

            [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["disabled"])
            await _until_idle(bus)
            assert row["disabled"]["why"] == "410 Gone"
            assert receiver.attempts == 1
            assert row["events"]["queued"] == 4
            await ask(bus, "POST", "/subscriber/enable", subscriber)
            await receiver.until_events(4)

            assert receiver.ids == ids
    [line] = [line for line in lines if line["event"] == "subscriber.disabled"]
    assert (line["log_level"], line["why"]) == ("warning", "410 Gone")


@pytest.mark.parametrize("is_queue", [False, True])
async def test_a_410_of_before_does_not_disable_one_that_came_anew_to_the_same_address(
    one: Topology, *, is_queue: bool
):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        asked = {"pattern": ".*", "callback": "https://mail.example/"}

        async def begin() -> Subscriber:
            if is_queue:
                await ask(bus, "PUT", "/queues/hooks", json=asked)
            else:
                await bus.subscribe(secret, "https://mail.example/", "widgets")
            await other.registry.refresh()
            return next(iter(other.registry.snapshot.pushed_to.values()))

        secret = await bus.token("s")
        former = await begin()
        end = ("DELETE", "/queues/hooks") if is_queue else ("DELETE", "/subscriber")
        await ask(bus, *end, "" if is_queue else secret)
        await begin()
        states = ReceiverStates(bus.partitions)
        await states.disable(former, why="410 Gone", at=1)

        assert (await begin()).disabled_at == 0
        await states.disable(await begin(), why="410 Gone", at=1)
        await other.registry.refresh()
        assert next(iter(other.registry.snapshot.pushed_to.values())).disabled_at == 1


@pytest.mark.parametrize("action", ["pause", "disable"])
async def test_a_queue_that_is_halted_pushes_nothing_and_keeps_its_messages(one: Topology, action: str):
    async with (
        a_bus(one, workers=2) as bus,
        Receiver(plan=lambda n: 410 if action == "disable" and n == 1 else 200) as receiver,
    ):
        publisher = await bus.token("publisher")
        asked = {"pattern": ".*:widgets:.*", "callback": receiver.url, "timeout": 0, "max": 1, "concurrency": 1}
        await ask(bus, "PUT", "/queues/hooks", json=asked)
        if action == "pause":
            await ask(bus, "POST", "/queues/hooks/pause")
        ids = await bus.publish(publisher, [an_event(n) for n in range(5)])
        if action == "disable":
            await _until(lambda: bus.get("/queues/hooks"), lambda row: row["disabled"])
        await asyncio.sleep(0.6)  # twice as long as a watch takes to look

        shown = await bus.get("/queues/hooks")
        assert receiver.events == []
        assert receiver.attempts == (action == "disable")
        assert shown["waiting"] + shown["in_flight"] + shown["delayed"] == 5
        assert shown["dead"] == 0
        await ask(bus, "POST", "/queues/hooks/" + ("resume" if action == "pause" else "enable"))
        await receiver.until_events(5)
        assert sorted(receiver.ids) == sorted(ids)


async def test_autodrop_may_take_from_one_that_is_disabled_for_long_and_not_from_one_that_is_paused(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        tokens = {}
        for name in ("paused", "disabled", "lately", "well"):
            secret = await bus.token(name)
            await bus.subscribe(secret, "https://mail.example/", "widgets")
            tokens[name] = await _id(bus, secret)
        await bus.publish(await bus.token("publisher"), [an_event(1)])
        now_ms = await bus.partitions.home.time_ms()
        states = ReceiverStates(bus.partitions)
        await other.registry.refresh()
        for name, at in (("paused", 1), ("disabled", 1), ("lately", now_ms)):
            receiver = other.registry.snapshot.subscribers[tokens[name]]
            await states.disable(receiver, why="410 Gone", at=at)
        await states.pause(tokens["paused"])
        await other.registry.refresh()

        autodrop = Autodrop(other.partitions, other.registry, other.headroom.rules)
        stalled = await autodrop._stalled(other.partitions.home, sorted(tokens.values()))

        assert [each.token for each in stalled] == [tokens["disabled"]]


async def _until_idle(bus: TestBus) -> None:
    """Until no call is under way, and workers have had the time to begin another."""
    tokens = [row["subscriber"] for row in await bus.get("/subscribers")]

    async def calls() -> int:
        states = [await receivers.states(partition, tokens) for partition in bus.partitions.all]
        return sum(state.calls for each in states for state in each.values())

    await _until(calls, lambda count: count == 0)
    await asyncio.sleep(0.3)


async def _id(bus: TestBus, secret: str) -> str:
    [row] = await bus.get("/subscriptions", secret)
    return row["subscriber"]
