"""Repeats: by `Idempotency-Key` or by an event's own id, what is said twice within a day is done once."""

import asyncio

import pytest

from conftest import Topology
from harness import a_bus, an_event
from web.asking import ask, everything, journal, waiting

KEY = {"Idempotency-Key": "order-1"}
EVENT = {"type": "create", "url": "https://shop.example/orders/1"}


async def test_the_same_key_and_body_get_the_same_answer_and_are_published_once(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        await bus.subscribe(await bus.token("mail"), "https://mail.example/", "widgets")
        body = [an_event(1), an_event(2, tenant="acme"), {"topic": "widgets"}]
        answers = [await ask(bus, "POST", "/events", shop, json=body, headers=KEY) for _ in range(3)]

        assert [answer.status for answer in answers] == [202, 202, 202]
        assert len({answer.body for answer in answers}) == 1
        ids = sorted(answers[0].json["ids"])
        assert len(ids) == 2
        assert sorted(event["id"] for event in await journal(bus)) == ids
        assert sorted(event["id"] for event in await waiting(bus)) == ids


async def test_an_answer_too_long_to_be_kept_is_made_again_and_is_the_same(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        body = [an_event(n, tenant=f"t{n % 5}") for n in range(300)]
        first, second = [await ask(bus, "POST", "/events", shop, json=body, headers=KEY) for _ in range(2)]

        assert len(first.body) > 4096
        assert first.body == second.body
        assert len(await journal(bus)) == 300


async def test_repeats_at_the_same_time_are_published_once(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        posts = [ask(bus, "POST", "/events", shop, json=[an_event(1), an_event(2)], headers=KEY) for _ in range(10)]
        answers = await asyncio.gather(*posts)

        assert {answer.status for answer in answers} == {202}
        assert len({answer.body for answer in answers}) == 1
        assert len(await journal(bus)) == 2


async def test_another_body_under_the_same_key_is_409_and_changes_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await ask(bus, "POST", "/events", shop, json=an_event(1), headers=KEY)
        before = await everything(bus)
        others = [
            await ask(bus, "POST", "/events", shop, json=an_event(2), headers=KEY),
            await ask(bus, "POST", "/events?all=1", shop, json=an_event(1), headers=KEY),
            await ask(bus, "POST", "/topics/widgets", shop, json=EVENT, headers=KEY),
        ]

        assert [answer.status for answer in others] == [409, 409, 409]
        assert "Idempotency-Key" in others[0].detail
        assert await everything(bus) == before


async def test_the_key_of_another_client_is_another_key(one: Topology):
    async with a_bus(one, workers=0) as bus:
        first = await ask(bus, "POST", "/events", await bus.token("a"), json=an_event(1, topic="one"), headers=KEY)
        second = await ask(bus, "POST", "/events", await bus.token("b"), json=an_event(2, topic="two"), headers=KEY)

        assert (first.status, second.status) == (202, 202)
        assert first.json["ids"] != second.json["ids"]
        assert len(await journal(bus)) == 2


async def test_a_posted_topic_event_is_repeatable_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        statuses = [(await ask(bus, "POST", "/topics/orders", shop, json=EVENT, headers=KEY)).status for _ in range(2)]
        other = await ask(bus, "POST", "/topics/refunds", shop, json=EVENT, headers=KEY)

        assert statuses == [204, 204]
        assert other.status == 409
        assert len(await journal(bus)) == 1


async def test_without_a_key_the_same_body_is_published_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for _ in range(2):
            await ask(bus, "POST", "/topics/orders", shop, json=EVENT)

        assert len(await journal(bus)) == 2


async def test_the_key_of_a_refused_request_stays_free(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await bus.publish(await bus.token("other"), [an_event(0, topic="taken")])
        before = await everything(bus)
        refused = [
            await ask(bus, "POST", "/events", shop, json={"topic": "widgets"}, headers=KEY),
            await ask(bus, "POST", "/events", shop, json=[{"topic": "widgets"}], headers=KEY),
            await ask(bus, "POST", "/events", shop, json=an_event(1, topic="taken"), headers=KEY),
            await ask(bus, "POST", "/events?all=1", shop, json=[an_event(1), an_event(1, topic="taken")], headers=KEY),
            await ask(bus, "POST", "/topics/taken", shop, json=EVENT, headers=KEY),
        ]

        assert [answer.status for answer in refused] == [400, 400, 403, 403, 403]
        assert await everything(bus) == before
        assert (await ask(bus, "POST", "/events", shop, json=an_event(1), headers=KEY)).status == 202


async def test_a_key_is_forgotten_after_a_day(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        await ask(bus, "POST", "/events", shop["token"], json=an_event(1), headers=KEY)
        home = bus.partitions.home
        ages = home.key(f"ages:{shop['id']}")
        await home.command("ZINCRBY", ages, -86_400_001, "order-1")
        other = await ask(bus, "POST", "/events", shop["token"], json=an_event(2), headers=KEY)

        assert other.status == 202


async def test_what_is_remembered_ends_with_the_token(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await ask(bus, "POST", "/events", shop, json=an_event(1, id="own"), headers=KEY)
        await ask(bus, "DELETE", f"/api_tokens/{shop}")

        home = bus.partitions.home
        assert await home.command("KEYS", home.key("idempotency*")) == []
        assert await home.command("KEYS", home.key("ids:*")) == []


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü"])
async def test_a_key_is_1_to_255_printable_characters(one: Topology, key: str):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for path, body in (("/events", an_event(1)), ("/topics/orders", EVENT)):
            answer = await ask(bus, "POST", path, shop, json=body, headers={"Idempotency-Key": key})
            assert answer.status == 400
            assert "1 to 255 printable" in answer.detail
        longest = {"Idempotency-Key": "x" * 255}
        assert (await ask(bus, "POST", "/events", shop, json=an_event(1), headers=longest)).status == 202


async def test_a_repeated_id_of_the_same_publisher_gets_the_same_answer_and_is_stored_once(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        await bus.subscribe(await bus.token("mail"), "https://mail.example/", "widgets")
        events = [an_event(1, id="own-1", key="a"), an_event(2, id="own-2", key="b")]
        first = await ask(bus, "POST", "/events", shop, json=events)
        second = await ask(bus, "POST", "/events", shop, json=events)
        third = await ask(bus, "POST", "/events", shop, json=events[1])

        assert first.status == second.status == third.status == 202
        assert first.json == second.json == {"ids": ["own-1", "own-2"], "refused": []}
        assert third.json == {"ids": ["own-2"], "refused": []}
        assert sorted(event["id"] for event in await journal(bus)) == ["own-1", "own-2"]
        assert sorted(event["id"] for event in await waiting(bus)) == ["own-1", "own-2"]
        assert (await bus.get("/topics"))[0]["events"] == 2


async def test_an_id_twice_in_one_request_is_one_event(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ids = await bus.publish(await bus.token("shop"), [an_event(1, id="own"), an_event(1, id="own")])

        assert ids == ["own", "own"]
        assert len(await journal(bus)) == 1


async def test_the_same_id_of_another_publisher_is_another_event(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await bus.publish(await bus.token("a"), [an_event(1, topic="first", id="own")])
        await bus.publish(await bus.token("b"), [an_event(1, topic="second", id="own")])

        assert [event["topic"] for event in await journal(bus)] == ["first", "second"]
