"""An event's whole way: published over HTTP, batched, delivered to a subscriber's callback."""

import pytest

from conftest import Topology
from harness import a_bus, an_event, basic
from receiver import Receiver


async def test_an_event_reaches_every_subscriber_of_its_topic_and_no_other(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as first, Receiver() as second, Receiver() as other:
        publisher = await bus.token("publisher")
        for name, receiver, topic in (("a", first, "widgets"), ("b", second, "widgets"), ("c", other, "gadgets")):
            await bus.subscribe(await bus.token(name), receiver.url, topic, timeout=0, uuid=f"uuid-{name}")

        [id_] = await bus.publish(publisher, [an_event(1, tenant="acme", key="k", data={"n": [1, 2]}, timestamp=7)])
        await first.until_events(1)
        await second.until_events(1)

        assert first.events == [
            {
                "topic": "widgets",
                "type": "update",
                "url": "https://example.org/1",
                "t": 7,
                "data": {"n": [1, 2]},
                "id": id_,
                "tenant": "acme",
                "key": "k",
            }
        ]
        assert second.events == first.events
        assert other.events == []
        assert first.batches[0].uuid == "uuid-a"
        assert first.batches[0].content_type == "application/json"


async def test_events_of_one_key_arrive_in_the_order_of_acceptance(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=50, max=7, concurrency=1)

        for start in range(0, 100, 10):
            await bus.publish(publisher, [an_event(n, key="one") for n in range(start, start + 10)])
        await receiver.until_events(100)

        assert [event["url"] for event in receiver.events] == [f"https://example.org/{n}" for n in range(100)]
        assert max(len(batch.events) for batch in receiver.batches) <= 7


@pytest.mark.slow
async def test_a_failing_subscriber_gets_its_events_when_it_recovers(topology: Topology):
    async with a_bus(topology) as bus, Receiver(plan=lambda n: 500 if n <= 5 else 200) as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=3)

        ids = await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(20)])
        await receiver.until(lambda: set(receiver.ids) >= set(ids))

        assert sorted(receiver.ids) == sorted(ids)


async def test_everything_is_gone_once_it_is_delivered(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        publisher = await bus.token("publisher")
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=10, max=10)

        ids = await bus.publish(publisher, [an_event(n, tenant=f"t{n % 5}") for n in range(95)])
        await receiver.until_events(95)

        [row] = await bus.get("/subscribers", subscriber)
        assert sorted(receiver.ids) == sorted(ids)
        assert row["events"]["queued"] == 0
        assert row["events"]["sent"] == 95
        assert row["health"] == 100
        async with bus.http.get(f"{bus.url}/topics", headers=basic(publisher)) as response:
            [topic] = await response.json()
            assert (topic["name"], topic["publisher"], topic["events"]) == ("widgets", "publisher", 95)
