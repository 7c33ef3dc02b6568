"""Sketches: what is merged is what would have been counted at once, and never further off than is said."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.pipeline.metrics import sketches

pytestmark = pytest.mark.slow

MS = st.integers(0, 10**10)


@given(MS)
def test_the_middle_of_a_bucket_is_within_its_error_of_all_it_holds(ms: int):
    middle = sketches.middle(sketches.bucket(ms))

    assert abs(middle - ms) <= ms / 128
    assert middle == ms or ms > 127


@given(MS, MS)
def test_buckets_are_in_the_order_of_what_they_hold(one: int, other: int):
    low, high = sorted((one, other))

    assert sketches.bucket(low) <= sketches.bucket(high)


@given(st.lists(MS, min_size=1, max_size=300))
def test_a_percentile_is_within_its_error_of_the_true_one(values: list[int]):
    found = sketches.spread(Counter(map(sketches.bucket, values)))

    for percent, told in ((50, found.p50), (95, found.p95), (99, found.p99)):
        true = sorted(values)[-(-len(values) * percent // 100) - 1]
        assert abs(told - true) <= true / 128


def test_nothing_has_no_percentiles():
    assert sketches.spread({}) is None


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), max_size=20))
def test_few_keys_are_counted_exactly_however_they_are_merged(parts: list[list[int]]):
    assert sketches.distinct(sketches.merge(parts)) == len({each for part in parts for each in part})


@pytest.mark.parametrize("count", [1_023, 1_024, 5_000, 200_000])
def test_many_keys_are_estimated_within_three_standard_errors_however_they_are_merged(count: int):
    chance = Random(count)
    hashes = [chance.randrange(-(2**63), 2**63) for _ in range(count)]
    parts = [sketches.merge([hashes[i::7]]) for i in range(7)]

    assert sketches.merge(parts) == sketches.merge([hashes])
    assert abs(sketches.distinct(sketches.merge(parts)) - count) <= 3 * count / 1022**0.5
