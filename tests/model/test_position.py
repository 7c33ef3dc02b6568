"""Positions as text, and their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model import position
from doubledecker.model.position import WHOLE, Position

numbers = st.integers(0, (1 << 64) - 1)
places = st.builds(Position, numbers, numbers, st.just(WHOLE) | st.integers(0, 2000))


@given(st.lists(places, min_size=1, max_size=5))
def test_what_is_rendered_is_parsed_to_the_same(some: list[Position]):
    assert position.parse(position.render(some), partitions=len(some)) == some


@given(places, st.integers(1, 2000))
def test_a_line_of_an_entry_comes_before_its_end_and_after_the_entry_before(place: Position, line: int):
    after = Position.after(place.entry_id)

    assert Position(place.ms, place.seq, line) < after
    assert Position(place.ms, place.seq, line) > Position(place.ms, place.seq - 1)


@given(st.lists(places, min_size=1, max_size=4), st.data())
def test_a_position_within_an_entry_differs_in_that_partition_alone(some: list[Position], data: st.DataObject):
    index = data.draw(st.integers(0, len(some) - 1))
    lines = data.draw(st.integers(1, 50))
    number = data.draw(st.integers(1, lines))
    here = position.parse(position.within(some, index, "7-3", lines)(number), partitions=len(some))

    assert here[index] == (Position(7, 3) if number == lines else Position(7, 3, number))
    assert [*here[:index], *here[index + 1 :]] == [*some[:index], *some[index + 1 :]]


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "1-1,2-2", "1-1.", "1-1.x", "1-1 ", "\N{ARABIC-INDIC DIGIT ONE}-1", f"{1 << 64}-0"]
)
def test_anything_else_is_refused(text: str):
    with pytest.raises(BadRequest):
        position.parse(text, partitions=1)
