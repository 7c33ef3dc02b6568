"""Fairness against demand: max-min shares of what was asked for, and Jain's index over them."""

import pytest

from doubledecker.model import fairness
from doubledecker.model.fairness import Claim


def test_whoever_asks_for_little_gets_it_and_the_others_divide_the_rest():
    claims = {"small": Claim(10, 10), "large": Claim(40, 500), "larger": Claim(40, 900)}

    assert fairness.shares(claims) == {"small": 10, "large": 40, "larger": 40}
    assert fairness.index(claims) == 1.0


def test_a_fair_queue_under_uneven_load_is_fair():
    """By what each was served alone the index would be 0.38."""
    got = {"a": 1000, "b": 100, "c": 100, "d": 10}
    served = sum(got.values()) ** 2 / (4 * sum(count**2 for count in got.values()))

    assert served < 0.4
    assert fairness.index({name: Claim(count, count) for name, count in got.items()}) == 1.0


def test_a_tenant_that_is_served_more_while_another_waits_is_unfair():
    assert fairness.index({"x": Claim(30, 60), "y": Claim(10, 60)}) == pytest.approx(0.8)
    assert fairness.index({"x": Claim(30, 60), "starved": Claim(0, 60)}) == 0.5


def test_weights_are_shares_of_what_all_got():
    claims = {"heavy": Claim(30, 100, weight=3), "light": Claim(10, 100, weight=1)}

    assert fairness.shares(claims) == {"heavy": 30, "light": 10}
    assert fairness.index(claims) == 1.0


def test_where_nobody_got_anything_there_is_nothing_to_say():
    assert fairness.index({}) is None
    assert fairness.index({"x": Claim(0, 5)}) is None
    assert fairness.index({"x": Claim(0, 0)}) is None
    assert fairness.jain([]) is None
    assert fairness.jain([0, 0]) is None


def test_the_index_of_fairness_goes_from_one_over_n_to_one():
    assert fairness.jain([5, 5, 5, 5]) == 1.0
    assert fairness.jain([7, 0, 0, 0]) == 0.25
    assert fairness.jain([1, 2, 3]) == 36 / 42
