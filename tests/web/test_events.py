"""`POST /events`: one event, an array or lines; what is refused, and what becomes of the others."""

import json

import pytest

from conftest import Topology
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask, everything, journal

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_single_event_is_202_with_its_id(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        event = {
            "topic": "orders",
            "type": "order.paid",
            "tenant": "acme",
            "key": "k-1",
            "timestamp": 7,
            "data": [None],
        }
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json=event)

        assert answer.status == 202
        [id_] = answer.json["ids"]
        assert answer.json["refused"] == []
        assert await journal(bus) == [
            {"topic": "orders", "type": "order.paid", "t": 7, "data": [None], "id": id_, "tenant": "acme", "key": "k-1"}
        ]


async def test_an_array_is_202_with_the_ids_in_its_order(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        ids = await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n}") for n in range(20)])

        assert len(set(ids)) == 20
        by_id = {event["id"]: event["url"] for event in await journal(bus)}
        assert [by_id[id_] for id_ in ids] == [f"https://example.org/{n}" for n in range(20)]


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/ndjson", "application/jsonl; charset=utf-8"])
async def test_lines_of_json_are_taken_and_empty_ones_skipped(one: Topology, kind: str):
    async with a_bus(one, workers=0) as bus:
        lines = b"\n".join(json.dumps(an_event(n)).encode() for n in range(3))
        body = b"\n" + lines.replace(b"\n", b"\r\n \n") + b"\n\n"
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), body=body, headers={"Content-Type": kind})

        assert answer.status == 202
        assert [event["id"] for event in await journal(bus)] == answer.json["ids"]
        assert len(answer.json["ids"]) == 3


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/json", "application/x-www-form-urlencoded"])
async def test_json_is_taken_under_the_names_that_clients_give_it(one: Topology, kind: str):
    async with a_bus(one, workers=0) as bus:
        headers = {"Content-Type": kind}
        assert (
            await ask(bus, "POST", "/events", await bus.token("s"), json=an_event(1), headers=headers)
        ).status == 202


async def test_another_content_type_is_415(one: Topology):
    async with a_bus(one, workers=0) as bus:
        headers = {"Content-Type": "text/csv"}
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json=an_event(1), headers=headers)

        assert answer.status == 415
        assert answer.detail == (
            "the content type is 'text/csv'; send application/json, application/x-ndjson, "
            "application/cloudevents+json or application/cloudevents-batch+json"
        )


async def test_null_fields_are_the_same_as_absent_ones(one: Topology):
    async with a_bus(one, workers=0) as bus:
        nothing = dict.fromkeys(("url", "tenant", "key", "id", "timestamp", "data", "traceparent"))
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json={"topic": "a", "type": "b", **nothing})

        assert answer.status == 202
        [event] = await journal(bus)
        assert set(event) == {"topic", "type", "t", "id"}


async def test_what_is_at_the_bounds_is_taken(one: Topology):
    async with a_bus(one, workers=0) as bus:
        fields = {
            "topic": "a" * 64,
            "type": "A.z_0-" + "x" * 58,
            "tenant": "t" * 64,
            "key": "k" * 64,
            "id": "!" + "~" * 127,
            "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        }
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json=fields)

        assert answer.status == 202
        assert answer.json["ids"] == [fields["id"]]
        [event] = await journal(bus)
        assert {**event, "t": 0} == {**fields, "t": 0}


BAD = [
    ({"topic": "7orders"}, "[A-Za-z_][A-Za-z0-9_.-]{0,63}"),
    ({"topic": ""}, "[A-Za-z_][A-Za-z0-9_.-]{0,63}"),
    ({"type": ""}, "[A-Za-z0-9_.-]{1,64}"),
    ({"type": "a b"}, "[A-Za-z0-9_.-]{1,64}"),
    ({"type": "x" * 65}, "[A-Za-z0-9_.-]{1,64}"),
    ({"tenant": ""}, "tenant is ''"),
    ({"tenant": "a:b"}, "tenant is 'a:b'"),
    ({"tenant": "."}, "neither . nor .."),
    ({"tenant": ".."}, "neither . nor .."),
    ({"key": "x" * 65}, "key is "),
    ({"id": ""}, "1 to 128 printable"),
    ({"id": "a b"}, "1 to 128 printable"),
    ({"id": "x" * 129}, "1 to 128 printable"),
    ({"id": 1}, "id is a whole number; it must be a string or null"),
    ({"traceparent": "00-xyz"}, "W3C traceparent"),
    ({"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"}, "not all zeros"),
    ({"traceparent": f"00-{'a' * 32}-{'0' * 16}-01"}, "not all zeros"),
    ({"traceparent": f"ff-{'a' * 32}-{'b' * 16}-01"}, "W3C traceparent"),
    ({"data": "\ud800"}, r"\ud800, which is half of a surrogate pair"),
    ({"key": "\ud800"}, r"\ud800, which is half of a surrogate pair"),
    ({"url": "http://example.org/"}, "https"),
    ({"timestamp": -1}, "milliseconds"),
    ({"t": 1}, "an event has no field 't'; its fields are topic, type, "),
]


async def test_a_bad_single_event_is_400_and_the_answer_says_what_is_allowed(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for change, said in BAD:
            answer = await ask(bus, "POST", "/events", shop, json={**an_event(1), **change})
            assert answer.status == 400, change
            assert said in answer.detail, change

        assert await bus.get("/topics") == []


async def test_refused_events_are_named_by_index_and_the_others_are_published(topology: Topology):
    async with a_bus(topology, workers=0, max_event_data_bytes=100) as bus:
        shop = await bus.token("shop")
        await bus.publish(await bus.token("other"), [an_event(0, topic="taken")])
        events = [
            an_event(1, tenant="a"),
            an_event(2, tenant="b", type="no good"),
            an_event(3, tenant="c", topic="taken"),
            an_event(4, tenant="d", data="x" * 100),
            7,
            an_event(5, tenant="e"),
        ]
        answer = await ask(bus, "POST", "/events", shop, json=events)

        assert answer.status == 202
        why = {refused["index"]: refused["why"] for refused in answer.json["refused"]}
        assert list(why) == [1, 2, 3, 4]
        assert why[1] == "type is 'no good'; it must match [A-Za-z0-9_.-]{1,64}"
        assert why[2].startswith("topic 'taken' belongs to another client, 'other-")
        assert why[3] == "data is 102 bytes; at most 100 are allowed"
        assert "an event must be an object" in why[4]
        urls = {event["id"]: event["url"] for event in await journal(bus)}
        assert [urls[id_] for id_ in answer.json["ids"]] == ["https://example.org/1", "https://example.org/5"]
        assert len(urls) == 3


async def test_of_items_that_all_are_events_those_with_a_bad_field_are_refused(one: Topology):
    async with a_bus(one, workers=0, max_event_data_bytes=100, event_depth_max=2) as bus:
        wrong = {
            "topic": "7",
            "tenant": "..",
            "key": "no good",
            "id": "no good",
            "url": "http://example.org/",
            "timestamp": -1,
            "data": [[[]]],
            "traceparent": "00",
        }
        events = [an_event(1), *({**an_event(2), field: value} for field, value in wrong.items()), an_event(3)]
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json=events)

        assert answer.status == 202
        assert [refused["index"] for refused in answer.json["refused"]] == [1, 2, 3, 4, 5, 6, 7, 8]
        for field, refused in zip(wrong, answer.json["refused"], strict=True):
            assert field in refused["why"]
        urls = {event["id"]: event["url"] for event in await journal(bus)}
        assert [urls[id_] for id_ in answer.json["ids"]] == ["https://example.org/1", "https://example.org/3"]


async def test_a_bad_line_does_not_stop_the_others(one: Topology):
    async with a_bus(one, workers=0) as bus:
        body = b'{"topic":"a","type":"b"}\n{"topic":\n{"topic":"a","type":"c"}'
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), body=body, headers=NDJSON)

        assert answer.status == 202
        assert [refused["index"] for refused in answer.json["refused"]] == [1]
        assert [event["type"] for event in await journal(bus)] == ["b", "c"]


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([{"topic": "7", "type": "b"}, {"topic": "a"}], 400),
        ([{"topic": "taken", "type": "b"}], 403),
        ([{"topic": "a", "type": "b", "data": "x" * 200}], 413),
    ],
)
async def test_when_all_are_refused_the_answer_is_an_error_with_the_reasons(one: Topology, events: list, status: int):
    async with a_bus(one, workers=0, max_event_data_bytes=100) as bus:
        await bus.publish(await bus.token("other"), [an_event(0, topic="taken")])
        shop = await bus.token("shop")
        before = await everything(bus)
        answer = await ask(bus, "POST", "/events", shop, json=events)

        assert answer.status == status
        assert answer.detail == f"{len(events)} of {len(events)} events were refused, so none was published"
        assert [refused["index"] for refused in answer.json["refused"]] == list(range(len(events)))
        assert await everything(bus) == before


async def test_an_event_with_more_receivers_than_one_call_may_write_reaches_all(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 4)
    async with a_bus(topology) as bus, Receiver() as receiver:
        for n in range(11):
            await bus.subscribe(await bus.token(f"s{n}"), receiver.url, "widgets", timeout=0, uuid=f"u{n}")
        ids = await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n}") for n in range(3)])
        await receiver.until_events(33)

        got = {(batch.uuid, event["id"]) for batch in receiver.batches for event in batch.events}
        assert got == {(f"u{n}", id_) for n in range(11) for id_ in ids}
        assert len(receiver.events) == 33


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"9" * 309, b"7" * 60_000])
async def test_a_number_that_no_reader_can_hold_is_refused_alone(one: Topology, number: bytes):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")
        good = b'{"topic":"orders","type":"create","data":{"n":1e308}}'
        bad = good.replace(b"1e308", number)
        single = await ask(bus, "POST", "/events", secret, body=bad)
        several = await ask(bus, "POST", "/events", secret, body=b"[%b,%b,%b]" % (good, bad, good))
        lines = await ask(bus, "POST", "/events", secret, body=good + b"\n" + bad, headers=NDJSON)
        whole = await ask(bus, "POST", "/events?all=1", secret, body=b"[%b,%b]" % (good, bad))
        posted = await ask(
            bus, "POST", "/topics/orders", secret, body=b'{"type":"create","url":"https://x.org/1","data":%b}' % number
        )

        assert (single.status, several.status, lines.status) == (400, 202, 202)
        assert (whole.status, posted.status) == (400, 400)
        told = f"data has the number {number[:40].decode()}"
        assert told in posted.json["detail"]
        for answer, index in ((several, 1), (lines, 1), (whole, 1)):
            [refusal] = answer.json["refused"]
            assert refusal["index"] == index
            assert refusal["why"].startswith(told)
            assert "send it as a string" in refusal["why"]
        assert len(await journal(bus)) == 3
