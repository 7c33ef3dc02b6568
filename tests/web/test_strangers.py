"""What one client registers does not stop another from publishing."""

import asyncio

from structlog.testing import capture_logs
from structlog.typing import EventDict

from conftest import Topology
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import registry
from doubledecker.web import listening, server
from harness import TestBus, a_bus, an_event, save_queues
from web.asking import ask

REFUSING = {"pattern": ".*", "max_length": 1, "overflow": "refuse"}


async def id_of(bus: TestBus, name: str) -> str:
    """The public id of a client."""
    [found] = [token["token"] for token in await bus.get("/api_tokens") if token["name"] == name]
    return found


async def put(bus: TestBus, secret: str, name: str, **fields: object) -> int:
    return (await ask(bus, "PUT", f"/queues/{name}", secret, json={**REFUSING, **fields})).status


async def counters_of(bus: TestBus, queue: str) -> dict[str, int]:
    return (await bus.get(f"/queues/{queue}"))["counters"]


class TestFullQueuesOfOthers:
    async def test_a_strangers_full_queue_refuses_nobody_elses_events(self, topology: Topology):
        async with a_bus(topology, workers=0) as bus:
            stranger, publisher = await bus.token("stranger"), await bus.token("publisher")
            assert await put(bus, stranger, "trap") == 201
            events = [an_event(n, tenant="acme") for n in range(4)]
            published = await ask(bus, "POST", "/events", publisher, json=events)
            whole = await ask(bus, "POST", "/events?all=1", publisher, json=events)
            topic = await ask(
                bus, "POST", "/topics/widgets", publisher, json={"type": "noop", "url": "https://example.org/1"}
            )

            assert (published.status, whole.status, topic.status) == (202, 202, 204)
            assert published.json["refused"] == whole.json["refused"] == []

    async def test_events_that_found_it_full_are_not_on_it_and_are_counted(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            stranger, publisher = await bus.token("stranger"), await bus.token("publisher")
            await put(bus, stranger, "trap", max_length=2)
            ids = await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(5)])
            pulled = await ask(bus, "POST", "/queues/trap/pull", stranger, json={"max": 10})
            metrics = (await ask(bus, "GET", "/metrics")).body.decode()

            # What was accepted first is still there: nothing pushed it out.
            assert sorted(message["event"]["id"] for message in pulled.json["messages"]) == sorted(ids[:2])
            counters = await counters_of(bus, "trap")
            assert (counters["skipped"], counters["dropped"]) == (3, 0)
            assert 'doubledecker_queue_skipped_total{queue="trap"} 3.0' in metrics

    async def test_its_owners_own_events_are_still_refused(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            owner, other = await bus.token("owner"), await bus.token("other")
            await put(bus, owner, "small")
            await bus.publish(owner, [an_event(1, "mine")])
            mine = await ask(bus, "POST", "/events", owner, json=an_event(2, "mine"))
            others = await ask(bus, "POST", "/events", other, json=an_event(3, "others"))

            assert (mine.status, others.status) == (429, 202)
            assert "'small' is full" in mine.detail

    async def test_room_is_shared_by_all_in_the_order_of_the_events(self, one: Topology):
        """One call carries both clients' events: an owner's event finds no room that another's has just taken."""
        async with a_bus(one, workers=0) as bus:
            owner, other = await bus.token("owner"), await bus.token("other")
            await put(bus, owner, "small", max_length=10)
            sent = [ask(bus, "POST", "/events", other, json=[an_event(n, "others") for n in range(8)])]
            sent += [ask(bus, "POST", "/events", owner, json=[an_event(n, "mine") for n in range(8)])]
            answers = await asyncio.gather(*sent)
            shown = await bus.get("/queues/small")

            refused = sum(len(answer.json["refused"]) for answer in answers)
            assert shown["waiting"] == 10
            assert refused + shown["counters"]["skipped"] == 6
            assert answers[0].json["refused"] == []

    async def test_a_wide_event_does_not_enter_a_strangers_full_queue(self, one: Topology):
        async with a_bus(one, client_copies_max=0) as bus:
            publisher = await bus.token("publisher")
            home = bus.partitions.home
            queues = [
                RegisteredQueue(f"q{n}", "stranger-1", (".*",), overflow="refuse", max_length=1) for n in range(2001)
            ]
            await save_queues(home, queues)
            for n in range(2):
                await bus.publish(publisher, [an_event(n)])
            async with asyncio.timeout(20):
                while await home.command("KEYS", home.key("fanout:*")):
                    await asyncio.sleep(0.02)

            lengths = await home.commands([["HLEN", home.key(f"queue:data:q{n}")] for n in range(2001)])
            skipped = await home.commands([["HGET", home.key(f"queue:state:q{n}"), "skipped"] for n in range(2001)])
            assert set(lengths) == {1}
            assert set(skipped) == {b"1"}


class TestClientsNamedByRoot:
    async def test_root_names_further_clients_that_a_queue_may_refuse(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            owner, named, other = [await bus.token(name) for name in ("owner", "named", "other")]
            await put(bus, owner, "small")
            await ask(bus, "PUT", "/queues/small", json={**REFUSING, "refuse_clients": [await id_of(bus, "named")]})
            # The owner registers it anew at each start, and does not know what root has named.
            assert await put(bus, owner, "small") == 200
            await bus.publish(owner, [an_event(1, "mine")])
            answers = [
                (await ask(bus, "POST", "/events", secret, json=an_event(2, topic))).status
                for secret, topic in ((owner, "mine"), (named, "theirs"), (other, "others"))
            ]

            assert answers == [429, 429, 202]
            assert (await bus.get("/queues/small"))["refuse_clients"] == [await id_of(bus, "named")]

    async def test_only_root_names_clients_and_only_clients_that_there_are(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            owner = await bus.token("owner")
            mine = await ask(bus, "PUT", "/queues/q", owner, json={**REFUSING, "refuse_clients": []})
            nobody = await ask(bus, "PUT", "/queues/q", json={**REFUSING, "refuse_clients": ["nobody-1"]})
            many = await ask(bus, "PUT", "/queues/q", json={**REFUSING, "refuse_clients": ["x"] * 101})

            assert (mine.status, nobody.status, many.status) == (400, 400, 400)
            assert "admin alone" in mine.detail
            assert "no client has that id" in nobody.detail
            assert "at most 100" in many.detail

    async def test_roots_own_queue_refuses_everybody(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            publisher = await bus.token("publisher")
            await ask(bus, "PUT", "/queues/small", json=REFUSING)
            await bus.publish(publisher, [an_event(1)])

            assert (await ask(bus, "POST", "/events", publisher, json=an_event(2))).status == 429


async def test_queues_that_no_longer_get_every_event_are_named_in_the_log_at_start(one: Topology):
    patterns = {"ann-1": ".*", "bob-1": ".*:page:.*", "cat-1": ".*:unheard:.*", "": ".*"}
    async with a_bus(one, workers=0, client_copies_max=2) as bus:
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(1, "page"), an_event(2, "own")])
        patterns[await id_of(bus, "publisher")] = ".*:own:.*"
        for owner, pattern in patterns.items():
            for number in range(4):
                queue = RegisteredQueue(f"{owner or 'root'}.{number}", owner, (pattern,))
                await registry.save_queue(bus.partitions.home, queue, former=None)
        stop = asyncio.Event()
        with capture_logs() as lines, listening.bind("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.run(bus.settings, listener, stop))
            async with asyncio.timeout(20):
                while len(limited(lines)) < 4:
                    await asyncio.sleep(0.02)
            stop.set()
            await serving

    assert sorted(limited(lines)) == ["ann-1.2", "ann-1.3", "bob-1.2", "bob-1.3"]


def limited(lines: list[EventDict]) -> list[str]:
    return [line["queue"] for line in lines if line["event"] == "queue.copies_limited"]


async def test_queues_of_version_0_1_0_that_refused_everybody_are_named_in_the_log_at_start(one: Topology):
    former = {"old": ("ann-1", "refuse"), "drops": ("ann-1", "drop_oldest"), "roots": ("", "refuse")}
    async with a_bus(one, workers=0) as bus:
        for name, (owner, overflow) in former.items():
            queue = RegisteredQueue(name, owner, (".*",), overflow=overflow)
            await registry.save_queue(bus.partitions.home, queue, former=None)
        assert await put(bus, await bus.token("owner"), "new") == 201
        stop = asyncio.Event()
        with capture_logs() as lines, listening.bind("127.0.0.1", 0) as listener:
            stop.set()
            await server.run(bus.settings, listener, stop)

    named = [(line["queue"], line["owner"]) for line in lines if line["event"] == "queue.refusal_limited"]
    assert named == [("old", "ann-1")]
