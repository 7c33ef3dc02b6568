"""The client against a real bus: publishing, subscribing, looking after queues, and what it says when it cannot."""

import pytest

from client.consuming import a_place
from conftest import Topology
from doubledecker.client import (
    AsyncBus,
    Bus,
    BusAway,
    ClientError,
    Conflict,
    EventsRefused,
    Forbidden,
    NotFound,
    Refused,
    Unauthenticated,
)
from doubledecker.store.machine import free_port
from harness import a_bus
from receiver import Receiver


async def test_what_is_published_is_on_the_queue_with_its_id(one: Topology):
    async with a_place("http", one) as place, AsyncBus(place.bus.url, place.publisher) as bus:
        id_ = await bus.publish("jobs", "run", tenant="acme", key="k", data={"total": 3}, url="https://shop.example/1")
        several = await bus.publish_many([{"topic": "jobs", "type": "run"}, {"topic": "jobs", "type": "no space"}])

        [peeked] = await place.queue.peek("acme")
        assert (peeked.event.id, peeked.event.data, peeked.event.key) == (id_, {"total": 3}, "k")
        assert peeked.event.routing_key == "acme:jobs:run"
        [refusal] = several.refused
        assert (len(several.ids), refusal.index) == (1, 1)
        assert refusal.why.startswith("type is 'no space'")


async def test_refusals_are_raised_when_nothing_was_published(one: Topology):
    async with a_place("http", one) as place, AsyncBus(place.bus.url, place.publisher) as bus:
        with pytest.raises(Refused, match="the topic is 'no topic'"):
            await bus.publish("no topic", "run")
        with pytest.raises(EventsRefused, match="event 0: the topic is 'no topic'") as none:
            await bus.publish_many([{"topic": "no topic", "type": "run"}])
        good, bad = ({"topic": topic, "type": "run"} for topic in ("jobs", "no topic"))
        with pytest.raises(EventsRefused, match="event 1") as whole:
            await bus.publish_many([good, bad], is_whole=True)

        assert [each.index for each in none.value.refused] == [0]
        assert whole.value.status == 400
        assert (await place.queue.get()).waiting == 0


async def test_a_subscriber_gets_its_events(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        async with AsyncBus(bus.url, await bus.token("shop")) as shop:
            await shop.subscribe(["orders"], receiver.url, timeout=0, uuid="us")
            id_ = await shop.publish("orders", "create")
            await receiver.until_events(1)
            await shop.unsubscribe()

            with pytest.raises(NotFound):
                await shop.unsubscribe()
        assert [event["id"] for event in receiver.events] == [id_]


async def test_a_string_is_not_taken_for_a_list_of_its_letters(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        await shop.subscribe(["orders"], "https://shop.example/")
        with pytest.raises(Refused, match="topics is a string; it must be an array"):
            await shop.subscribe("three", "https://shop.example/")
        with pytest.raises(Refused, match="ids is a string; it must be an array"):
            await shop.dead_letters().purge("0-abc")

        assert [each.topics for each in await shop.subscriptions()] == [("orders",)]


async def test_a_queue_is_registered_ruled_emptied_and_deleted(topology: Topology):
    async with a_place("http", topology, attempts_max=1) as place:
        queue = place.queue
        await place.publish(6, tenants=2)
        rule = await queue.facet("t0").set(weight=4, concurrency=2)
        freed = await queue.facet("t0").set(concurrency=None, paused=True)
        facet = await queue.facet("t0").get()
        pulled = await queue.pull(2)
        await queue.nack(pulled)

        assert (rule.weight, rule.concurrency) == (4, 2)
        assert (freed.weight, freed.concurrency, freed.paused) == (4, None, True)
        assert (facet.waiting, facet.paused) == (3, True)
        assert {message.tenant for message in pulled} == {"t1"}, "the other is paused"
        assert {letter.id for letter in await queue.dead(tenant="t1")} == {message.id for message in pulled}
        assert await queue.redrive([pulled[0].id]) == 1
        assert await queue.purge_dead() == 1
        assert await queue.purge(tenant="t0") == 3
        with pytest.raises(Conflict, match="2 waiting"):
            await queue.delete()
        assert [view.name for view in await place.http.queues()] == ["jobs"]
        await queue.delete(discard=True)
        assert await place.http.queues() == []


async def test_who_may_not_hears_so(one: Topology):
    async with a_place("http", one) as place:
        async with AsyncBus(place.bus.url, "nobody") as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.queue("jobs").get()
        async with AsyncBus(place.bus.url, place.publisher) as other:
            with pytest.raises(Forbidden, match="belongs to another client"):
                await other.queue("jobs").pull()
        with pytest.raises(Refused, match="missing \\)"):
            await place.queue.register("(a")


async def test_a_bus_that_is_away_is_waited_for_no_longer_than_the_patience():
    async with AsyncBus(f"http://127.0.0.1:{free_port()}", "x", patience_s=0.3) as bus:
        with pytest.raises(BusAway, match="no bus answers at"):
            await bus.publish("jobs", "run")


async def test_an_address_where_no_bus_is_says_so():
    async with Receiver() as receiver, AsyncBus(receiver.url, "x") as bus:
        with pytest.raises(NotFound, match="answered 404, not as a bus does; check the address"):
            await bus.publish("jobs", "run")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
async def test_a_number_that_json_does_not_have_is_refused_and_null_is_not(one: Topology, number: float):
    async with a_place("http", one) as place, AsyncBus(place.bus.url, place.publisher) as bus:
        with pytest.raises(ClientError, match="NaN or infinite; JSON has neither"):
            await bus.publish("jobs", "run", data={"prices": [1.5, {"net": number}]})
        with pytest.raises(ClientError, match="NaN or infinite"):
            await bus.publish_many([{"topic": "jobs", "type": "run", "data": number}])
        await bus.publish("jobs", "run", data={"price": None, "text": "null"})

        [peeked] = await place.queue.peek()
        assert peeked.event.data == {"price": None, "text": "null"}


def test_a_token_with_a_control_character_is_refused_at_once():
    for kind in (AsyncBus, Bus):
        with pytest.raises(ClientError, match="the token has a control character") as refused:
            kind("http://127.0.0.1:1", "sesame\n")
        assert "sesame" not in str(refused.value)


def test_every_name_of_the_client_is_there():
    from doubledecker import client

    assert [name for name in client.__all__ if getattr(client, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'Buss'"):
        client.Buss  # noqa: B018 - asking is the test


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(ValueError, match="it must be a URL like"):
        AsyncBus("nowhere", "x")


async def test_a_client_has_subscriptions_by_name_and_pauses_one_by_it(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        made = await shop.put_subscription("mail", ["orders"], "https://shop.example/", max=7)
        changed = await shop.change_subscription("mail", max=None, topics=["orders", "refunds"])
        paused = await shop.pause("mail")
        found = await shop.subscriptions(topic="refunds", state="paused")
        await shop.put_subscription("news", [], "https://shop.example/")
        await shop.delete_subscription("news")

        assert (made.secret or "").startswith("whsec_")
        assert (made.max_events, changed.max_events, changed.topics) == (7, 100, ("orders", "refunds"))
        assert [each.subscriber for each in found] == [paused.receiver] == [made.subscriber]
        assert found == [await shop.subscription("mail")] == await shop.subscriptions()
