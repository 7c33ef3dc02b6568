"""Arrays of events are cut into the same items however large they are, and none is decoded that cannot be an event."""

import json
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from conftest import Topology
from doubledecker.errors import BadRequest, Refused, TooLarge
from doubledecker.model.event import Offered
from doubledecker.web import arrays
from doubledecker.web.arrays import Arrays, Item
from harness import a_bus, an_event
from web.asking import ask

blanks = st.sampled_from(["", " ", "\n  "])
texts = st.text('ab,{}[]"\\: é', max_size=8)
values = st.recursive(
    st.none() | st.integers(-9, 999) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)
items = st.fixed_dictionaries({"topic": st.just("t"), "type": st.just("a"), "data": values}) | values


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PIECE_BYTES", 40)
        yield


def cut(body: bytes, *, is_raw: bool = False, items_max: int = 1_000, item_bytes_max: int = 2_000) -> list[object]:
    found = [item for piece in Arrays(items_max, item_bytes_max).pieces(body, is_raw=is_raw) for item in piece]
    return [_value(item) for item in found]


def _value(item: Item) -> object:
    if isinstance(item, Offered):
        data = item.data if isinstance(item.data, Raw) else b"null"
        return {"topic": item.topic, "type": item.type, "data": json.loads(bytes(data))}
    return json.loads(bytes(item))


@given(rows=st.lists(items, max_size=12), blank=blanks, is_raw=st.booleans())
def test_an_array_is_cut_into_its_items(rows: Sequence[object], blank: str, is_raw: bool):
    comma = f"{blank},{blank}"
    body = f"{blank}[{blank}{comma.join(map(json.dumps, rows))}{blank}]{blank}".encode()

    assert cut(body, is_raw=is_raw) == list(rows)


@given(
    rows=st.lists(items, min_size=1, max_size=12),
    at=st.integers(0, 400),
    text=st.sampled_from([b"", b",", b"]", b"{", b"x", b'"']),
)
def test_what_is_no_array_is_refused_as_it_is_when_small(rows: Sequence[object], at: int, text: bytes):
    whole = json.dumps(rows).encode()
    body = whole[:at] + text + whole[at + 1 :]
    try:
        wanted = [json.loads(bytes(item)) for item in msgspec.json.decode(body, type=list[Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises(BadRequest):
            cut(body)
    else:
        assert cut(body) == wanted


@pytest.mark.parametrize("end", [b"", b",", b", ", b"]]", b"] x", b"],"])
def test_an_array_that_does_not_end_as_one_is_refused(end: bytes):
    with pytest.raises(BadRequest):
        cut(b"[" + b",".join([b'{"a":[1,{"b":2},{"c":3}]}'] * 20) + end)


def test_an_item_that_cannot_be_an_event_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    end = Arrays._end
    monkeypatch.setattr(Arrays, "_end", lambda self, view, at: (seen.append(at), end(self, view, at))[1])
    large = b'{"topic":"t","type":"a","data":[' + b"[]," * 1_000_000 + b"1]}"
    with pytest.raises(TooLarge, match="the event that begins at byte 1 has more than 2000 bytes"):
        cut(b"[" + large + b",{}]")

    assert seen == [1]


def test_an_array_of_millions_is_refused_once_there_are_too_many():
    with pytest.raises(TooLarge, match="more than 1000 events"):
        cut(b"[" + b"1," * 4_000_000 + b"1]")


def test_half_a_surrogate_pair_is_told_in_a_large_array_too():
    with pytest.raises(Refused, match="half of a surrogate pair"):
        cut(b'["' + b"x" * 100 + rb'\ud800", "' + b"x" * 5_000 + b'"]')


async def test_an_event_larger_than_one_can_be_is_413_and_in_lines_does_not_stop_the_others(one: Topology):
    async with a_bus(one, workers=0, max_event_data_bytes=64) as bus:
        shop = await bus.token("shop")
        large = json.dumps(an_event(1, data="x" * 70_000)).encode()
        said = {"Content-Type": "application/x-ndjson"}
        alone = await ask(bus, "POST", "/events", shop, body=large)
        on_topic = await ask(bus, "POST", "/topics/widgets", shop, body=large)
        lines = await ask(
            bus, "POST", "/events", shop, body=large + b"\n" + json.dumps(an_event(2)).encode(), headers=said
        )

        assert (alone.status, on_topic.status, lines.status) == (413, 413, 202)
        assert f"an event of {len(large)} bytes; at most 65664 are allowed" in alone.detail
        assert [each["index"] for each in lines.json["refused"]] == [0]
