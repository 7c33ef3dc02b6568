"""Health of subscribers, as attempts change it."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from doubledecker.store.subscribers import Attempts


@given(st.lists(st.integers(-100, 100), min_size=1), st.integers(0, 100), st.integers(0, 10))
def test_many_attempts_come_to_what_each_of_them_does_in_turn(points: list[int], health: int, first: int):
    made = [Attempts(by, at) for at, by in enumerate(points)]
    joined = [reduce(Attempts.then, part) for part in (made[:first], made[first:]) if part]

    whole = reduce(Attempts.then, joined)

    in_turn = reduce(lambda before, by: max(0, min(100, before + by)), points, health)
    assert max(whole.least, min(whole.most, health + whole.by)) == in_turn
    assert whole.last_at == len(points) - 1
