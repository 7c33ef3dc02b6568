"""How a pull is divided over partitions: laws that hold for any standing of their rings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.queues.ring import RingState, divide, virtual_time

some_standing = st.builds(
    RingState,
    head=st.none() | st.floats(0, 1e9),
    cost=st.floats(0, 1e5),
    facets=st.integers(0, 10_000),
)
some_standings = st.lists(some_standing, min_size=1, max_size=6)


@given(most=st.integers(0, 200), standings=some_standings, floor=st.floats(0, 1e9))
def test_all_is_given_out_to_those_who_have_something(most: int, standings: list[RingState], floor: float):
    shares = divide(most, standings, floor=floor)

    is_something_there = any(standing.head is not None for standing in standings)
    assert sum(shares) == (most if is_something_there else 0)
    assert all(share == 0 for share, standing in zip(shares, standings, strict=True) if standing.head is None)


@given(standings=some_standings, floor=st.floats(0, 1e9))
def test_the_first_goes_to_the_one_furthest_behind(standings: list[RingState], floor: float):
    [*heads] = [max(standing.head, floor) if standing.head is not None else None for standing in standings]
    shares = divide(1, standings, floor=floor)

    if any(head is not None for head in heads):
        assert heads[shares.index(1)] == min(head for head in heads if head is not None)


@given(most=st.integers(0, 100), standings=some_standings, floor=st.floats(0, 1e6))
def test_asking_for_more_takes_from_nobody(most: int, standings: list[RingState], floor: float):
    fewer, more = divide(most, standings, floor=floor), divide(most + 1, standings, floor=floor)

    assert all(a <= b for a, b in zip(fewer, more, strict=True))


@pytest.mark.parametrize("facets", [(1, 1, 1), (10, 20, 30), (1, 99, 900)])
def test_partitions_are_visited_in_proportion_to_their_facets(facets: tuple[int, ...]):
    standings = [RingState(head=5.0, cost=1.0, facets=count) for count in facets]
    shares = divide(1000, standings, floor=0.0)

    for share, count in zip(shares, facets, strict=True):
        assert share == pytest.approx(1000 * count / sum(facets), abs=2)


@given(standings=some_standings, before=st.floats(0, 1e9))
def test_virtual_time_never_falls_and_never_passes_the_least_tag(standings: list[RingState], before: float):
    after = virtual_time(standings, before=before)
    heads = [standing.head for standing in standings if standing.head is not None]

    assert after >= before
    assert after == before or after == min(heads)
