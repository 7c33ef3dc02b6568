"""From publishers to queues: who gets what, in which order, and what happens when a queue is full."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from conftest import Topology
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.publish import Publisher
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Conflict, Forbidden, QueueFull
from doubledecker.model.event import AcceptedEvent, draft
from doubledecker.model.queue import FacetRule
from doubledecker.model.token import Caller
from doubledecker.store import dead_letters, events, facets, queues
from doubledecker.store.events import PublishLimits
from doubledecker.store.partitions import Partition, Partitions
from harness import a_bus, basic, save_queues
from queues.pulling import ROOT, a_queue, an_offer, drain, held, push, quiet_rings


@asynccontextmanager
async def a_publisher(partitions: Partitions) -> AsyncIterator[tuple[Publisher, LiveRegistry, str]]:
    """A process that publishes: its publisher, its registry, and the client that it publishes for."""
    live = LiveRegistry(partitions)
    token = await live.clients.create("ann", "a-secret-of-ann", now_ms=1)
    publisher = Publisher(partitions, live, Headroom(partitions, MemoryRules()))
    running = asyncio.create_task(publisher.run())
    yield publisher, live, token.id
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def some_events(
    *numbers: int, tenant: str = "acme", topic: str = "widgets", type_: str = "update"
) -> list[AcceptedEvent]:
    return [AcceptedEvent(topic=topic, type=type_, t=n, id=f"e{n}", tenant=tenant) for n in numbers]


def publishing(publisher: Publisher, client: str, events: list[AcceptedEvent], *, is_whole: bool = False) -> Awaitable:
    drafts = [draft(event, is_id_given=False, index=i) for i, event in enumerate(events)]
    return publisher.publish(client, drafts, is_whole=is_whole)


def times(messages: Sequence[queues.QueueMessage]) -> list[int]:
    return [msgspec.json.decode(message.event)["t"] for message in messages]


async def test_an_event_is_on_every_queue_that_matches_once(partitions: Partitions):
    async with a_publisher(partitions) as (publisher, live, client):
        both = a_queue("both", "acme:.*", ".*:widgets:.*", "acme:widgets:update")
        other = a_queue("other", "[^:]+:gadgets:.*")
        for queue in (both, other):
            await live.register_queue(queue, caller=ROOT)
        offered = some_events(1) + some_events(2, topic="gadgets") + some_events(3, tenant="x")
        await publishing(publisher, client, offered)

    rings = quiet_rings(partitions)
    assert sorted(times(await drain(rings, both))) == [1, 2, 3]
    assert times(await drain(rings, other)) == [2]


async def test_order_inside_a_facet_is_kept_when_events_go_to_different_queues(plain: Partitions):
    """Sets of queues were written one after the other: 1 and 3 came before 2."""
    async with a_publisher(plain) as (publisher, live, client):
        all_, some = a_queue("all", ".*"), a_queue("some", ".*:create")
        for queue in (all_, some):
            await live.register_queue(queue, caller=ROOT)
        offered = [event for n in range(20) for event in some_events(n, type_="create" if n % 3 == 0 else "update")]
        await publishing(publisher, client, offered)

    rings = quiet_rings(plain)
    assert times(await drain(rings, all_)) == list(range(20))
    assert times(await drain(rings, some)) == list(range(0, 20, 3))


async def test_two_hundred_queues_get_a_key_and_a_queue_gets_many_keys(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.deferred_copies.OWN_MAX", 200)
    async with a_publisher(plain) as (publisher, live, client):
        for n in range(200):
            await live.register_queue(a_queue(f"q{n}", f"t{n}:.*" if n % 2 else ".*"), caller=ROOT)
        await publishing(publisher, client, [event for n in range(50) for event in some_events(n, tenant=f"t{n}")])

    rings = quiet_rings(plain)
    for n in (0, 2, 198):
        assert sorted(times(await drain(rings, a_queue(f"q{n}")))) == list(range(50))
    assert times(await drain(rings, a_queue("q49"))) == [49]
    assert times(await drain(rings, a_queue("q51"))) == []


async def test_a_repeated_id_is_not_enqueued_twice(partitions: Partitions):
    queue = a_queue()
    for _ in range(3):
        offer = an_offer("ann", queue, id_="same")
        partition = partitions.of(offer.route.kind)
        await events.publish(partition, [offer, offer], version=10**9, limits=PublishLimits())

    assert len(await drain(quiet_rings(partitions), queue)) == 1


async def test_a_wide_event_reaches_thousands_of_queues_through_its_job(one: Topology):
    count = 2100
    async with a_bus(one, client_copies_max=0) as bus:
        secret = await bus.token("ann")
        home = bus.partitions.home
        wide = [a_queue(f"q{n}", owner="eve", overflow="refuse", max_length=1) for n in range(count)]
        await save_queues(home, wide)
        async with bus.http.post(
            f"{bus.url}/events", json={"topic": "widgets", "type": "update"}, headers=basic(secret)
        ) as response:
            assert response.status == 202
        async with asyncio.timeout(20):
            while await home.command("HLEN", home.key(f"queue:data:q{count - 1}")) != 1 or await fans(home):
                await asyncio.sleep(0.05)

        lengths = await home.commands([["HLEN", home.key(f"queue:data:q{n}")] for n in range(count)])
        assert lengths == [1] * count
        # A queue that refuses drops nothing, also when a wide event finds it full.
        async with bus.http.post(
            f"{bus.url}/events", json={"topic": "widgets", "type": "update"}, headers=basic(secret)
        ) as response:
            assert response.status == 202
        async with asyncio.timeout(20):
            while await home.command("HGET", home.key(f"queue:state:q{count - 1}"), "skipped") != b"1":
                await asyncio.sleep(0.05)
        assert (await facets.look(home, [a_queue("q7")]))[0].counters.get("dropped", 0) == 0
        assert await home.commands([["HLEN", home.key(f"queue:data:q{n}")] for n in range(count)]) == [1] * count


async def fans(home: Partition) -> list[bytes]:
    return await home.command("KEYS", home.key("fanout:*"))


class TestFull:
    @pytest.mark.parametrize("bound", [{"max_length": 3}, {"facet_max_length": 3}])
    async def test_a_queue_that_refuses_says_so_for_each_event_that_has_no_room(self, plain: Partitions, bound: dict):
        async with a_publisher(plain) as (publisher, live, client):
            queue = a_queue(overflow="refuse", **bound)
            await live.register_queue(queue, caller=ROOT)
            refused = await publishing(publisher, client, some_events(*range(5)))

        assert sorted(refused) == [3, 4]
        assert all(isinstance(why, QueueFull) and "'work'" in why.detail for why in refused.values())
        assert times(await drain(quiet_rings(plain), queue)) == [0, 1, 2]

    @pytest.mark.parametrize("bound", [{"max_length": 3}, {"facet_max_length": 3}])
    async def test_a_queue_that_drops_keeps_the_newest_and_counts(self, plain: Partitions, bound: dict):
        async with a_publisher(plain) as (publisher, live, client):
            queue = a_queue(**bound)
            await live.register_queue(queue, caller=ROOT)
            assert await publishing(publisher, client, some_events(*range(5))) == {}

        assert (await facets.look(plain.home, [queue]))[0].counters["dropped"] == 2
        assert times(await drain(quiet_rings(plain), queue)) == [2, 3, 4]

    async def test_one_full_facet_refuses_nobody_else(self, plain: Partitions):
        async with a_publisher(plain) as (publisher, live, client):
            await live.register_queue(a_queue(overflow="refuse", facet_max_length=2), caller=ROOT)
            offered = some_events(0, 1, 2, tenant="noisy") + some_events(3, 4, tenant="quiet")
            assert sorted(await publishing(publisher, client, offered)) == [2]

    async def test_a_whole_request_falls_with_its_first_refusal_and_its_neighbours_stand(self, plain: Partitions):
        """All in one group commit: the room that the whole one gives back is the neighbours'."""
        async with a_publisher(plain) as (publisher, live, client):
            queue = a_queue(overflow="refuse", max_length=3)
            await live.register_queue(queue, caller=ROOT)
            await live.topics.claim(["widgets"], publisher=client)
            answers = await asyncio.gather(
                publishing(publisher, client, some_events(1)),
                publishing(publisher, client, some_events(2, 3, 4), is_whole=True),
                publishing(publisher, client, some_events(5)),
                publishing(publisher, client, some_events(6), is_whole=True),
                publishing(publisher, client, some_events(7, 8)),
            )

        refused = [sorted(answer) for answer in answers]
        assert refused[1] in ([0, 1, 2], [])
        assert sum(len(each) for each in refused) == 5
        kept = times(await drain(quiet_rings(plain), queue))
        assert len(kept) == 3
        assert not {2, 3, 4} & set(kept) or {2, 3, 4} == set(kept)

    async def test_room_taken_by_what_another_queue_refuses_is_free(self, plain: Partitions):
        narrow, wide = (
            a_queue("narrow", overflow="refuse", max_length=1),
            a_queue("wide", overflow="refuse", max_length=3),
        )
        offers = [an_offer("ann", narrow, wide) for _ in range(3)] + [an_offer("ann", wide) for _ in range(3)]
        reply = await events.publish(plain.home, offers, version=10**9, limits=PublishLimits(), wholes=[(1, 2)])

        assert dict(reply.refused) == {1: "queue narrow", 2: "queue narrow", 5: "queue wide"}

    async def test_what_is_refused_is_nowhere_and_may_be_sent_again(self, plain: Partitions):
        full, other = a_queue("full", overflow="refuse", max_length=1), a_queue("other")
        await push(plain, full, ["ann"])
        offer = an_offer("ann", full, other, id_="mine")
        before = await plain.home.command("XLEN", plain.home.key("journal:events"))
        reply = await events.publish(plain.home, [offer, offer], version=10**9, limits=PublishLimits())

        assert set(reply.refused) == {0, 1}
        assert await plain.home.command("XLEN", plain.home.key("journal:events")) == before
        rings = quiet_rings(plain)
        assert await drain(rings, other) == []
        await drain(rings, full)
        again = await events.publish(plain.home, [offer], version=10**9, limits=PublishLimits())
        assert (again.refused, again.repeats) == ({}, frozenset())
        assert len(await drain(rings, other)) == 1

    async def test_a_bound_far_below_what_a_queue_holds_is_reached_little_by_little(self, plain: Partitions):
        """All at once was more than the script could take: it failed after its writes, and so did every later event."""
        queue = a_queue()
        await push(plain, queue, ["ann"] * 12_000)
        small = a_queue(max_length=10)
        for _ in range(15):
            await push(plain, small, ["ann"])

        assert (await facets.look(plain.home, [small]))[0].length == 10

    async def test_a_full_queue_drops_for_the_tenant_that_came_and_loses_no_facet(self, plain: Partitions):
        queue = a_queue(max_length=2)
        await push(plain, queue, ["ann", "ann", "bob", "ann"])
        rings = quiet_rings(plain)

        served = [(await rings.pull(queue, most=1)).messages for _ in range(3)]
        assert [len(each) for each in served] == [1, 1, 0]
        assert {message.tenant for each in served for message in each} <= {"ann", "bob"}

    async def test_a_paused_tenant_that_wakes_hides_nobody(self, plain: Partitions):
        """It stood first in the ring, could not be served, and a pull of one came back empty."""
        queue = a_queue()
        await facets.set_rule(plain.home, queue, "aaa", FacetRule(paused=True))
        await push(plain, queue, ["zzz", "aaa"])

        pull = await quiet_rings(plain).pull(queue, most=1)
        assert [message.tenant for message in pull.messages] == ["zzz"]


class TestFences:
    async def test_who_held_a_message_before_it_died_cannot_settle_it_in_its_next_life(self, plain: Partitions):
        queue = a_queue(attempts_max=1)
        await push(plain, queue, ["ann"])
        rings = quiet_rings(plain)
        [first] = (await rings.pull(queue, most=1)).messages
        await rings.nack(queue, held([first]))
        await dead_letters.revive(plain.home, queue, [first.id], version=10**9)
        [second] = (await rings.pull(queue, most=1)).messages

        assert second.id == first.id
        assert await rings.ack(queue, held([first])) == []
        assert await rings.ack(queue, held([second])) == [first.id]


class TestRegistering:
    async def test_two_processes_that_register_the_same_queue_agree(self, partitions: Partitions, topology: Topology):
        elsewhere = await Partitions.connect(topology.url, namespace="rm:", count=topology.partitions)
        here, there = LiveRegistry(partitions), LiveRegistry(elsewhere)
        results = await asyncio.gather(
            *(live.register_queue(a_queue("work", f"{n}:.*"), caller=ROOT) for n in range(4) for live in (here, there)),
            return_exceptions=True,
        )
        await asyncio.gather(here.refresh(), there.refresh())

        assert [result for result in results if result is True] == [True]
        assert all(result in {True, False} or isinstance(result, Conflict) for result in results)
        assert here.snapshot.queues == there.snapshot.queues
        assert len(here.snapshot.queues) == 1
        await elsewhere.close()

    async def test_a_queue_belongs_to_who_registered_it(self, plain: Partitions):
        live = LiveRegistry(plain)
        made = [await live.clients.create(name, name, now_ms=1) for name in ("ann", "bob")]
        ann, bob = (Caller(token.id, token.name) for token in made)
        await live.register_queue(msgspec.structs.replace(a_queue(), owner=ann.id), caller=ann)

        with pytest.raises(Forbidden):
            await live.register_queue(msgspec.structs.replace(a_queue(), owner=bob.id), caller=bob)
        with pytest.raises(Forbidden):
            await live.queue("work", caller=bob)
        assert await live.register_queue(a_queue("work", "x:.*"), caller=ROOT) is False
        assert (await live.queue("work", caller=ann)).owner == ann.id

    @pytest.mark.slow
    async def test_a_change_of_patterns_under_load_is_felt_by_every_publisher_at_once(
        self, partitions: Partitions, topology: Topology
    ):
        """Four processes publish without pause. What is offered after a PUT's answer is on the queue; all on `all`."""
        connected = [
            await Partitions.connect(topology.url, namespace="rm:", count=topology.partitions) for _ in range(4)
        ]
        async with a_publisher(partitions) as (_, live, client):
            everything = a_queue("all", ".*", charge="count")
            await live.register_queue(everything, caller=ROOT)
            load = Load(connected, client)
            async with load:
                for n in range(6):
                    await asyncio.sleep(0.15)
                    name = f"late{n}"
                    await live.register_queue(a_queue(name, ".*:widgets:.*"), caller=ROOT)
                    load.expected[name] = load.next
                    assert load.errors == []
                await asyncio.sleep(0.15)
        rings = quiet_rings(partitions)
        kept = times(await drain(rings, everything, most=200))
        assert len(kept) > 1000
        assert sorted(kept) == sorted(load.accepted)
        for name, first in load.expected.items():
            got = times(await drain(rings, a_queue(name), most=200))
            assert len(got) == len(set(got))
            assert {t for t in load.accepted if t >= first} <= set(got) <= set(load.accepted)
        for each in connected:
            await each.close()


class Load:
    """Publishers that never pause; `t` of an event is its number, given when it is offered."""

    def __init__(self, connected: list[Partitions], client: str) -> None:
        self._connected = connected
        self._client = client
        self.next = 0
        self.accepted: list[int] = []
        self.errors: list[BaseException] = []
        self.expected: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def __aenter__(self) -> None:
        for partitions in self._connected:
            live = LiveRegistry(partitions)
            await live.refresh()
            publisher = Publisher(partitions, live, Headroom(partitions, MemoryRules()))
            self._tasks.append(asyncio.create_task(publisher.run()))
            self._tasks += [asyncio.create_task(self._publish(publisher)) for _ in range(2)]

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.sleep(0.3)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self, publisher: Publisher) -> None:
        while not self._is_over:
            numbers = range(self.next, self.next + 10)
            self.next += 10
            offered = [event for n in numbers for event in some_events(n, tenant=f"t{n % 50}")]
            assert await publishing(publisher, self._client, offered) == {}
            self.accepted += numbers
