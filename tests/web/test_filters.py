"""Event filters over HTTP: what subscribers and queues with one get, what is shown and refused, and the tester."""

import asyncio
from collections import Counter

import pytest

from conftest import Topology
from doubledecker.web.filters import EVENTS_MAX
from harness import ROOT_KEY, TestBus, a_bus
from receiver import Receiver
from web.asking import Answer, ask, journal

LARGE = {"data": {"total": [{"numeric": [">", 100]}]}}


def an_order(number: int, **fields: object) -> dict[str, object]:
    return {"topic": "orders", "type": "paid", "id": f"o-{number}", "data": {"total": number}, **fields}


async def put(bus: TestBus, secret: str, name: str, **fields: object) -> Answer:
    return await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": ".*", **fields})


async def subscribe(bus: TestBus, secret: str, callback: str, **fields: object) -> Answer:
    body = {"topics": ["orders"], "callback": callback, **fields}
    return await ask(bus, "POST", "/subscription", secret, json=body)


async def held(bus: TestBus, secret: str, name: str) -> list[str]:
    """The ids of the events on a queue, in order of their numbers."""
    pulled = await ask(bus, "POST", f"/queues/{name}/pull", secret, json={"max": 200})
    return sorted((each["event"]["id"] for each in pulled.json["messages"]), key=lambda id_: int(id_[2:]))


class TestWhoGetsWhat:
    async def test_a_queue_gets_what_its_filter_fits_whichever_way_it_is_published(self, topology: Topology):
        async with a_bus(topology, workers=0) as bus:
            shop = await bus.token("shop")
            await put(bus, shop, "all")
            await put(bus, shop, "large", filter=LARGE)
            await put(bus, shop, "mine", filter={"key": ["k-1"]})
            await put(bus, shop, "created", filter={"type": ["create"]})
            await put(bus, shop, "nobody", filter={"tenant": ["nobody"], **LARGE})
            await ask(bus, "POST", "/events", shop, json=an_order(1, key="k-1"))
            await ask(bus, "POST", "/events", shop, json=[an_order(500), an_order(501, tenant="acme"), an_order(2)])
            await ask(bus, "POST", "/events?all=1", shop, json=[an_order(503, tenant="b"), an_order(3, tenant="b")])
            posted = {"type": "create", "url": "https://shop.example/1", "data": {"total": 504}}
            await ask(bus, "POST", "/topics/orders", shop, json=posted)

            kept = [event["id"] for event in await journal(bus)]
            assert len(kept) == 7
            [created] = [id_ for id_ in kept if not id_.startswith("o-")]
            pulled = {
                name: {
                    each["event"]["id"]
                    for each in (await ask(bus, "POST", f"/queues/{name}/pull", shop, json={"max": 200})).json[
                        "messages"
                    ]
                }
                for name in ("all", "large", "mine", "created", "nobody")
            }
            assert pulled == {
                "all": set(kept),
                "large": {"o-500", "o-501", "o-503", created},
                "mine": {"o-1"},
                "created": {created},
                "nobody": set(),
            }

    async def test_a_subscriber_is_delivered_what_its_filter_fits(self, topology: Topology):
        async with a_bus(topology) as bus, Receiver() as filtered, Receiver() as plain:
            shop, mail, books = await bus.token("shop"), await bus.token("mail"), await bus.token("books")
            await subscribe(bus, mail, filtered.url, filter=LARGE, timeout=0)
            await subscribe(bus, books, plain.url, timeout=0)
            tenants = ["default", "acme", "b"]
            events = [an_order(n, tenant=tenants[n % 3]) for n in range(90, 112)]
            await bus.publish(shop, events)
            await plain.until_events(22)
            await filtered.until_events(11)

            assert set(filtered.ids) == {f"o-{n}" for n in range(101, 112)}
            assert set(plain.ids) == {f"o-{n}" for n in range(90, 112)}

    async def test_null_ends_a_filter_and_what_is_absent_keeps_that_of_a_subscriber(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mail = await bus.token("mail")
            seen = []
            for asked in ({"filter": LARGE}, {}, {"filter": None}, {}):
                assert (await subscribe(bus, mail, "http://127.0.0.1:9/", **asked)).status == 204
                [shown] = (await ask(bus, "GET", "/subscribers", mail)).json
                seen.append(shown["filter"])

            assert seen == [LARGE, LARGE, None, None]

    async def test_a_queue_is_registered_with_the_filter_that_is_given_or_none(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            shop = await bus.token("shop")
            answers = [await put(bus, shop, "jobs", **asked) for asked in ({"filter": LARGE}, {}, {"filter": None})]
            [listed] = (await ask(bus, "GET", "/queues", shop)).json

            assert [answer.json["filter"] for answer in answers] == [LARGE, None, None]
            assert listed["filter"] is None

    async def test_a_notification_goes_by_the_filter_of_its_audience(self, topology: Topology):
        async with a_bus(topology) as bus, Receiver(plan=lambda _: 410) as gone:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            fits = {"pattern": ".*:doubledecker.receivers:.*", "filter": {"data": {"receiver": [{"prefix": "mail-"}]}}}
            await ask(bus, "PUT", "/queues/notices", mail, json=fits)
            await ask(bus, "PUT", "/queues/none", mail, json={**fits, "filter": {"data": {"receiver": ["x"]}}})
            await subscribe(bus, mail, gone.url, timeout=0)
            await bus.publish(shop, [an_order(1)])
            pulled = await ask(bus, "POST", "/queues/notices/pull", mail, json={"wait_ms": 10_000})

            assert [each["event"]["type"] for each in pulled.json["messages"]] == ["receiver.disabled"]
            assert (await ask(bus, "POST", "/queues/none/pull", mail, json={})).json["messages"] == []

    async def test_changes_of_a_filter_under_load_lose_nothing(self, topology: Topology):
        async with a_bus(topology) as bus, Receiver() as receiver:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            is_over = False

            async def change() -> None:
                bound = 10_000
                while not is_over:
                    bound += 1
                    # All of these fit every event, and each is looked at anew.
                    wanted = {"data": {"total": [{"numeric": ["<", bound]}]}}
                    assert (await put(bus, shop, "work", filter=wanted)).status in {200, 201}
                    assert (await subscribe(bus, mail, receiver.url, filter=wanted, timeout=0)).status in {204, 429}
                    await put(bus, ROOT_KEY, "beside", filter={"key": [f"k-{bound}"]})

            async def publish(first: int) -> None:
                for n in range(first, first + 25):
                    await bus.publish(shop, [an_order(10 * n + i, tenant=f"t{i % 3}") for i in range(4)])

            await put(bus, shop, "work", filter={"data": {"total": [{"numeric": ["<", 10_000]}]}})
            await subscribe(bus, mail, receiver.url, timeout=0)
            changing = asyncio.create_task(change())
            await asyncio.gather(*(publish(first) for first in (0, 100, 200)))
            is_over = True
            await changing

            everything = {
                f"o-{10 * n + i}" for first in (0, 100, 200) for n in range(first, first + 25) for i in range(4)
            }
            await receiver.until(lambda: set(receiver.ids) >= everything)
            found: list[str] = []
            while some := await held(bus, shop, "work"):
                found += some
            assert sorted(found) == sorted(everything)


class TestRefusals:
    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({}, "filter is empty"),
            ({"colour": ["red"]}, "it may have tenant, type, key, topic, data"),
            ({"data": {"total": [{"numeric": [">"]}]}}, "filter.data.total[0].numeric"),
        ],
    )
    async def test_a_filter_that_is_none_is_400_everywhere(self, one: Topology, wanted: object, said: str):
        async with a_bus(one, workers=0) as bus:
            shop = await bus.token("shop")
            answers = [
                await put(bus, shop, "jobs", filter=wanted),
                await subscribe(bus, shop, "http://127.0.0.1:9/", filter=wanted),
                await ask(bus, "POST", "/filters/test", shop, json={"filter": wanted}),
            ]

            assert [answer.status for answer in answers] == [400, 400, 400]
            assert all(said in answer.detail for answer in answers)
            assert (await ask(bus, "GET", "/subscribers", shop)).json == []

    async def test_a_subscriber_of_the_bulk_tier_has_no_filter(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mail = await bus.token("mail")
            both = await subscribe(bus, mail, "http://127.0.0.1:9/", filter=LARGE, tier="bulk")
            await subscribe(bus, mail, "http://127.0.0.1:9/", filter=LARGE)
            later = await subscribe(bus, mail, "http://127.0.0.1:9/", tier="bulk")

            assert (both.status, later.status) == (400, 400)
            assert "tier bulk cannot have a filter" in later.detail

    async def test_a_clients_filters_have_so_many_steps_and_those_found_by_a_value_hardly_any(self, one: Topology):
        async with a_bus(one, workers=0, client_filter_steps_max=4) as bus:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            keys = [await put(bus, shop, f"k{n}", pattern=f"a:b:c{n}", filter={"key": [f"k-{n}"]}) for n in range(10)]
            ranges = [await put(bus, shop, f"r{n}", filter=LARGE) for n in range(4)]
            others = await subscribe(bus, mail, "http://127.0.0.1:9/", filter={"data": {"x": [{"prefix": "a"}] * 5}})

            assert {answer.status for answer in keys} == {201}
            assert [answer.status for answer in ranges] == [201, 201, 201, 429]
            assert "client_filter_steps_max" in ranges[3].detail.lower()
            assert "a list of literals alone" in ranges[3].detail
            assert others.status == 429
            # What there is may be put again, as services do at each start.
            assert (await put(bus, shop, "r0", filter=LARGE)).status == 200

    async def test_all_clients_filters_have_so_many_steps_together(self, one: Topology):
        async with a_bus(one, workers=0, filter_steps_max=2) as bus:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            answers = [await put(bus, secret, f"q-{n}", filter=LARGE) for n, secret in enumerate((shop, mail, mail))]

            assert [answer.status for answer in answers] == [201, 201, 429]

    async def test_the_bound_of_copies_counts_those_that_want_an_event(self, one: Topology):
        async with a_bus(one, workers=0, client_copies_max=2) as bus:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            made = [await put(bus, mail, f"q-{n}", filter={"key": [f"k-{n}", "all"]}) for n in range(6)]
            await bus.publish(shop, [an_order(n, key=f"k-{n}") for n in range(6)])
            await bus.publish(shop, [an_order(9, key="all")])

            assert {answer.status for answer in made} == {201}
            assert [await held(bus, mail, f"q-{n}") for n in range(6)] == [
                ["o-0", "o-9"],
                ["o-1", "o-9"],
                *([f"o-{n}"] for n in range(2, 6)),
            ]


class TestTrying:
    async def test_events_of_the_request_are_tried_and_nothing_is_written(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            shop = await bus.token("shop")
            asked = {"filter": LARGE, "events": [an_order(500), an_order(1), {"topic": "orders", "type": "paid"}]}
            answer = await ask(bus, "POST", "/filters/test", shop, json=asked)

            assert answer.status == 200
            assert answer.json["fitting"] == 1
            assert answer.json["steps"] == 1
            assert [(each["id"], each["fits"], each["why"]) for each in answer.json["events"]] == [
                ("o-500", True, ""),
                ("o-1", False, 'data.total is 1, wanted is [{"numeric":[">",100]}]'),
                ("2", False, 'data.total is absent, wanted is [{"numeric":[">",100]}]'),
            ]
            assert await journal(bus) == []

    async def test_without_events_the_newest_are_tried_that_the_client_may_read(self, topology: Topology):
        async with a_bus(topology) as bus, Receiver(plan=lambda _: 410) as gone:
            shop, mail = await bus.token("shop"), await bus.token("mail")
            await ask(bus, "PUT", "/queues/notices", mail, json={"pattern": ".*:doubledecker.receivers:.*"})
            await subscribe(bus, mail, gone.url, timeout=0)
            for n in range(5):
                await bus.publish(shop, [an_order(2 * n, tenant=f"t{n}"), an_order(2 * n + 1, tenant=f"t{n}")])
            await ask(bus, "POST", "/queues/notices/pull", mail, json={"wait_ms": 10_000})
            wanted = {"topic": ["doubledecker.receivers"], "$or": [{"type": [{"prefix": "receiver."}]}]}
            answers = [
                await ask(bus, "POST", "/filters/test", secret, json={"filter": wanted, "limit": 100})
                for secret in (shop, mail, ROOT_KEY)
            ]
            few = await ask(bus, "POST", "/filters/test", shop, json={"filter": {"type": ["paid"]}, "limit": 3})

            topics = [Counter(each["topic"] for each in answer.json["events"]) for answer in answers]
            assert [found["orders"] for found in topics] == [10, 10, 10]
            assert [found["doubledecker.receivers"] for found in topics] == [a.json["fitting"] for a in answers]
            assert [answer.json["fitting"] > 0 for answer in answers] == [False, True, True]
            assert few.json["fitting"] == len(few.json["events"]) == 3

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"filter": LARGE, "events": [an_order(1)] * (EVENTS_MAX + 1)}, "at most 100"),
            ({"filter": LARGE, "events": [an_order(1, type="a b")]}, "event 0: type is 'a b'"),
            ({"filter": LARGE, "limit": 101}, "limit is 101; it must be from 1 to 100"),
            ({"events": []}, "filter"),
            ({"filter": [1]}, "object"),
        ],
    )
    async def test_what_is_wrong_is_400_and_says_what_is_allowed(self, one: Topology, asked: object, said: str):
        async with a_bus(one, workers=0) as bus:
            answer = await ask(bus, "POST", "/filters/test", await bus.token("shop"), json=asked)

            assert answer.status == 400
            assert said in answer.detail
