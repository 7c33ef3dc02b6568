"""CloudEvents on `POST /events`, as the `cloudevents` package sends them: what is kept, and what is refused."""

import base64
import json
from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent

from conftest import Topology
from harness import TestBus, a_bus
from web.asking import Answer, ask, everything, journal

BATCH = {"Content-Type": "application/cloudevents-batch+json"}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENT = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "https://shop.example/tills/7",
    "type": "com.example.order.paid",
    "time": datetime(2026, 11, 15, 11, 0, 0, 123456, tzinfo=UTC),
    "subject": "orders/1 für Ødegård 100%",
    "datacontenttype": "application/json",
    "dataschema": "https://shop.example/schemas/paid",
    "topic": "orders",
    "tenant": "acme",
    "partitionkey": "order-1",
    "traceparent": TRACE,
    "tracestate": "a=b,c=d",
    "comexamplenote": 'said "hi"',
}
STORED = {
    "topic": "orders",
    "type": "com.example.order.paid",
    "t": 1_794_740_400_123,
    "data": {"total": 12.5},
    "id": "e-1",
    "tenant": "acme",
    "key": "order-1",
    "traceparent": TRACE,
    "cloudevent": {
        "source": "https://shop.example/tills/7",
        "dataschema": "https://shop.example/schemas/paid",
        "datacontenttype": "application/json",
        "time": "2026-11-15T11:00:00.123456Z",
        "subject": "orders/1 für Ødegård 100%",
        "tracestate": "a=b,c=d",
        "comexamplenote": 'said "hi"',
    },
}


def an_event(data: object = None, **changes: object) -> CloudEvent:
    attributes = {name: value for name, value in {**EVENT, **changes}.items() if value is not None}
    return CloudEvent(attributes, data)  # type: ignore[arg-type]


def in_json(event: CloudEvent) -> bytes:
    return http.to_structured_event(event).body


def members(**changes: object) -> dict[str, object]:
    """An event as plain JSON, for what the package would not send."""
    plain = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "paid", "topic": "orders"}
    return {name: value for name, value in {**plain, **changes}.items() if value != "absent"}


async def send(bus: TestBus, event: CloudEvent, mode: str, secret: str, path: str = "/events") -> Answer:
    """As its sender would in this mode."""
    if mode == "batch":
        return await ask(bus, "POST", path, secret, body=b"[%b]" % in_json(event), headers=BATCH)
    to = http.to_binary_event if mode == "binary" else http.to_structured_event
    message = to(event)
    said = {"Content-Type": "", **{"-".join(map(str.title, k.split("-"))): v for k, v in message.headers.items()}}
    return await ask(bus, "POST", path, secret, body=message.body, headers=said)


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
async def test_a_cloudevent_is_stored_with_all_its_attributes_in_every_mode(topology: Topology, mode: str):
    async with a_bus(topology, workers=0) as bus:
        answer = await send(bus, an_event({"total": 12.5}), mode, await bus.token("shop"))
        found = await journal(bus)

    assert (answer.status, answer.json) == (202, {"ids": ["e-1"], "refused": []})
    assert found == [STORED]
    assert list(found[0]) == list(STORED)


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
@pytest.mark.parametrize(
    ("kind", "data", "stored", "is_base64"),
    [
        ("application/json", {"a": [1, None]}, {"a": [1, None]}, False),
        ("application/vnd.shop+json", {"a": 1}, {"a": 1}, False),
        ("text/plain", "Grüße\n", "Grüße\n", False),
        ("application/xml", "<a/>", "<a/>", False),
        ("image/png", b"\x89PNG\x00", base64.b64encode(b"\x89PNG\x00").decode(), True),
        ("application/octet-stream", b"text", base64.b64encode(b"text").decode(), True),
        ("text/plain; charset=latin-1", "Grüße".encode("latin-1"), "R3L832U=", True),
    ],
)
async def test_data_is_json_or_text_as_it_is_and_other_bytes_in_base64(
    one: Topology, mode: str, kind: str, data: object, stored: object, is_base64: bool
):
    async with a_bus(one, workers=0) as bus:
        answer = await send(bus, an_event(data, datacontenttype=kind), mode, await bus.token("shop"))
        [event] = await journal(bus)

    assert answer.status == 202
    assert event["data"] == stored
    assert event["cloudevent"].get("data_base64", False) == is_base64
    assert event["cloudevent"]["datacontenttype"] == kind


async def test_no_data_is_no_data_in_every_mode(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for n, mode in enumerate(["binary", "structured", "batch"]):
            assert (await send(bus, an_event(None, id=f"e-{n}", datacontenttype=None), mode, shop)).status == 202
        found = await journal(bus)

    assert [event["id"] for event in found] == ["e-0", "e-1", "e-2"]
    assert not [event for event in found if "data" in event]


async def test_an_id_is_its_sources_alone_and_a_repeat_of_both_is_stored_once(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        answers = [
            await send(bus, an_event({}, source=source), mode, shop)
            for source in ("/a", "/b", "/a", "/b")
            for mode in ("binary", "structured", "batch")
        ]
        plain = await ask(bus, "POST", "/events", shop, json={"topic": "orders", "type": "paid", "id": "e-1"})
        found = await journal(bus)

    assert {answer.status for answer in [*answers, plain]} == {202}
    assert all(answer.json["ids"] == ["e-1"] for answer in answers)
    assert sorted(event.get("cloudevent", {}).get("source", "") for event in found) == ["", "/a", "/b"]


async def test_the_topic_is_that_of_the_query_for_those_that_name_none(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for n, mode in enumerate(["binary", "structured", "batch"]):
            named, unnamed = an_event({}, id=f"a-{n}"), an_event({}, id=f"b-{n}", topic=None)
            for event in (named, unnamed):
                assert (await send(bus, event, mode, shop, "/events?topic=others")).status == 202
            refused = await send(bus, unnamed, mode, shop)
            assert refused.status == 400
            told = refused.json["refused"][0]["why"] if mode == "batch" else refused.detail
            assert told.startswith("the CloudEvent names no topic; give it the extension attribute topic")
        found = await journal(bus)

    assert [event["topic"] for event in found] == ["orders", "others"] * 3


@pytest.mark.parametrize(
    ("time", "t", "kept"),
    [
        ("2026-11-15T11:00:00.123Z", 1_794_740_400_123, None),
        ("2026-11-15T11:00:00Z", 1_794_740_400_000, "2026-11-15T11:00:00Z"),
        ("2026-11-15T12:00:00.1239+01:00", 1_794_740_400_123, "2026-11-15T12:00:00.1239+01:00"),
        ("2026-11-15t11:00:00.123z", 1_794_740_400_123, "2026-11-15t11:00:00.123z"),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000, "2016-12-31T23:59:60Z"),
    ],
)
async def test_a_time_is_milliseconds_and_kept_as_given_where_these_do_not_tell_it(
    one: Topology, time: str, t: int, kept: str | None
):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/events", await bus.token("a"), json=members(time=time), headers=STRUCTURED)
        [event] = await journal(bus)

    assert answer.status == 202
    assert event["t"] == t
    assert event["cloudevent"].get("time") == kept


async def test_extensions_keep_their_types_and_null_is_absent(one: Topology):
    more = {"number": -5, "isnew": False, "text": "", "none": None, "subject": None, "tenant": 42}
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/events", await bus.token("a"), json=members(**more), headers=STRUCTURED)
        [event] = await journal(bus)

    assert answer.status == 202
    assert event["tenant"] == "42"
    assert event["cloudevent"] == {"source": "/shop", "number": -5, "isnew": False, "text": ""}


WRONG = [
    ({"specversion": "0.3"}, "specversion is '0.3'; it must be '1.0'"),
    ({"specversion": "absent"}, "specversion is None; it must be '1.0'"),
    ({"id": "absent"}, "the CloudEvent has no id; it must be 1 to 128 printable ASCII characters"),
    ({"id": ""}, "id is ''; it must be 1 to 128"),
    ({"id": "a b"}, "id is 'a b'; it must be"),
    ({"source": "absent"}, "the CloudEvent has no source; it must be a URI reference"),
    ({"source": "my shop"}, "source is 'my shop'; it must be a URI reference"),
    ({"type": "a/b"}, "type is 'a/b'; it must be a name that matches [A-Za-z0-9_.-]{1,64}"),
    ({"type": "x" * 65}, "type is 'xxx"),
    ({"topic": "7up"}, "the topic is '7up'; a name must match"),
    ({"topic": 7}, "topic is 7; it must be a string"),
    ({"tenant": ".."}, "tenant is '..'; it must match"),
    ({"tenant": True}, "tenant is True; it must be a string or a whole number"),
    ({"partitionkey": "a b"}, "partitionkey is 'a b'; it must match"),
    ({"time": "yesterday"}, "time is 'yesterday'; it must be like 2026-11-15T11:00:00Z"),
    ({"time": "2026-11-15T11:00:00"}, "time is '2026-11-15T11:00:00'; it must be like"),
    ({"time": "2026-13-15T11:00:00Z"}, "time is '2026-13-15T11:00:00Z'; it must be like"),
    ({"time": "1969-12-31T23:59:59Z"}, "time is '1969-12-31T23:59:59Z'; it must be like"),
    ({"subject": ""}, "subject is empty"),
    ({"subject": "a\u0007"}, "subject is 'a\\x07'; no attribute may have control characters"),
    ({"dataschema": "paid.json"}, "dataschema is 'paid.json'; it must be an absolute URI"),
    ({"datacontenttype": "json"}, "datacontenttype is 'json'; it must be a media type"),
    ({"traceparent": "1"}, "traceparent is '1'; it must be a W3C traceparent"),
    ({"url": "http://a.example"}, "url is 'http://a.example'; it must be an https URL"),
    ({"Note": "x"}, "there is an attribute 'Note'; a name has 1 to 64 lower-case letters and digits"),
    ({"my_note": "x"}, "there is an attribute 'my_note'"),
    ({"note": 1.5}, "note is 1.5; it must be a string, a whole number, true, false or null"),
    ({"note": 10**4000}, "note is 1000000"),
    ({"tenant": 10**80}, "tenant is a number of too many digits"),
    ({"note": ["a"]}, 'note is ["a"]; it must be a string'),
    ({"note": 2**31}, "note is 2147483648; a whole number must be from"),
    ({"note": "x" * 4096}, "the attributes that are kept take 4124 bytes as JSON; at most 4096 are allowed"),
    ({"data": 1, "data_base64": "AA=="}, "the CloudEvent has both data and data_base64"),
    ({"data_base64": "A"}, "data_base64 is not base64"),
    ({"data_base64": "ü"}, "data_base64 is not base64: string argument should contain only ASCII"),
    ({"data_base64": 7}, "this is a whole number; data_base64 must be a string"),
    ({"data_base64": "AA==", "datacontenttype": "application/json"}, "not JSON, as data of application/json must be"),
    ({"data": [[[]]] * 1 and json.loads("[" * 70 + "]" * 70)}, "data nests deeper than 64 levels"),
]


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[why[:40] for _, why in WRONG])
async def test_what_is_refused_is_a_400_that_names_the_attribute_and_changes_nothing(
    one: Topology, change: dict[str, object], why: str
):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        before = await everything(bus)
        answer = await ask(bus, "POST", "/events", shop, json=members(**change), headers=STRUCTURED)
        batch = await ask(bus, "POST", "/events", shop, json=[members(**change)], headers=BATCH)
        after = await everything(bus)

    assert answer.status == batch.status == 400
    assert answer.detail.startswith(why)
    assert batch.json["refused"][0]["why"] == answer.detail
    assert after == before


async def test_wrong_headers_of_the_binary_mode_are_named(one: Topology):
    plain = {f"ce-{name}": str(value) for name, value in members().items()}
    wrong = [
        ({"ce-subject": "%C3"}, b"{}", "the header ce-subject is no UTF-8 in percent-encoding"),
        ({"ce-data": "x"}, b"{}", "there is a header ce-data; send the data as the body"),
        ({"ce-datacontenttype": "a/b"}, b"{}", "there is a header ce-datacontenttype; send the type of the data as"),
        ({"ce-my_note": "x"}, b"{}", "there is an attribute 'my_note'"),
        ({}, b"{", "not JSON, as data of application/json must be"),
        ({}, b'{"a":"\xff"}', "the body is not UTF-8"),
        ({"ce-id": ""}, b"{}", "id is ''; it must be 1 to 128"),
        ({"Content-Type": ""}, b"plain", "not JSON, as data of no content type must be"),
    ]
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        answers = [
            await ask(bus, "POST", "/events", shop, body=body, headers={**plain, **headers})
            for headers, body, _ in wrong
        ]
        found = await journal(bus)

    assert [answer.status for answer in answers] == [400] * len(wrong)
    assert [why for (*_, why), answer in zip(wrong, answers, strict=True) if not answer.detail.startswith(why)] == []
    assert found == []


async def test_headers_are_decoded_as_the_binding_says(one: Topology):
    said = {"ce-subject": "%E2%82%AC%20a%22%25", "ce-quoted": '"a \\"b\\" c"', "ce-NUMBER": "7", "ce-empty": ""}
    plain = {f"ce-{name}": str(value) for name, value in members().items()}
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/events", await bus.token("a"), body=b"7", headers={**plain, **said})
        [event] = await journal(bus)

    assert answer.status == 202
    assert event["data"] == 7
    kept = {"source": "/shop", "datacontenttype": "application/json"}
    assert event["cloudevent"] == {**kept, "subject": '€ a"%', "quoted": 'a "b" c', "number": "7", "empty": ""}


async def test_a_batch_publishes_what_is_right_and_all_or_nothing_when_asked(topology: Topology):
    batch = [members(id="a"), members(id="b", source="not one"), members(id="c"), 7]
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        whole = await ask(bus, "POST", "/events?all=1", shop, json=batch, headers=BATCH)
        nothing = await journal(bus)
        answer = await ask(bus, "POST", "/events", shop, json=batch, headers=BATCH)
        found = await journal(bus)

    assert whole.status == 400
    assert nothing == []
    assert answer.json["ids"] == ["a", "c"] == [event["id"] for event in found]
    assert [each["index"] for each in answer.json["refused"]] == [1, 3]


async def test_large_batches_are_read_in_turns_and_bounded(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        batch = [members(id=f"e-{n}", data="x" * 100) for n in range(3000)]
        answer = await ask(bus, "POST", "/events", shop, json=batch, headers=BATCH)
        many = await ask(bus, "POST", "/events", shop, json=[{}] * 10_001, headers=BATCH)
        large = await ask(bus, "POST", "/events", shop, json=members(id="l", data="x" * 70_000), headers=STRUCTURED)
        found = await journal(bus)

    assert answer.json["ids"] == [each["id"] for each in batch] == [event["id"] for event in found]
    assert (many.status, large.status) == (413, 413)


async def test_what_is_no_mode_of_cloudevents_is_415_and_an_array_in_the_structured_mode_400(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        said = {"Content-Type": "application/cloudevents+avro"}
        avro = await ask(bus, "POST", "/events", shop, body=b"x", headers=said)
        array = await ask(bus, "POST", "/events", shop, json=[members()], headers=STRUCTURED)
        single = await ask(bus, "POST", "/events", shop, json=members(), headers=BATCH)
        empty = await ask(bus, "POST", "/events", shop, json=[], headers=BATCH)
        text = await ask(bus, "POST", "/events", shop, body=b'{"a":"\xff"}', headers=STRUCTURED)

    assert avro.status == 415
    assert "send application/cloudevents+json" in avro.detail
    assert [each.status for each in (array, single, empty, text)] == [400] * 4
    assert array.detail == "this is an array; a CloudEvent must be an object"


async def test_an_idempotency_key_holds_for_the_attributes_in_headers_too(one: Topology):
    """In the binary mode two events may have one body."""
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        answers = []
        for id_ in ("a", "a", "b"):
            said = {f"ce-{name}": str(value) for name, value in members(id=id_).items()} | {"Idempotency-Key": "k"}
            answers.append(await ask(bus, "POST", "/events", shop, body=b"{}", headers=said))
        found = await journal(bus)

    assert [answer.status for answer in answers] == [202, 202, 409]
    assert [event["id"] for event in found] == ["a"]
