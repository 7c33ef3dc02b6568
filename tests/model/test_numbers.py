"""Numbers in `data`: what every reader can hold is accepted as it is, anything else is refused by name."""

import json
import math
import re
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model.event import EventLimits, Offered, accept, check_numbers, encode

LIMITS = EventLimits(data_bytes_max=1 << 20, depth_max=64)
ALLOWED = [
    *("0", "-0", "-0.0", "0.1", "1E5", "1e+5", "1e-999", "0e999", "1e308", "-1.7976931348623157e308", "1e0000000308"),
    *("18446744073709551616", "9" * 308, str(2**1023), "-" + "1" * 309, "1" + "0" * 400 + "e-399", "0." + "1" * 998),
]
REFUSED = [
    *("1e309", "-1e309", "1.8e308", "1E+999", "1e99999999999999999999", "1e0000000309", "9" * 309, str(2**1024)),
    *("0." + "1" * 999, "9" * 60_000, "1" * 900 + "e-" + "9" * 99, "10e308"),
]
PLACES = [
    *("%s", "[%s]", '{"a":%s}', '{"a":[1,{"b": %s}], "c":2}', r'["1e999","\\",%s,"\"1e999"]'),
    '["' + "x" * 70_000 + '", %s]',
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", ALLOWED)
def test_a_number_that_a_double_can_hold_is_passed_on_as_it_is(place: str, number: str):
    data = (place % number).encode()
    event = accept(Offered("a", "b", data=msgspec.Raw(data)), id_="i", now_ms=0, limits=LIMITS)

    assert b'"data":' + data in encode(event)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", REFUSED)
def test_a_number_that_readers_cannot_hold_is_refused_by_name(place: str, number: str):
    data = msgspec.Raw((place % number).encode())

    with pytest.raises(BadRequest, match=re.escape(f"data has the number {number[:40]}")) as refused:
        accept(Offered("a", "b", data=data), id_="i", now_ms=0, limits=LIMITS)
    assert "from -1.7976931348623157e+308 to 1.7976931348623157e+308" in refused.value.detail
    assert "at most 1000 characters: send it as a string" in refused.value.detail
    assert len(refused.value.detail) < 300


@pytest.mark.parametrize("text", [*REFUSED, "a 1e999", ":1e999,", "\\", '\\",1e999,"', '"1e999', "7" * 60_000])
def test_text_is_not_taken_for_a_number(text: str):
    check_numbers(json.dumps({text: [text, 1]}).encode())
    check_numbers(json.dumps({text: [text, 1], "x" * 70_000: 0}).encode())


@pytest.mark.parametrize("item", ["[]", "{}", "0", "1e5"])
def test_no_objects_are_built_of_data(item: str):
    text = f"[{','.join([item] * 20_000)}]".encode()
    tracemalloc.start()
    check_numbers(text)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most_bytes < 2 * len(text)


def test_numbers_that_a_decoder_is_slow_with_cost_about_what_others_do():
    text = f"[{','.join(['1e300'] * 10_000)}]".encode()

    # Python's own decoder has no slow numbers; ours took 30 times as long.
    assert cpu_s(lambda: check_numbers(text)) < 10 * cpu_s(lambda: json.loads(text))


def cpu_s(work: Callable[[], object]) -> float:
    """CPU time of some work, the least of three times."""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def all_numbers(value: object) -> list[float]:
    parts = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return [each for part in parts for each in all_numbers(part)] if parts else _one(value)


def _one(value: object) -> list[float]:
    return [value] if isinstance(value, int | float) else []


def as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(0{0,320})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,4})?", fullmatch=True).map(
    lambda text: text if not re.match(r"-?0[0-9]", text) else "0"
)
TEXT = st.text('1e9+-.\\", :[]{}', max_size=8).map(json.dumps)
JSON = st.recursive(
    NUMBER | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
        | st.dictionaries(TEXT, inner, max_size=3).map(
            lambda parts: "{" + ",".join(f"{name}:{value}" for name, value in parts.items()) + "}"
        )
    ),
    max_leaves=6,
)


@given(JSON)
@example("[1e308,1e309]")
def test_data_is_refused_exactly_when_a_number_is_beyond_a_double(text: str):
    is_far = any(not math.isfinite(as_float(number)) for number in all_numbers(json.loads(text)))
    if is_far:
        with pytest.raises(BadRequest, match="data has the number"):
            check_numbers(text.encode())
        with pytest.raises(BadRequest, match="data has the number"):
            check_numbers(b'["%b",%b]' % (b"x" * 70_000, text.encode()))
    else:
        check_numbers(text.encode())
        check_numbers(b'["%b",%b]' % (b"x" * 70_000, text.encode()))
        assert json.loads(text) == msgspec.json.decode(text)
