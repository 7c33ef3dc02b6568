"""Events: what is accepted, what is refused, and the bytes that travel."""

import json
import sys
from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.errors import BadRequest, Refused, TooLarge
from doubledecker.model import event as parsing
from doubledecker.model import schema
from doubledecker.model.event import AcceptedEvent, EventLimits, Offered, accept, encode, parse_offered, parse_posted

LIMITS = EventLimits(data_bytes_max=1000, depth_max=8)


def posted(**fields: object) -> AcceptedEvent:
    body = json.dumps({"type": "create", "url": "https://a.example/1", **fields}).encode()
    return parse_posted(body, topic="widgets", id_="id-1", now_ms=42, limits=LIMITS)


def offered(**fields: object) -> AcceptedEvent:
    body = json.dumps({"topic": "widgets", "type": "a.b-c_D", **fields}).encode()
    return accept(parse_offered(body, LIMITS), id_="id-1", now_ms=42, limits=LIMITS)


def test_a_message_has_the_contract_s_keys_first_and_in_order():
    event = offered(url="https://a.example/1", timestamp=7, data={"x": 1}, tenant="acme", key="k")

    assert encode(event) == (
        b'{"topic":"widgets","type":"a.b-c_D","url":"https://a.example/1","t":7,"data":{"x": 1},'
        b'"id":"id-1","tenant":"acme","key":"k"}'
    )


def test_a_null_or_absent_timestamp_means_now():
    assert posted(timestamp=None).t == 42
    assert posted().t == 42
    assert posted(timestamp=0).t == 0


def test_what_is_absent_is_left_out_of_the_message():
    assert encode(offered()) == b'{"topic":"widgets","type":"a.b-c_D","t":42,"id":"id-1"}'
    assert encode(offered(data=None, tenant="default")) == encode(offered())


@pytest.mark.parametrize("type_", ["created", "", "CREATE"])
def test_routemaster_s_route_takes_only_its_four_types(type_: str):
    with pytest.raises(BadRequest, match="create, update, delete, noop"):
        posted(type=type_)


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "https://a.example/?q=1",
        "https://a.example/#f",
        "https:///x",
        "https://a b/",
        "https://[",
        "https://[::1",
        "https://[::g]/",
        "https://]/",
        "https://[::1]x/",
        "https://a:b/",
        "https://a:99999/",
        "https://a:0/",
        "https://:443/",
        "https://u@/",
        "https://a@b@c/",
        "https://a\x00b/",
        "https://a/\x7f",
        "https://\u2100.example/",
        "https://a/" + "x" * 1024,
        "",
    ],
)
def test_a_url_is_https_without_a_query_and_not_too_long(url: str):
    with pytest.raises(BadRequest, match="url is"):
        posted(url=url)


@pytest.mark.parametrize(
    "url",
    [
        "https://a",
        "https://a/",
        "https://a:8443/b",
        "https://[::1]:443/x",
        "https://u@a/",
        "https://ü.example/ü",
        "https://a%20b/",
    ],
)
def test_a_url_that_a_receiver_can_parse_is_taken(url: str):
    assert posted(url=url).url == url


@pytest.mark.parametrize("name", ["Widgets", "a-b", "x" * 64, "widgets1", "_", "orders.v2", "emailEvent"])
def test_a_topic_name_begins_with_a_letter_and_holds_digits_dots_and_dashes(name: str):
    parsing.check_topic(name)


@pytest.mark.parametrize(
    ("tenant", "text"), [(7, "7"), (0, "0"), (-5, "-5"), (2**64, str(2**64)), (10**63, str(10**63))]
)
def test_a_tenant_that_is_a_number_is_taken_as_its_text(tenant: int, text: str):
    event = offered(tenant=tenant)

    assert event.tenant == text
    assert json.loads(encode(event))["tenant"] == text


@pytest.mark.parametrize("tenant", [10**64, -(10**64), 10**4000, 1.5, True, [7]])
def test_a_tenant_that_is_no_name_and_no_short_number_is_refused(tenant: object):
    with pytest.raises(BadRequest, match="tenant"):
        offered(tenant=tenant)


@pytest.mark.parametrize("name", ["", "7widgets", "-a", ".a", "x" * 65, "a b", "a:b", "a/b", "ü"])
def test_other_topic_names_are_refused(name: str):
    with pytest.raises(BadRequest, match="topic"):
        parsing.check_topic(name)


@pytest.mark.parametrize(
    "fields", [{"tenant": ""}, {"key": "a:b"}, {"id": ""}, {"id": "ü"}, {"traceparent": "x"}, {"type": "a b"}]
)
def test_names_that_do_not_match_are_refused(fields: dict[str, str]):
    with pytest.raises(BadRequest):
        offered(**fields)


@pytest.mark.parametrize("timestamp", [-1, 2**53 + 1, 1.5, "1", True])
def test_a_timestamp_is_whole_milliseconds(timestamp: object):
    with pytest.raises(BadRequest):
        posted(timestamp=timestamp)


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(BadRequest, match="colour"):
        posted(colour="red")


def test_data_may_not_be_larger_than_the_limit():
    assert posted(data="x" * 998).data == msgspec.Raw(b'"' + b"x" * 998 + b'"')
    with pytest.raises(TooLarge, match="1001 bytes; at most 1000"):
        posted(data="x" * 999)


def test_data_may_not_nest_deeper_than_the_limit_and_brackets_in_strings_do_not_count():
    assert posted(data=[[[[[[[[]]]]]]]])
    assert posted(data="[" * 100)
    assert posted(data=[1, [2], [3], [4], [5], [6], [7], [8], [9]])
    with pytest.raises(BadRequest, match="deeper than 8"):
        posted(data=[[[[[[[[[]]]]]]]]])


def test_line_breaks_between_tokens_are_removed_because_an_event_is_one_line():
    body = b'{"topic":"widgets","type":"x","data":{\r\n "a": "b\\nc",\n "d": [1,\n2]}}'
    event = accept(parse_offered(body, LIMITS), id_="i", now_ms=1, limits=LIMITS)

    assert b"\n" not in encode(event)
    assert json.loads(encode(event))["data"] == {"a": "b\nc", "d": [1, 2]}


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_data_arrives_as_it_was_sent(data: object):
    try:
        event = offered(data=data)
    except Refused:
        return

    assert json.loads(encode(event)).get("data") == data


@given(st.binary(max_size=60))
def test_whatever_is_sent_as_an_event_is_parsed_or_refused(body: bytes):
    try:
        schema.check_text(body)
        event = accept(parse_offered(body, LIMITS), id_="i", now_ms=1, limits=LIMITS)
    except Refused:
        return

    assert json.loads(encode(event))


JSON = st.recursive(
    st.text('[]{}"\\a', max_size=4) | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def depth(value: object) -> int:
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if parts is None else 1 + max(map(depth, parts), default=0)


@given(JSON, st.integers(1, 6))
def test_data_is_refused_exactly_when_it_nests_deeper_than_the_limit(value: object, depth_max: int):
    event = Offered(topic="a", type="b", data=msgspec.Raw(json.dumps(value).encode()))
    limits = EventLimits(data_bytes_max=1_000_000, depth_max=depth_max)
    if depth(value) > depth_max:
        with pytest.raises(BadRequest, match="nests deeper"):
            accept(event, id_="i", now_ms=0, limits=limits)
    else:
        assert accept(event, id_="i", now_ms=0, limits=limits).id == "i"


@pytest.mark.parametrize(
    ("part", "is_deep"),
    [(b"[]", False), (b'"\\"["', False), (b"[" * 63 + b"]" * 63, False), (b"[" * 64 + b"]" * 64, True)],
)
def test_the_depth_of_a_large_text_is_found_in_a_few_steps(part: bytes, is_deep: bool):
    data = b"[" + b",".join([part] * (4_000_000 // len(part))) + b"]"
    event = Offered(topic="a", type="b", data=msgspec.Raw(data))
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    def offer() -> None:
        accept(event, id_="i", now_ms=0, limits=EventLimits(data_bytes_max=1 << 23, depth_max=64))

    sys.setprofile(count)
    try:
        with pytest.raises(BadRequest, match="nests deeper") if is_deep else nullcontext():
            offer()
    finally:
        sys.setprofile(None)

    # A step for each bracket would be hundreds of thousands.
    assert steps < 10_000


@pytest.mark.parametrize("depth_max", [200, parsing.DEPTH_MAX])
def test_the_deepest_limit_prints_nothing_on_standard_error(depth_max: int, capfd: pytest.CaptureFixture[str]):
    data = b"[" * depth_max + b"[],[]" + b"]" * depth_max
    event = Offered(topic="a", type="b", data=msgspec.Raw(data))
    with pytest.raises(BadRequest, match="nests deeper"):
        accept(event, id_="i", now_ms=0, limits=EventLimits(data_bytes_max=10_000, depth_max=depth_max))

    assert capfd.readouterr().err == ""
