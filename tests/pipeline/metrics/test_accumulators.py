"""Tallies: the same result however little they may hold meanwhile."""

from random import Random

import pyarrow as pa
import pytest

from doubledecker.pipeline.metrics import sketches
from doubledecker.pipeline.metrics.sketches import Least, Totals

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("waiting_max", [0, 7, 10**6])
def test_sums_are_those_of_all_rows(waiting_max: int):
    chance = Random(1)
    rows = [{"a": chance.choice("xyz"), "b": chance.randrange(3), "n": chance.randrange(100)} for _ in range(200)]
    tally = Totals(["a", "b"], ["n"], waiting_max=waiting_max)
    for first in range(0, 200, 13):
        tally.add(pa.Table.from_pylist(rows[first : first + 13]))

    found = {(row["a"], row["b"]): row["n"] for row in tally.rows()}

    assert found == {
        (a, b): sum(row["n"] for row in rows if (row["a"], row["b"]) == (a, b)) for a in "xyz" for b in range(3)
    }


@pytest.mark.parametrize("waiting_max", [0, 3000, 10**6])
def test_least_hashes_are_those_of_all_keys(waiting_max: int):
    chance = Random(2)
    schema = pa.schema([("topic", pa.string()), ("keys", pa.list_(pa.int64()))])
    lists = [(chance.choice("xyz"), [chance.randrange(-(2**63), 2**63) for _ in range(90)]) for _ in range(60)]
    least = Least("topic", waiting_max=waiting_max)
    for first in range(0, 60, 7):
        rows = [{"topic": topic, "keys": keys} for topic, keys in lists[first : first + 7]]
        least.add(pa.Table.from_pylist(rows, schema=schema))

    by_topic = {topic: sketches.merge(keys for other, keys in lists if other == topic) for topic in "xyz"}
    assert least.counts() == {topic: sketches.distinct(keys) for topic, keys in by_topic.items()}
    assert least.count() == sketches.distinct(sketches.merge(keys for _, keys in lists))


def test_nothing_adds_up_to_nothing():
    schema = pa.schema([("topic", pa.string()), ("keys", pa.list_(pa.int64()))])
    least = Least("topic")
    least.add(schema.empty_table())
    least.add(pa.Table.from_pylist([{"topic": "x", "keys": []}], schema=schema))

    assert Totals(["topic"]).rows() == []
    assert (least.counts(), least.count()) == ({}, 0)
