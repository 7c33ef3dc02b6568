"""`POST /events`: one event, an array or lines; what is refused, and what becomes of the others."""

import json
from typing import TypeVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from conftest import Topology
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask, everything, journal, waiting

T = TypeVar("T")

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
        assert answer.detail == "the content type is 'text/csv'; send application/json or application/x-ndjson"


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
    ({"topic": "Orders"}, "[a-z_]{1,64}"),
    ({"topic": ""}, "[a-z_]{1,64}"),
    ({"type": ""}, "[A-Za-z0-9_.-]{1,64}"),
    ({"type": "a b"}, "[A-Za-z0-9_.-]{1,64}"),
    ({"type": "x" * 65}, "[A-Za-z0-9_.-]{1,64}"),
    ({"tenant": ""}, "tenant is ''"),
    ({"tenant": "a:b"}, "tenant is 'a:b'"),
    ({"key": "x" * 65}, "key is "),
    ({"id": ""}, "1 to 128 printable"),
    ({"id": "a b"}, "1 to 128 printable"),
    ({"id": "x" * 129}, "1 to 128 printable"),
    ({"id": 1}, "Expected `str | null`"),
    ({"traceparent": "00-xyz"}, "W3C traceparent"),
    ({"url": "http://example.org/"}, "https"),
    ({"timestamp": -1}, "milliseconds"),
    ({"t": 1}, "unknown field `t`"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
async def test_a_bad_single_event_is_400_and_the_answer_says_what_is_allowed(one: Topology, change: dict, said: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), json={**an_event(1), **change})

        assert answer.status == 400
        assert said in answer.detail
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
        assert why[2] == "topic 'taken' belongs to another client"
        assert why[3] == "data is 102 bytes; at most 100 are allowed"
        assert "Expected `object`" in why[4]
        urls = {event["id"]: event["url"] for event in await journal(bus)}
        assert [urls[id_] for id_ in answer.json["ids"]] == ["https://example.org/1", "https://example.org/5"]
        assert len(urls) == 3


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
        ([{"topic": "A", "type": "b"}, {"topic": "a"}], 400),
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


@pytest.mark.parametrize("bad", [{"topic": "mine", "type": "no good"}, {"topic": "taken", "type": "paid"}, 7])
async def test_with_all_one_bad_event_refuses_all_and_nothing_is_written(topology: Topology, bad: object):
    async with a_bus(topology, workers=0) as bus:
        await bus.publish(await bus.token("other"), [an_event(0, topic="taken")])
        shop = await bus.token("shop")
        events = [
            {"topic": "mine", "type": "paid", "tenant": "a"},
            bad,
            {"topic": "mine", "type": "paid", "tenant": "b"},
        ]
        answer = await ask(bus, "POST", "/events?all=1", shop, json=events)

        assert answer.status == (403 if isinstance(bad, dict) and bad["topic"] == "taken" else 400)
        assert answer.detail == "1 of 3 events were refused, so none was published"
        assert [refused["index"] for refused in answer.json["refused"]] == [1]
        assert [event["topic"] for event in await journal(bus)] == ["taken"]
        assert [row["name"] for row in await bus.get("/topics")] == ["taken"]


async def test_with_all_good_events_are_published(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        events = [an_event(n, tenant=f"t{n}") for n in range(9)]
        answer = await ask(bus, "POST", "/events?all=1", await bus.token("shop"), json=events)

        assert answer.status == 202
        assert sorted(event["id"] for event in await journal(bus)) == sorted(answer.json["ids"])


async def test_with_all_what_does_not_fit_one_write_is_413_and_nothing_is_written(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 10)
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        for name in ("a", "b"):
            await bus.subscribe(await bus.token(name), "https://mail.example/", "widgets")
        # One tenant is one partition: its four events take twelve places; the other's event would fit.
        events = [an_event(0, tenant="small"), *(an_event(n, tenant="large") for n in range(4))]
        refused = await ask(bus, "POST", "/events?all=1", shop, json=events, headers={"Idempotency-Key": "k"})
        fitting = await ask(bus, "POST", "/events?all=1", shop, json=events[2:], headers={"Idempotency-Key": "k"})

        assert refused.status == 413
        assert "?all=1" in refused.detail
        assert fitting.status == 202
        assert sorted(event["id"] for event in await journal(bus)) == sorted(fitting.json["ids"])


async def test_without_all_what_does_not_fit_one_write_takes_several(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 10)
    async with a_bus(topology, workers=0) as bus:
        for name in ("a", "b"):
            await bus.subscribe(await bus.token(name), "https://mail.example/", "widgets")
        ids = await bus.publish(await bus.token("shop"), [an_event(n) for n in range(40)])

        assert [event["id"] for event in await journal(bus)] == ids
        assert len(await waiting(bus)) == 80


@pytest.mark.parametrize("value", ["2", "true", "yes"])
async def test_all_is_0_or_1(one: Topology, value: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", f"/events?all={value}", await bus.token("shop"), json=an_event(1))

        assert answer.status == 400
        assert answer.detail == f"all is {value!r}; it must be 0 or 1"


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


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)
ENCODED = st.builds(json.dumps, VALUES, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 0, 2]))
# JSON that is broken in one place: cut, doubled, or with something put in.
SPOILT = st.builds(
    lambda text, at, inserted, cut: text[: at % (len(text) + 1)] + inserted + text[at % (len(text) + 1) + cut :],
    ENCODED,
    st.integers(0, 1000),
    st.sampled_from(
        ["", ",", '"', "\\", "]", "}", "[", "{", "\n", "\0", "\t", "0", "-", ".", "e", "NaN", "\\u12", "'"]
    ),
    st.integers(0, 2),
)
# What chance may miss: huge, signed, doubled and escaped values.
ODD = [
    "1e400",
    "-0.0",
    '"\\u0000\\/\x7f\u2028"',
    '{"a":1,"a":2}',
    "[1]]",
    "123456789012345678901234567890.5",
    " \n null",
]


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Examples, always the same, drawn before the bus runs: Hypothesis and a running loop share `random` badly."""
    found: list[T] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def keep(value: T) -> None:
        found.append(value)

    keep()
    return found


async def test_whatever_json_loads_takes_reaches_the_subscriber_equal_and_what_it_rejects_is_refused(one: Topology):
    texts = [*ODD, *drawn(ENCODED, 100), *drawn(SPOILT, 150)]
    sent: dict[str, object] = {}
    refused = 0
    async with a_bus(one) as bus, Receiver() as receiver:
        shop = await bus.token("shop")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=10)
        for text in texts:
            body = f'{{"topic":"widgets","type":"b","data":{text}}}'
            answer = await ask(bus, "POST", "/events", shop, body=body.encode())
            if not is_json(body):
                assert answer.status == 400, text
                refused += 1
            elif is_json(text) and is_text(json.loads(text)):
                assert answer.status == 202, text
                sent[answer.json["ids"][0]] = json.loads(text)
        await receiver.until(lambda: set(receiver.ids) >= set(sent))

        assert {str(event["id"]): event.get("data") for event in receiver.events if event["id"] in sent} == sent
        assert len(sent) > 80
        assert refused > 50


@pytest.mark.parametrize("text", ["NaN", "Infinity", '"\\ud800"', '"\\udc00\\ud800"'])
async def test_what_python_takes_but_is_not_json_or_not_text_is_refused(one: Topology, text: str):
    async with a_bus(one, workers=0) as bus:
        body = f'{{"topic":"widgets","type":"b","data":{text}}}'.encode()

        assert (await ask(bus, "POST", "/events", await bus.token("shop"), body=body)).status == 400


async def test_no_body_whatever_is_answered_with_a_server_error(one: Topology):
    fields = ("topic", "type", "url", "tenant", "key", "id", "timestamp", "data", "traceparent", "other")
    shaped = st.lists(st.dictionaries(st.sampled_from(fields), SCALARS | TEXTS))
    encoded = (VALUES | shaped).map(lambda value: json.dumps(value).encode())
    bodies = [*drawn(st.binary() | encoded, 100), b"", b"[" * 100_000, b'{"data":' * 100_000, b"\xff"]
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for body in bodies:
            for path in ("/events", "/events?all=1", "/topics/x"):
                for headers in ({}, NDJSON):
                    answer = await ask(bus, "POST", path, shop, body=body, headers=headers)
                    assert answer.status < 500, (path, headers, body[:200])


def is_json(text: str) -> bool:
    """Whether Python takes it for JSON; its NaN and Infinity are not."""
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def is_text(value: object) -> bool:
    """Whether all its strings can be written as UTF-8; halves of surrogate pairs cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)
