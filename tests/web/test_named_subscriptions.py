"""Subscriptions by name: a client has several, each apart from the others, and root can give one away."""

import asyncio
from itertools import pairwise

import pytest

from conftest import Topology
from doubledecker.store import subscribers
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from web.asking import Answer, ask

CALLBACK = "https://mail.example/events"
WANTED = {"topics": ["orders"], "callback": CALLBACK}


async def put(bus: TestBus, secret: str, name: str, url: str = CALLBACK, *topics: str, **fields: object) -> Answer:
    body = {"topics": topics or ["orders"], "callback": url, **fields}
    return await ask(bus, "PUT", f"/subscriptions/{name}", secret, json=body)


async def id_of(bus: TestBus, name: str) -> str:
    return next(row["token"] for row in (await ask(bus, "GET", "/api_tokens")).json if row["name"] == name)


async def test_put_replaces_all_but_uuid_and_secret_which_it_shows_at_creation_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        made = await put(bus, ann, "mail", max=7, headers={"X-Key": "k"}, filter={"type": ["paid"]})
        replaced = await put(bus, ann, "mail", CALLBACK, "refunds")

        assert (made.status, replaced.status) == (201, 200)
        assert made.json["secret"].startswith("whsec_")
        assert "secret" not in replaced.json
        assert replaced.json["uuid"] == made.json["uuid"]
        assert (made.json["max_events"], made.json["headers"], made.json["filter"]) == (
            7,
            {"X-Key": "k"},
            {"type": ["paid"]},
        )
        assert (replaced.json["max_events"], replaced.json["headers"], replaced.json["filter"]) == (100, {}, None)
        assert (replaced.json["topics"], replaced.json["secret_set"]) == (["refunds"], True)
        assert replaced.json["subscriber"] == f"{await id_of(bus, 'ann')}/mail"
        assert (await ask(bus, "GET", "/subscriptions/mail", ann)).json == replaced.json


async def test_patch_changes_what_it_names_and_null_resets_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        before = (await put(bus, ann, "mail", max=7, timeout=9, filter={"type": ["paid"]})).json
        changed = await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"max": 8, "topics": ["a", "b"]})
        reset = await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"max": None, "filter": None, "uuid": None})

        del before["secret"]
        assert changed.json == before | {"max_events": 8, "topics": ["a", "b"]}
        assert reset.json == changed.json | {"max_events": 100, "filter": None, "uuid": reset.json["uuid"]}
        assert reset.json["uuid"] != before["uuid"]
        refused = await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"callback": None})
        assert refused.status == 400


async def test_patch_enables_a_disabled_one_by_a_callback_alone(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 410) as gone:
        ann = await bus.token("ann")
        await put(bus, ann, "mail", gone.url, timeout=0)
        await bus.publish(await bus.token("shop"), [an_event(topic="orders")])
        async with asyncio.timeout(10):
            while not (await ask(bus, "GET", "/subscriptions/mail", ann)).json["disabled"]:
                await asyncio.sleep(0.02)

        changed = await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"max": 8})
        moved = await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"callback": CALLBACK})

        assert changed.json["disabled"]
        assert moved.json["disabled"] is None


async def test_the_default_one_is_that_of_routemasters_routes(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        await bus.subscribe(ann, CALLBACK, "orders", max=7)
        await ask(bus, "PATCH", "/subscriptions/default", ann, json={"timeout": 9})
        [row] = await bus.get("/subscriptions", ann)

        assert (row["subscriber"], row["max_events"], row["timeout"]) == (await id_of(bus, "ann"), 7, 9)
        await ask(bus, "DELETE", "/subscriber", ann)
        assert (await ask(bus, "GET", "/subscriptions/default", ann)).status == 404


@pytest.mark.parametrize("name", ["A", "a b", "..", "x" * 65, "a%2Fb"])
async def test_a_name_that_is_none_is_refused(one: Topology, name: str):
    async with a_bus(one, workers=0) as bus:
        assert (await put(bus, await bus.token("ann"), name)).status in {400, 404}
        assert await bus.get("/subscriptions") == []


async def test_the_list_is_whole_or_in_pages_and_can_be_narrowed(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, CALLBACK, "refunds")
        await put(bus, ann, "mail")
        await put(bus, ann, "news", "https://NEWS.example:8443/x", "orders", "letters")
        await put(bus, bob, "mail")
        await ask(bus, "POST", "/subscriptions/mail/pause", ann)
        home, ann_id = bus.partitions.home, await id_of(bus, "ann")

        async def names(query: str, secret: str = ann) -> list[str]:
            return [row["subscriber"].removeprefix(ann_id) for row in await bus.get(f"/subscriptions{query}", secret)]

        assert await names("") == ["", "/mail", "/news"]
        assert await names("?limit=2") == ["", "/mail"]
        assert await names(f"?limit=2&after={ann_id}%2Fmail") == ["/news"]
        assert await names("?topic=orders") == ["/mail", "/news"]
        assert await names("?topic=orders&state=paused") == ["/mail"]
        assert await names("?host=news.example") == ["/news"]
        assert await names("?state=disabled") == await names("?state=failing") == []
        assert len(await bus.get("/subscriptions")) == 4
        for query in ("?state=well", "?after=x", "?limit=0"):
            assert (await ask(bus, "GET", f"/subscriptions{query}", ann)).status == 400
        assert all(a < b for a, b in pairwise(sorted(await subscribers.all_tokens(home))))


async def test_each_subscription_gets_the_events_and_has_its_own_pause_and_order(one: Topology):
    async with a_bus(one) as bus, Receiver() as first, Receiver() as second:
        ann, shop = await bus.token("ann"), await bus.token("shop")
        await put(bus, ann, "first", first.url, timeout=0, ordered=True)
        await put(bus, ann, "second", second.url, timeout=0, filter={"type": ["paid"]})
        await ask(bus, "POST", "/subscriptions/second/pause", ann)
        await bus.publish(shop, [an_event(n, topic="orders", type=("made", "paid")[n % 2]) for n in range(10)])

        await first.until_events(10)
        waiting = (await ask(bus, "GET", "/subscriptions/second", ann)).json["events"]["queued"]
        assert (waiting, second.events) == (5, [])
        await ask(bus, "POST", "/subscriptions/second/resume", ann)
        await second.until_events(5)
        attempts = (await ask(bus, "GET", "/subscriptions/second/attempts", ann)).json["attempts"]
        assert {each["receiver"] for each in attempts} == {f"{await id_of(bus, 'ann')}/second"}


async def test_another_clients_subscription_is_not_there_by_name_id_or_event(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        ann, bob, shop = await bus.token("ann"), await bus.token("bob"), await bus.token("shop")
        await put(bus, ann, "mail", receiver.url, timeout=0)
        [event] = await bus.publish(shop, [an_event(topic="orders")])
        await receiver.until_events(1)
        id_ = f"{await id_of(bus, 'ann')}%2Fmail"

        assert await bus.get("/subscriptions", bob) == []
        for path in ("/subscriptions/mail/attempts", f"/subscribers/{id_}/attempts", "/subscribers/ann%2Fmail/dead"):
            assert (await ask(bus, "GET", path, bob)).status == 404
            assert (await ask(bus, "GET", path.replace("/subscriptions/", "/subscribers/ann%2F"))).status == 200
        async with asyncio.timeout(10):
            while not (await ask(bus, "GET", f"/attempts?event={event}", ann)).json["attempts"]:
                await asyncio.sleep(0.02)
        assert (await ask(bus, "GET", f"/attempts?event={event}", bob)).json["attempts"] == []


async def test_a_given_subscription_goes_on_under_its_id_and_nothing_is_lost(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        ann, bob, shop = await bus.token("ann"), await bus.token("bob"), await bus.token("shop")
        await put(bus, ann, "mail", receiver.url, timeout=0)
        await ask(bus, "POST", "/subscriptions/mail/pause", ann)
        await bus.publish(shop, [an_event(n, topic="orders", tenant=f"t{n}") for n in range(9)])
        ids = {name: await id_of(bus, name) for name in ("ann", "bob")}
        at = f"/subscribers/{ids['ann']}%2Fmail"

        given = await ask(bus, "POST", f"{at}/give", json={"to": ids["bob"]})

        assert given.status == 204
        row = (await ask(bus, "GET", "/subscriptions/mail", bob)).json
        assert (row["subscriber"], row["client"], row["events"]["queued"]) == (f"{ids['ann']}/mail", ids["bob"], 9)
        assert (await ask(bus, "GET", "/subscriptions/mail", ann)).status == 404
        assert (await ask(bus, "POST", f"{at}/resume", bob)).status == 200
        await receiver.until_events(9)
        taken = await put(bus, ann, "mail")
        assert (taken.status, "given to another client" in taken.detail) == (409, True)
        await ask(bus, "DELETE", f"/api_tokens/{ids['ann']}")
        assert len(await bus.get("/subscriptions", bob)) == 1
        await ask(bus, "DELETE", f"/api_tokens/{ids['bob']}")
        assert await bus.get("/subscriptions") == []


async def test_what_cannot_be_given_is_told(one: Topology):
    async with a_bus(one, workers=0, client_subscribers_max=2, client_subscriptions_max=4) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        ids = {name: await id_of(bus, name) for name in ("ann", "bob")}
        await bus.subscribe(ann, CALLBACK, "orders")
        await put(bus, ann, "mail", CALLBACK, "a", "b")
        await put(bus, bob, "mail")

        async def give(id_: str, to: str = "bob") -> Answer:
            return await ask(bus, "POST", f"/subscribers/{id_}/give", json={"to": ids[to]})

        default, same = await give(ids["ann"]), await give(f"{ids['ann']}%2Fmail")
        assert (default.status, "default" in default.detail) == (409, True)
        assert (same.status, "already" in same.detail) == (409, True)
        await ask(bus, "DELETE", "/subscriptions/mail", bob)
        await put(bus, bob, "other", CALLBACK, "a", "b", "c")
        assert "CLIENT_SUBSCRIPTIONS_MAX" in (await give(f"{ids['ann']}%2Fmail")).detail
        await put(bus, bob, "other", CALLBACK, "a")
        assert (await give(f"{ids['ann']}%2Fmail")).status == 204
        assert "CLIENT_SUBSCRIBERS_MAX" in (await put(bus, bob, "third", CALLBACK)).detail
        assert "CLIENT_SUBSCRIPTIONS_MAX" in (await put(bus, bob, "other", CALLBACK, "a", "b", "c")).detail


async def test_a_client_has_a_bound_of_subscriptions_to_one_topic(one: Topology):
    async with a_bus(one, workers=0, client_copies_max=2) as bus:
        ann = await bus.token("ann")
        statuses = [(await put(bus, ann, name)).status for name in ("a", "b", "c")]

        assert statuses == [201, 201, 429]
        assert (await put(bus, ann, "a", max=3)).status == 200


async def test_the_filters_of_all_its_subscriptions_count_for_a_client(one: Topology):
    async with a_bus(one, workers=0, client_filter_steps_max=5) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        costly = {"data": {"total": [{"numeric": [">", 1]}]}, "key": [{"prefix": "a"}]}
        answers = [await put(bus, secret, name, filter=costly) for secret, name in ((ann, "a"), (ann, "b"), (ann, "c"))]
        other = await put(bus, bob, "a", filter=costly)

        assert answers[0].status == other.status == 201
        assert "CLIENT_FILTER_STEPS_MAX" in answers[-1].detail
