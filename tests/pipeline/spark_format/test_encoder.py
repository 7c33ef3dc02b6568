"""The law of making events of rows: by columns or one by one, it is the same, to the byte and to the reason."""

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from doubledecker.bus.exactly_once import PublishedRow
from doubledecker.errors import Refused
from doubledecker.model.event import EventLimits
from doubledecker.pipeline.spark_format import encoder
from doubledecker.pipeline.spark_format.encoder import COLUMNS, RowMaker
from doubledecker.pipeline.spark_format.writer import check_columns

pytestmark = pytest.mark.slow

NOW_MS = 77
LIMITS = EventLimits(data_bytes_max=100, depth_max=5)
PLAIN: dict[str, list[str | int | None]] = {
    "topic": ["orders", "Users.v1", "a" * 64],
    "type": ["create", "Some.Type-1"],
    "url": [None, "https://example.org/orders/1", "https://example.org", "https://x/<id>'{}"],
    "tenant": [None, "default", "t1", "T_2"],
    "key": [None, "k1", "a" * 64],
    "id": [None, "mine", "x" * 128, "<data>"],
    "timestamp": [None, 0, NOW_MS, 2**53],
    "data": [
        None,
        '{"a": 1}',
        "1",
        '"ä<key>"',
        '{"t":77,"n":1}',
        "[[[[[0]]]]]",
        '"\u2028\\u0000"',
        '"' + "x" * 98 + '"',
    ],
    "traceparent": [None, f"00-{'a' * 32}-{'b' * 16}-01", f"fe-{'0' * 31}1-{'0' * 15}a-00"],
}
ODD: dict[str, list[str | int | None]] = {
    "topic": [None, "", "No Topic", "a" * 65, "orders\n"],
    "type": [None, "", "no type", "ä"],
    "url": [
        *(
            "",
            "http://x",
            "https://ä/",
            'https://x/"',
            "https://x/\\",
            "https://x/ y",
            "https://x/\x1c",
            "https://x\x0b",
        ),
        *("https://[", "https://x:1/", "https://x:y/", "https://u@x/", "https://[::1]/"),
        *("https://x/?q", "https://x\x7f", "https://" + "x" * 1017, "https://x\n", "https://x/\u00a0"),
    ],
    "tenant": ["", "two words", "a" * 65, ".", "..", "..."],
    "key": ["", "ä", "a" * 65, 'a"', "k1\n"],
    "id": ["", "has space", 'a"b', "a\\b", "x" * 129, "é", "mine\n"],
    "timestamp": [-1, 2**53 + 1],
    "data": [
        *("", "null", "null ", "{", " 1", "1\t", "1 x", "1,2", "[3", "4]", '{"a":\n1}', "[\r]", '"\x00"', "NaN"),
        *("1e999", '{"n":[-1e400]}', "[" * 10_000 + "]" * 10_000),
        *("[" * 6 + "]" * 6, '"[[[[[[ and more"', '"' + "x" * 99 + '"'),
    ],
    "traceparent": [
        *("", "00-x", f"00-{'A' * 32}-{'b' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01"),
        *(f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01"),
    ],
}

Item = dict[str, str | int | None]


@st.composite
def some_items(draw: st.DrawFn) -> list[Item]:
    """Rows of the same columns, most of whose values are plain."""
    names = ["topic", "type", *(name for name in COLUMNS[2:] if draw(st.booleans()))]
    row = st.fixed_dictionaries({name: st.sampled_from([*PLAIN[name] * 3, *ODD[name]]) for name in names})
    return draw(st.lists(row, min_size=1, max_size=20))


def a_batch(items: list[Item]) -> pa.RecordBatch:
    """The rows as Arrow has them, behind one that is cut off, so that they do not begin where their buffers do."""
    types = {name: pa.int64() if name == "timestamp" else pa.string() for name in items[0]}
    return pa.RecordBatch.from_pylist([items[-1], *items], schema=pa.schema(list(types.items()))).slice(1)


def one_by_one(items: list[Item], ids: list[str], refused: dict[int, str]) -> tuple[list[PublishedRow], dict[int, str]]:
    maker = RowMaker(NOW_MS, LIMITS)
    rows, why = [], dict(refused)
    for at, item in enumerate(items):
        if at in refused:
            continue
        try:
            rows.append(maker.make(at, ids[at], *(item.get(name) for name in COLUMNS)))
        except Refused as refusal:
            why[at] = refusal.detail
    return rows, why


@settings(max_examples=500, deadline=None)
@given(items=some_items(), noted=st.sets(st.integers(0, 19), max_size=3))
@example(items=[{"topic": "orders", "type": "create", "data": text} for text in ("1,2", "[3", "4]")], noted=set())
def test_rows_are_the_same_events_by_columns_as_one_by_one(items: list[Item], noted: set[int]):
    ids = [f"made-{at}" for at in range(len(items))]
    before = {at: "said so" for at in noted if at < len(items)}
    refused = dict(before)

    rows = RowMaker(NOW_MS, LIMITS).make_all(a_batch(items), ids, refused)

    assert (rows, refused) == one_by_one(items, ids, before)


@settings(max_examples=500, deadline=None)
@given(items=some_items())
def test_a_row_is_made_by_columns_if_and_only_if_it_is_plain(items: list[Item]):
    ids = [f"made-{at}" for at in range(len(items))]
    batch = a_batch(items)
    found = encoder.plain_rows(
        dict(zip(batch.schema.names, batch.columns, strict=True)), ids, now_ms=NOW_MS, limits=LIMITS
    )

    for item, row in zip(items, found, strict=True):
        is_plain = all(value in PLAIN[name] for name, value in item.items())
        assert (row is not None) == is_plain, item


def test_values_that_are_not_text_are_made_one_by_one():
    batch = pa.RecordBatch.from_pylist([{"topic": "orders", "type": "create", "data": {"a": [1, None]}}])

    [row] = RowMaker(NOW_MS, LIMITS).make_all(batch, ["made"], {})

    assert row.message == b'{"topic":"orders","type":"create","t":77,"data":{"a":[1,null]},"id":"made"}'


def test_a_column_of_whole_numbers_may_be_the_tenant():
    schema = StructType([StructField(name, StringType()) for name in ("topic", "type")])
    check_columns(schema.add("tenant", LongType()))
    columns_ = {"topic": ["orders"] * 3, "type": ["create"] * 3, "tenant": pa.array([7, None, -1], pa.int64())}
    rows = RowMaker(NOW_MS, LIMITS).make_all(pa.RecordBatch.from_pydict(columns_), ["a", "b", "c"], {})

    assert [row.kind.tenant for row in rows] == ["7", "default", "-1"]
