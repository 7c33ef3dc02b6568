"""Deliveries in each format on a whole bus, read by the `cloudevents` package as receivers would read them."""

import base64
import json

import pytest
import standardwebhooks
from cloudevents.core.v1.event import CloudEvent

from cloud_receiver import BATCH, BINARY, ROUTEMASTER, CloudReceiver
from conftest import Topology
from harness import TestBus, a_bus
from receiver import Receiver
from web.asking import ask
from web.test_cloud_events import TRACE, an_event, send

FORMATS = (ROUTEMASTER, BATCH, BINARY)
TEXTS = {"subject": "orders/1 für Ødegård 100%", "comexamplenote": 'said "hi"', "tracestate": "a=b,c=d"}


async def subscribe(bus: TestBus, secret: str, receiver: CloudReceiver, format_: str, **fields: object) -> None:
    said = {"timeout": 0, "max": 1 if format_ == BINARY else 100, "format": format_, **fields}
    await bus.subscribe(secret, receiver.url, "orders", **said)


async def queue(bus: TestBus, receiver: CloudReceiver, format_: str, **fields: object) -> None:
    body = {"pattern": ".*:orders:.*", "callback": receiver.url, "timeout": 0, "format": format_, **fields}
    answer = await ask(bus, "PUT", "/queues/pushed", json={"max": 1 if format_ == BINARY else 100, **body})
    assert answer.status in {200, 201}, answer.body


def plain(number: int, **fields: object) -> dict[str, object]:
    return {"topic": "orders", "type": "paid", "id": f"p-{number}", "data": {"n": number}, **fields}


@pytest.mark.parametrize("kind", ["subscriber", "queue"])
@pytest.mark.parametrize("out", [BATCH, BINARY])
@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
async def test_a_cloudevent_comes_out_as_it_went_in(topology: Topology, mode: str, out: str, kind: str):
    cases = [
        ("application/json", {"total": [12.5, None, "ü"]}),
        ("text/plain", "Grüße\n"),
        ("image/png", b"\x89PNG\x00\xff"),
        (None, None),
    ]
    sent = [an_event(data, id=f"e-{n}", datacontenttype=type_) for n, (type_, data) in enumerate(cases)]
    async with CloudReceiver() as receiver, a_bus(topology) as bus:
        shop = await bus.token("shop")
        if kind == "queue":
            await queue(bus, receiver, out)
        else:
            await subscribe(bus, await bus.token("s"), receiver, out)
        for event in sent:
            assert (await send(bus, event, mode, shop)).status == 202
        await receiver.until(lambda: len(receiver.events) == len(sent))

    assert receiver.unread == []
    assert {got.format for got in receiver.taken} == {out}
    by_id = {event.get_id(): event for event in receiver.events}
    for event in sent:
        came = by_id[event.get_id()]
        assert came.get_attributes() == event.get_attributes()
        assert came.get_data() == event.get_data()


async def test_an_event_of_the_bus_is_a_cloudevent_with_its_fields_as_attributes(topology: Topology):
    event = {
        **plain(1, tenant="acme", key="order-1", timestamp=1_794_740_400_123, traceparent=TRACE),
        "url": "https://shop.example/orders/1",
    }
    found: dict[str, CloudEvent] = {}
    async with CloudReceiver() as receiver, a_bus(topology) as bus:
        shop, s = await bus.token("shop"), await bus.token("s")
        for n, out in enumerate((BATCH, BINARY)):
            await subscribe(bus, s, receiver, out)
            await bus.publish(shop, [{**event, "id": out}])
            await receiver.until(lambda most=n + 1: len(receiver.events) == most)
            found[out] = receiver.events[-1]

    for out, came in found.items():
        attributes = came.get_attributes()
        assert attributes.pop("time").isoformat() == "2026-11-15T11:00:00.123000+00:00"
        assert attributes == {
            "specversion": "1.0",
            "id": out,
            "source": "/topics/orders",
            "type": "paid",
            "topic": "orders",
            "tenant": "acme",
            "partitionkey": "order-1",
            "traceparent": TRACE,
            "url": "https://shop.example/orders/1",
            "datacontenttype": "application/json",
        }
        assert came.get_data() == {"n": 1}
    assert {got.headers["traceparent"] for got in receiver.taken} == {TRACE}


@pytest.mark.parametrize("kind", ["subscriber", "queue"])
async def test_json_is_what_was_accepted_and_what_a_callback_of_a_queue_gets_unless_it_asks(one: Topology, kind: str):
    async with Receiver() as receiver, a_bus(one) as bus:
        if kind == "queue":
            body = {"pattern": ".*:orders:.*", "callback": receiver.url, "timeout": 0}
            assert (await ask(bus, "PUT", "/queues/pushed", json=body)).status == 201
        else:
            await bus.subscribe(await bus.token("s"), receiver.url, "orders", timeout=0, format="json")
        await bus.publish(await bus.token("shop"), [plain(1, timestamp=7)])
        await receiver.until_events(1)

    assert receiver.events == [{**plain(1), "t": 7}]


async def test_bytes_of_an_unknown_type_are_said_to_be_bytes(one: Topology):
    event = {"specversion": "1.0", "id": "b", "source": "/a", "type": "paid", "topic": "orders", "data_base64": "AP8="}
    async with CloudReceiver() as receiver, a_bus(one) as bus:
        await subscribe(bus, await bus.token("s"), receiver, BINARY)
        said = {"Content-Type": "application/cloudevents+json"}
        assert (await ask(bus, "POST", "/events", await bus.token("a"), json=event, headers=said)).status == 202
        await receiver.until(lambda: len(receiver.taken) == 1)

    assert receiver.taken[0].headers["Content-Type"] == "application/octet-stream"
    assert receiver.taken[0].body == b"\x00\xff"


async def test_extensions_have_their_types_in_json_and_are_text_in_headers(one: Topology):
    typed = {"specversion": "1.0", "id": "t", "source": "/a", "type": "paid", "topic": "orders", "n": -5, "new": False}
    async with CloudReceiver() as receiver, a_bus(one) as bus:
        shop, s = await bus.token("shop"), await bus.token("s")
        for n, out in enumerate((BATCH, BINARY)):
            await subscribe(bus, s, receiver, out)
            said = {"Content-Type": "application/cloudevents+json"}
            assert (await ask(bus, "POST", "/events", shop, json={**typed, "id": out}, headers=said)).status == 202
            await receiver.until(lambda most=n + 1: len(receiver.events) == most)

    in_json, in_headers = (event.get_attributes() for event in receiver.events)
    assert (in_json["n"], in_json["new"]) == (-5, False)
    assert (in_headers["n"], in_headers["new"]) == ("-5", "false")


async def test_a_drain_can_read_every_event_also_those_without_a_url(topology: Topology):
    """`CloudReceiver` answers 400 as the drain does; the drain also drops a second event of one URL and time."""
    async with CloudReceiver() as receiver, a_bus(topology) as bus:
        shop = await bus.token("shop")
        await subscribe(bus, await bus.token("s"), receiver, ROUTEMASTER, timeout=50)
        with_url = plain(0, url="https://shop.example/orders/1", timestamp=7)
        odd = plain(2, id='a/b?c#d"%', timestamp=7)
        ids = await bus.publish(shop, [with_url, plain(1, timestamp=7), odd])
        for source in ("/a", "/b"):
            assert (await send(bus, an_event({"a": 1}, source=source), "structured", shop)).status == 202
        await receiver.until(lambda: len(receiver.events) == 5)

    assert receiver.unread == []
    assert {got.format for got in receiver.taken} == {ROUTEMASTER}
    by_id = {event["id"]: event for event in receiver.events}
    assert by_id["p-0"]["url"] == "https://shop.example/orders/1"
    assert by_id["p-1"] == {
        "topic": "orders",
        "type": "paid",
        "url": "https://doubledecker.invalid/orders/p-1",
        "t": 7,
        "data": {"n": 1},
        "id": "p-1",
    }
    assert list(by_id["p-1"]) == ["topic", "type", "url", "t", "data", "id"]
    assert by_id[ids[2]]["url"] == "https://doubledecker.invalid/orders/a%2Fb%3Fc%23d%22%25"
    assert len({event["url"] for event in receiver.events}) == 5
    assert by_id["e-1"]["cloudevent"]["subject"] == TEXTS["subject"]


async def test_an_event_that_is_tried_again_has_the_same_url(one: Topology):
    async with CloudReceiver(plan=lambda number, _: (503 if number < 3 else 200, None)) as receiver, a_bus(one) as bus:
        await subscribe(bus, await bus.token("s"), receiver, ROUTEMASTER, retry=[10, 10])
        await bus.publish(await bus.token("shop"), [plain(1)])
        await receiver.until(lambda: len(receiver.taken) == 1)

    assert len({got.body for got in receiver.attempts}) == 1


@pytest.mark.parametrize("format_", FORMATS)
async def test_what_is_signed_is_the_body_as_it_is_sent(one: Topology, format_: str):
    async with CloudReceiver() as receiver, a_bus(one) as bus:
        s = await bus.token("s")
        await subscribe(bus, s, receiver, format_)
        secret = (await ask(bus, "POST", "/subscriber/rotate-secret", s, json={})).json["secret"]
        await bus.publish(await bus.token("shop"), [plain(1)])
        await receiver.until(lambda: len(receiver.taken) == 1)
        trial = await ask(bus, "POST", "/subscriber/test", s)

    assert trial.json["outcome"] == "delivered"
    assert [got.format for got in receiver.taken] == [format_] * 2
    for got in receiver.taken:
        standardwebhooks.Webhook(secret).verify(got.body, got.headers)


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_receiver_may_name_the_ids_that_failed_in_any_format(one: Topology, format_: str):
    def plan(_number: int, got) -> tuple[int, object]:
        first = "p-1" in got.ids and sum("p-1" in each.ids for each in receiver.attempts) == 1
        return (200, {"failed": ["p-1"]} if first else None)

    async with CloudReceiver(plan=plan) as receiver, a_bus(one) as bus:
        await subscribe(bus, await bus.token("s"), receiver, format_, retry=[10])
        await bus.publish(await bus.token("shop"), [plain(n) for n in range(3)])
        await receiver.until(lambda: receiver.ids.count("p-1") == 2 and len(set(receiver.ids)) == 3)

    assert receiver.ids.count("p-0") == receiver.ids.count("p-2") == 1


async def test_the_format_is_that_at_the_attempt(topology: Topology):
    """One event, tried in each format; what is asked for while it is tried holds from its next try on."""
    formats = (ROUTEMASTER, BATCH, BINARY, ROUTEMASTER)
    async with CloudReceiver() as receiver, a_bus(topology) as bus:
        s = await bus.token("s")
        receiver.plan = lambda number, _: (503 if number < len(formats) else 200, None)
        await subscribe(bus, s, receiver, formats[0], retry=[300, 300, 300, 300])
        await bus.publish(await bus.token("shop"), [plain(1)])
        for tried, format_ in enumerate(formats[1:], 1):
            await receiver.until(lambda most=tried: len(receiver.attempts) == most)
            await subscribe(bus, s, receiver, format_)
        await receiver.until(lambda: len(receiver.taken) == 1)

    assert tuple(got.format for got in receiver.attempts) == formats
    assert {tuple(got.ids) for got in receiver.attempts} == {("p-1",)}


async def test_a_batch_of_several_goes_as_one_to_who_asks_for_binary_later_and_may_be_refused(one: Topology):
    """A receiver that reads the binary mode alone answers 415 to it, and gets its events one by one."""

    def plan(number: int, got) -> tuple[int, object]:
        return (503, None) if number == 1 else (200 if got.format == BINARY else 415, None)

    async with CloudReceiver(plan=plan) as receiver, a_bus(one) as bus:
        s = await bus.token("s")
        await subscribe(bus, s, receiver, BATCH, timeout=50, retry=[10])
        await bus.publish(await bus.token("shop"), [plain(n) for n in range(4)])
        await receiver.until(lambda: len(receiver.attempts) == 1)
        await subscribe(bus, s, receiver, BINARY)
        await receiver.until(lambda: len(receiver.events) == 4)

    assert sorted(receiver.ids) == [f"p-{n}" for n in range(4)]
    assert {got.format for got in receiver.attempts if len(got.ids) > 1} == {BATCH}
    assert receiver.unread == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["subscriber", "queue"])
async def test_formats_change_under_load_and_nothing_is_lost(topology: Topology, kind: str):
    async with CloudReceiver() as receiver, a_bus(topology, workers=2) as bus:
        shop, s = await bus.token("shop"), await bus.token("s")
        # One in seven is refused, so that retries meet changes too.
        receiver.plan = lambda number, _: (200 if number % 7 else 503, None)
        published: list[str] = []
        for number in range(30):
            format_, before = FORMATS[number % 3], len(receiver.attempts)
            if kind == "queue":
                await queue(bus, receiver, format_, retry=[20], attempts_max=1000)
            else:
                await subscribe(bus, s, receiver, format_, retry=[20] * 100)
            batch = [plain(100 * number + n, tenant=f"t{n % 4}") for n in range(20)]
            published += await bus.publish(shop, batch)
            # Most events wait when the format changes again.
            await receiver.until(
                lambda start=before, now=format_: any(got.format == now for got in receiver.attempts[start:])
            )
        await receiver.until(lambda: set(receiver.ids) >= set(published), within_s=60)

    assert receiver.unread == []
    assert {got.format for got in receiver.taken} == set(FORMATS)


async def test_binary_needs_a_max_of_one_and_other_formats_are_refused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        s = await bus.token("s")
        body = {"topics": ["orders"], "callback": "http://127.0.0.1:9/", "format": BINARY}
        many = await ask(bus, "POST", "/subscription", s, json=body)
        single = await ask(bus, "POST", "/subscription", s, json={**body, "max": 1})
        again = await ask(bus, "POST", "/subscription", s, json={**body, "max": 5})
        kept = await ask(bus, "POST", "/subscription", s, json={**body, "format": None})
        more = await ask(bus, "POST", "/subscription", s, json={**body, "format": None, "max": 5})
        other = await ask(bus, "POST", "/subscription", s, json={**body, "format": "xml"})
        queued = await ask(
            bus, "PUT", "/queues/q", s, json={"pattern": "a", "callback": body["callback"], "format": BINARY}
        )
        named = await ask(bus, "POST", "/subscription", s, json={**body, "max": 1, "headers": {"CE-Id": "7"}})
        [row] = await bus.get("/subscribers", s)

    assert [each.status for each in (many, single, again, kept, more, other, queued, named)] == [
        *(400, 204, 400, 204, 400, 400, 400, 400)
    ]
    for each, most in ((many, 100), (again, 5), (more, 5), (queued, 100)):
        told = f"format is cloudevents-binary, which carries one event a request, and max is {most}; set max to 1"
        assert each.detail == told
    assert other.detail == "format is 'xml'; it must be routemaster or json or cloudevents-batch or cloudevents-binary"
    assert "headers has 'CE-Id', which the bus sets itself" in named.detail
    assert (row["format"], row["max_events"]) == (BINARY, 1)


async def test_a_replayed_or_redriven_event_says_so_in_attributes(one: Topology):
    async with CloudReceiver() as receiver, a_bus(one) as bus:
        shop = await bus.token("shop")
        await subscribe(bus, shop, receiver, BATCH)
        assert (await send(bus, an_event(b"\x00", datacontenttype="a/b", replay="mine"), "binary", shop)).status == 202
        await receiver.until(lambda: len(receiver.taken) == 1)
        resent = await ask(bus, "POST", "/subscriber/resend", shop, json={"event": "e-1"})
        await receiver.until(lambda: len(receiver.taken) == 2)

    assert resent.status == 202
    first, again = (event.get_attributes() for event in receiver.events)
    assert (first.pop("replay"), again.pop("replay")) == ("mine", "resend")
    assert first == again
    assert json.loads(receiver.taken[1].body)[0]["data_base64"] == base64.b64encode(b"\x00").decode()
