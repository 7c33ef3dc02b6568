"""Whatever is posted: JSON passes through unchanged, what is not JSON is refused, and nothing makes the server fail."""

import json
import math
from typing import Never, TypeVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from conftest import Topology
from harness import a_bus
from receiver import Receiver
from web.asking import ask

T = TypeVar("T")

NDJSON = {"Content-Type": "application/x-ndjson"}
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
    "1e308",
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
    """Whether Python takes it for JSON; its NaN and Infinity are not, and what a double cannot hold is refused."""
    try:
        json.loads(text, parse_constant=_refuse, parse_float=_finite)
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


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(constant: str) -> Never:
    raise ValueError(constant)
