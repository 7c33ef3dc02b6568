"""Moments: to milliseconds and back, to the last digit."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from doubledecker.errors import BadRequest
from doubledecker.model import moment


@given(some.integers(0, 4_102_444_800_000))
def test_milliseconds_come_back_as_they_were(at_ms: int):
    assert moment.to_ms(moment.from_ms(at_ms)) == at_ms
    assert moment.to_ms(moment.parse(moment.from_ms(at_ms).isoformat())) == at_ms


def test_a_moment_without_a_zone_is_in_utc_and_one_with_another_is_turned_to_it():
    assert moment.parse("2026-11-15T11:00:00") == datetime(2026, 11, 15, 11, tzinfo=UTC)
    assert moment.parse("2026-11-15T11:00:00+02:00") == datetime(2026, 11, 15, 9, tzinfo=UTC)
    assert moment.parse("2026-11-15") == datetime(2026, 11, 15, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_moment_is_told_how_to_write_one(text: str):
    with pytest.raises(BadRequest, match=r"from is .*; write it like 2026-11-15T11:00:00Z"):
        moment.parse(text, field="from")
