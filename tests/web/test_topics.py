"""Topics: published on by their owner alone, listed by name, deleted with their subscriptions."""

import json as codec

import pytest

from conftest import Topology
from doubledecker import clock
from harness import ROOT_KEY, TestBus, a_bus, an_event
from web.asking import another_web, ask, ask_raw, everything, journal

EVENT = {"type": "create", "url": "https://shop.example/orders/1"}


async def test_a_posted_event_is_204_and_stored_as_it_will_be_delivered(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        answer = await ask(bus, "POST", "/topics/orders", shop, json={**EVENT, "timestamp": 7, "data": {"total": [1]}})

        assert answer.status == 204
        assert answer.body == b""
        [event] = await journal(bus)
        assert list(event) == ["topic", "type", "url", "t", "data", "id"]
        assert {**event, "id": ""} == {"topic": "orders", **EVENT, "t": 7, "data": {"total": [1]}, "id": ""}


async def test_a_client_that_asks_whether_to_go_on_is_told_once_also_when_it_has_sent_its_body(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, body = await bus.token("shop"), codec.dumps(EVENT).encode()
        head = (
            f"POST /topics/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shop}\r\nConnection: close\r\n"
            f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        status, _, rest = await ask_raw(bus, head.encode() + body)

        assert status == 100
        assert rest.startswith(b"HTTP/1.1 204 ")
        assert rest.count(b"HTTP/1.1") == 1


async def test_each_of_the_four_types_is_taken(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for type_ in ("create", "update", "delete", "noop"):
            assert (await ask(bus, "POST", "/topics/orders", shop, json={**EVENT, "type": type_})).status == 204, type_


@pytest.mark.parametrize("fields", [{}, {"timestamp": None}], ids=["absent", "null"])
async def test_a_timestamp_that_is_absent_or_null_means_now(one: Topology, fields: dict[str, None]):
    async with a_bus(one, workers=0) as bus:
        before = clock.now_ms()
        await ask(bus, "POST", "/topics/orders", await bus.token("shop"), json={**EVENT, **fields})

        [event] = await journal(bus)
        assert before <= event["t"] <= clock.now_ms()


async def test_data_of_null_is_the_same_as_none(one: Topology):
    async with a_bus(one, workers=0) as bus:
        assert (
            await ask(bus, "POST", "/topics/orders", await bus.token("shop"), json={**EVENT, "data": None})
        ).status == 204

        [event] = await journal(bus)
        assert "data" not in event


async def test_what_is_at_the_bounds_is_taken(one: Topology):
    async with a_bus(one, workers=0, max_event_data_bytes=100, event_depth_max=3) as bus:
        shop = await bus.token("shop")
        for event in (
            {**EVENT, "url": "https://shop.example/" + "x" * (1024 - 21)},
            {**EVENT, "timestamp": 0},
            {**EVENT, "timestamp": 2**53},
            {**EVENT, "data": "x" * 98},
            {**EVENT, "data": [[["[[[["]]]},
        ):
            assert (await ask(bus, "POST", "/topics/" + "a" * 64, shop, json=event)).status == 204, event


BAD = [
    ({"type": "paid"}, "create, update, delete, noop"),
    ({"type": None}, "type is null; it must be a string"),
    ({"url": "http://shop.example/"}, "https"),
    ({"url": "https://shop.example/?a=1"}, "without a query"),
    ({"url": "https://shop.example/#a"}, "https"),
    ({"url": "https://"}, "https"),
    ({"url": "https://shop.example/a b"}, "https"),
    ({"url": "https://shop.example/" + "x" * (1025 - 21)}, "1024"),
    ({"url": 1}, "url is a whole number; it must be a string"),
    ({"timestamp": -1}, "milliseconds"),
    ({"timestamp": 2**53 + 1}, "milliseconds"),
    ({"timestamp": 1.5}, "timestamp is a number; it must be a whole number or null"),
    ({"timestamp": "7"}, "timestamp is a string; it must be a whole number or null"),
    ({"timestamp": True}, "timestamp is true or false; it must be"),
    ({"topic": "orders"}, "an event has no field 'topic'; its fields are type, url, timestamp, data"),
    ({"tenant": "acme"}, "no field 'tenant'"),
    ({"data": [[[[[]]]]]}, "deeper than 4 levels"),
]


async def test_a_bad_event_is_400_and_the_answer_says_what_is_allowed(one: Topology):
    async with a_bus(one, workers=0, event_depth_max=4) as bus:
        shop = await bus.token("shop")
        for change, said in BAD:
            answer = await ask(bus, "POST", "/topics/orders", shop, json={**EVENT, **change})
            assert answer.status == 400, change
            assert said in answer.detail, change

        assert await journal(bus) == []


async def test_an_event_needs_a_type_and_a_url(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for missing, body in (("type", {"url": EVENT["url"]}), ("url", {"type": "create"})):
            answer = await ask(bus, "POST", "/topics/orders", shop, json=body)
            assert answer.status == 400
            assert f"'{missing}'" in answer.detail


async def test_a_refused_topic_name_does_not_appear_in_the_list(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for name in (
            "7orders",
            "-a",
            ".a",
            "a:b",
            "a" * 65,
            "%C3%BC",
            "a%0A",
            "a%20b",
            "{name}",
            "%7Bname%7D",
            "*",
        ):
            answer = await ask(bus, "POST", f"/topics/{name}", shop, json=EVENT)
            assert answer.status == 400, name
            assert "must match [A-Za-z_][A-Za-z0-9_.-]{0,63}" in answer.detail
        await ask(bus, "POST", "/topics/orders", shop, json={**EVENT, "type": "wrong"})

        assert await listed_topics(bus) == []


async def test_a_path_below_a_topic_is_not_found(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for path in ("/topics/", "/topics/a/b", "/topics/a%2Fb", "/topics/{name}/x", "/nothing"):
            assert (await ask(bus, "POST", path, shop, json=EVENT)).status == 404, path


async def test_the_first_publisher_owns_the_topic(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, other = await bus.token("shop"), await bus.token("other")
        first = await ask(bus, "POST", "/topics/orders", shop, json=EVENT)
        second = await ask(bus, "POST", "/topics/orders", other, json=EVENT)
        third = await ask(bus, "POST", "/topics/orders", shop, json=EVENT)

        assert (first.status, second.status, third.status) == (204, 403, 204)
        owner = next(token["token"] for token in await bus.get("/api_tokens") if token["name"] == "shop")
        assert second.detail == f"topic 'orders' belongs to another client, '{owner}'"
        assert await listed_topics(bus) == [{"name": "orders", "publisher": "shop", "events": 2}]


async def listed_topics(bus: TestBus) -> list[dict[str, object]]:
    """The names of topics and of their owners, and how many events they had."""
    return [{name: row[name] for name in ("name", "publisher", "events")} for row in await bus.get("/topics")]


async def test_topics_show_their_publisher_by_name_and_count_all_events(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail-er")
        await bus.publish(shop, [an_event(n, topic="orders", tenant=f"t{n}") for n in range(10)])
        await bus.publish(mail, [an_event(1, topic="letters")])
        listed = await ask(bus, "GET", "/topics", mail)

        ids = {token["name"]: token["token"] for token in await bus.get("/api_tokens")}
        rest = {"description": "", "publishers": []}
        assert listed.json == [
            {"name": "letters", "publisher": "mail-er", "publisher_id": ids["mail-er"], "events": 1, **rest},
            {"name": "orders", "publisher": "shop", "publisher_id": ids["shop"], "events": 10, **rest},
        ]
        assert shop.encode() not in listed.body
        assert mail.encode() not in listed.body


async def test_the_publisher_of_a_topic_is_shown_by_name_after_its_token_is_revoked(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await bus.publish(shop := await bus.token("shop-eu"), [an_event(1, topic="orders")])
        await ask(bus, "DELETE", f"/api_tokens/{shop}")

        assert await listed_topics(bus) == [{"name": "orders", "publisher": "shop-eu", "events": 1}]


@pytest.mark.parametrize("who", ["owner", "root"])
async def test_the_owner_and_root_delete_a_topic_and_its_subscriptions_end(topology: Topology, who: str):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        await bus.publish(shop, [an_event(n, topic="orders", tenant=f"t{n}") for n in range(9)])
        await bus.subscribe(mail, "https://mail.example/", "orders", "letters")
        answer = await ask(bus, "DELETE", "/topics/orders", shop if who == "owner" else ROOT_KEY)

        assert answer.status == 204
        assert await listed_topics(bus) == []
        [row] = await bus.get("/subscribers")
        assert row["topics"] == ["letters"]


async def test_a_deleted_topic_can_be_claimed_by_another_and_counts_from_zero(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, other = await bus.token("shop"), await bus.token("other")
        await bus.publish(shop, [an_event(n, topic="orders", tenant=f"t{n}") for n in range(9)])
        await ask(bus, "DELETE", "/topics/orders", shop)
        await bus.publish(other, [an_event(1, topic="orders")])

        assert await listed_topics(bus) == [{"name": "orders", "publisher": "other", "events": 1}]
        assert (await ask(bus, "POST", "/topics/orders", shop, json=EVENT)).status == 403


async def test_deleting_a_topic_of_another_is_403_and_an_unknown_one_404(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, other = await bus.token("shop"), await bus.token("other")
        await bus.publish(shop, [an_event(1, topic="orders")])
        foreign = await ask(bus, "DELETE", "/topics/orders", other)
        unknown = await ask(bus, "DELETE", "/topics/ordrs", shop)

        assert foreign.status == 403
        assert unknown.status == 404
        assert unknown.detail == "no topic named 'ordrs'"
        assert len(await bus.get("/topics")) == 1


async def test_a_topic_is_given_to_another_client_with_its_subscriptions_and_its_count(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        heir = (await ask(bus, "POST", "/api_tokens", json={"name": "heir"})).json
        await bus.subscribe(mail, "https://mail.example/", "orders")
        await bus.publish(shop, [an_event(1, topic="orders")])
        given = await ask(bus, "POST", "/topics/orders/give", json={"to": heir["id"]})
        refused = await ask(bus, "POST", "/topics/orders", shop, json=EVENT)
        await bus.publish(heir["token"], [an_event(2, topic="orders")])

        assert given.status == 204
        assert (refused.status, (await ask(bus, "DELETE", "/topics/orders", shop)).status) == (403, 403)
        assert await listed_topics(bus) == [{"name": "orders", "publisher": "heir", "events": 2}]
        [row] = await bus.get("/subscribers", mail)
        assert (row["topics"], row["events"]["queued"]) == (["orders"], 2)


async def test_a_topic_is_given_by_root_alone_and_to_a_client_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        await ask(bus, "POST", "/topics/orders", made["token"], json=EVENT)
        before = await everything(bus)
        for body in ({"to": "nobody-00000000"}, {"to": "root"}, {"to": ""}, {"to": 1}, {}, {"to": made["id"], "x": 1}):
            assert (await ask(bus, "POST", "/topics/orders/give", json=body)).status == 400, body

        assert (await ask(bus, "POST", "/topics/orders/give", made["token"], json={"to": made["id"]})).status == 403
        assert (await ask(bus, "POST", "/topics/letters/give", json={"to": made["id"]})).status == 404
        assert await everything(bus) == before


@pytest.mark.parametrize("query", ["", "?all=1"])
async def test_an_event_that_is_on_its_way_when_the_topic_changes_hands_is_refused(one: Topology, query: str):
    """The other web process has a copy in which the topic is still its first owner's."""
    async with a_bus(one, workers=0) as bus, another_web(bus) as url:
        shop = await bus.token("shop")
        heir = (await ask(bus, "POST", "/api_tokens", json={"name": "heir"})).json
        own, given = an_event(1, topic="letters"), an_event(2, topic="orders")
        first = await ask(bus, "POST", "/events", shop, json=[own, given], url=url)
        await ask(bus, "POST", "/topics/orders/give", json={"to": heir["id"]})
        second = await ask(bus, "POST", f"/events{query}", shop, json=[own, given], url=url)

        topics = [event["topic"] for event in (await journal(bus))[2:]]
        assert (first.status, second.status) == (202, 403 if query else 202)
        assert topics == ([] if query else ["letters"])
        if not query:
            assert [each["index"] for each in second.json["refused"]] == [1]


async def test_a_topic_may_be_named_as_the_driver_s_types_are(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        for name in ("Order.placed-v2", "a" * 64, "_"):
            await bus.subscribe(mail, "https://mail.example/", name)
            await bus.publish(shop, [an_event(1, topic=name, tenant=7)])
            assert (await ask(bus, "POST", f"/topics/{name}", shop, json=EVENT)).status == 204

        assert [(row["name"], row["events"]) for row in await bus.get("/topics")] == [
            ("Order.placed-v2", 2),
            ("_", 2),
            ("a" * 64, 2),
        ]
        assert {event.get("tenant") for event in await journal(bus)} == {"7", None}


async def test_deleting_a_topic_says_how_many_subscriptions_it_ends(one: Topology):
    """In a header: an original client takes 204 alone for success."""
    async with a_bus(one, workers=0) as bus:
        shop, mail, web = [await bus.token(name) for name in ("shop", "mail", "web")]
        await bus.publish(shop, [an_event(1, topic="orders"), an_event(1, topic="letters")])
        for secret in (mail, web):
            await bus.subscribe(secret, "https://mail.example/", "orders", "other")
        ended = [await ask(bus, "DELETE", f"/topics/{name}", shop) for name in ("orders", "letters")]

        assert [answer.status for answer in ended] == [204, 204]
        assert [answer.headers["Ended-Subscriptions"] for answer in ended] == ["2", "0"]
