"""What is done by a copy of the registry that is old: nothing, to a subscriber that has left or is back since."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Unauthenticated
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.settlement import GONE
from doubledecker.model.subscriber import Subscriber, Subscription
from doubledecker.model.token import Caller
from doubledecker.store import deliveries, jobs, receivers, registry, subscribers
from doubledecker.store.deliveries import Settled
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.receivers import ReceiverRecord
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic

URL = "http://127.0.0.1:9/"


def after(step: Callable[[], Awaitable[None]], call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same call, which is late once: until after another step."""
    steps = [step]

    async def late(*words: object, **named: object) -> Any:
        if steps:
            await steps.pop()()
        return await call(*words, **named)

    return late


async def waiting(partitions: Partitions) -> int:
    """How many events wait for somebody: those of the one subscriber that there is, and are not to be purged."""
    [token] = await subscribers.all_tokens(partitions.home)
    events = 0
    for partition in partitions.all:
        bids: Any = await partition.command("ZRANGE", partition.key(f"batches:index:{token}"), 0, -1)
        for bid in bids:
            count: Any = await partition.command("LINDEX", partition.key(f"batch:{bid.decode()}"), 3)
            events += int(count)
    return events


async def revoke(bus: TestBus, id_: str) -> None:
    async with bus.http.delete(f"{bus.url}/api_tokens/{id_}", headers=basic(ROOT_KEY)) as response:
        assert response.status == 204


async def unsubscribe(bus: TestBus, secret: str) -> None:
    async with bus.http.delete(f"{bus.url}/subscriber", headers=basic(secret)) as response:
        assert response.status == 204


async def test_who_subscribes_again_while_it_is_being_deleted_keeps_what_was_accepted(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_bus(topology, workers=0) as bus:
        publisher, secret = await bus.token("publisher"), await bus.token("s")

        async def come_back() -> None:
            await bus.subscribe(secret, URL, "widgets", timeout=60_000)
            await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(9)])

        await come_back()
        with monkeypatch.context() as patch:
            patch.setattr(subscribers, "retire", after(come_back, subscribers.retire))
            await unsubscribe(bus, secret)

        assert await waiting(bus.partitions) == 9


async def _has_retired(partition: Partition) -> bool:
    return (await jobs.counts(partition))["aux", "index"] > 0


async def test_one_who_knows_of_a_subscriber_tells_the_partition_with_what_it_publishes(topology: Topology):
    """Home has the new version, the partition has not yet: by the old one, what waits there would be nobody's."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        await other.registry.refresh()
        before = other.registry.snapshot.version
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), URL, "widgets", timeout=60_000)
        [token] = await subscribers.all_tokens(bus.partitions.home)
        last = bus.partitions.all[-1]
        await last.command("HSET", last.key("registry"), "routing_version", before)
        await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(9)])

        assert await subscribers.retire(last, token, version=before) is None
        assert await waiting(bus.partitions) == 9


async def test_what_a_copy_holds_is_no_newer_than_its_version(one: Topology, monkeypatch: pytest.MonkeyPatch):
    async with a_bus(one, workers=0) as bus:
        home = bus.partitions.home
        copy = LiveRegistry(bus.partitions)
        token = (await copy.clients.create("s", "secret", now_ms=1)).id
        await subscribers.save(home, Subscriber(token, URL, "u", ("widgets",)), seen=copy.snapshot.version)
        await copy.refresh()
        seen = await subscribers.delete(home, Subscriber(token, "", ""))

        async def come_back() -> None:
            await subscribers.save(home, Subscriber(token, URL, "u", ("gadgets",)), seen=seen)

        monkeypatch.setattr(subscribers, "load_many", after(come_back, subscribers.load_many))
        await copy.refresh()

        assert copy.snapshot.subscribers[token].topics == ("gadgets",)
        assert copy.snapshot.version == await registry.version(home)


async def test_what_a_deleter_that_died_left_waiting_is_purged_when_its_subscriber_is_back(one: Topology):
    """Its jobs may have ended, as the subscriber was gone: nobody would deliver it, nor count it down."""
    async with a_bus(one, workers=0) as bus:
        home, secret = bus.partitions.home, await bus.token("s")
        await bus.subscribe(secret, URL, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event()])
        [token] = await subscribers.all_tokens(home)
        await subscribers.delete(home, Subscriber(token, "", ""))
        [job] = (await deliveries.turn(home, [], ["slot"], process="p", probes_max=1)).jobs
        await deliveries.turn(home, [Settled(job, GONE)], [], process="p", probes_max=1)

        await bus.subscribe(secret, URL, "widgets", timeout=0, max=1)

        assert await home.command("ZCARD", home.key(f"batches:index:{token}")) == 0
        assert await _has_retired(home)


async def test_permits_by_an_old_copy_are_not_kept(topology: Topology):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        secret = await bus.token("s")
        await bus.subscribe(secret, URL, "widgets", timeout=0, concurrency=4)
        await other.registry.refresh()
        old, version = dict(other.registry.snapshot.subscribers), other.registry.snapshot.version
        [token] = old
        await bus.subscribe(secret, URL, "widgets", timeout=0, concurrency=9)

        for partition in bus.partitions.all:
            await receivers.reconcile(partition, old, version=version)
            limit = (await receivers.states(partition, [token]))[token].limit
            assert limit == receivers.permits(9, partition)

        await unsubscribe(bus, secret)
        for partition in bus.partitions.all:
            assert not await receivers.save(partition, token, old[token], version=version)
            assert await receivers.states(partition, [token]) == {token: ReceiverRecord()}


async def test_of_two_changes_at_a_time_the_later_one_s_permits_are_kept(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("s")

        async def change() -> None:
            await bus.subscribe(secret, URL, "widgets", timeout=0, concurrency=9)

        monkeypatch.setattr(receivers, "save", after(change, receivers.save))
        await bus.subscribe(secret, URL, "widgets", timeout=0, concurrency=4)

        [token] = await subscribers.all_tokens(bus.partitions.home)
        assert (await receivers.states(bus.partitions.home, [token]))[token].limit == 9


async def test_a_registry_that_changes_all_the_time_does_not_keep_a_subscriber_from_leaving(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("s")
        await bus.subscribe(secret, URL, "widgets", timeout=60_000)
        await bus.publish(await bus.token("publisher"), [an_event()])
        async with asyncio.TaskGroup() as tasks:
            for n in range(8):
                tasks.create_task(bus.token(f"other-{n}"))
            await unsubscribe(bus, secret)

        assert await _has_retired(bus.partitions.home)


async def test_a_client_that_is_revoked_while_it_subscribes_is_refused(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    """It went on getting events, and nothing ended it."""
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        id_ = (await other.registry.clients.create("s", "secret", now_ms=1)).id
        monkeypatch.setattr(subscribers, "save", after(lambda: revoke(bus, id_), subscribers.save))

        with pytest.raises(Unauthenticated):
            await other.registry.subscriptions.put(id_, Subscription(topics=["widgets"], callback=URL))

        assert await subscribers.all_tokens(bus.partitions.home) == []


async def test_a_client_that_is_revoked_while_it_registers_a_queue_is_refused(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        id_ = (await other.registry.clients.create("s", "secret", now_ms=1)).id
        monkeypatch.setattr(registry, "save_queue", after(lambda: revoke(bus, id_), registry.save_queue))

        with pytest.raises(Unauthenticated):
            await other.registry.register_queue(RegisteredQueue("q", id_, (".*",)), caller=Caller(id_, "s"))

        assert await registry.queues(bus.partitions.home, ["q"]) == []


async def test_of_two_changes_of_a_subscriber_at_a_time_both_are_kept(one: Topology, monkeypatch: pytest.MonkeyPatch):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        secret = await bus.token("s")
        await bus.subscribe(secret, URL, "widgets")
        [token] = await subscribers.all_tokens(bus.partitions.home)

        async def change() -> None:
            await bus.subscribe(secret, URL, "widgets", concurrency=9)

        monkeypatch.setattr(subscribers, "save", after(change, subscribers.save))
        await other.registry.subscriptions.put(token, Subscription(topics=["widgets"], callback=URL, timeout=77))

        kept = (await subscribers.load_many(bus.partitions.home, [token]))[token]
        assert (kept.concurrency, kept.timeout_ms) == (9, 77)
