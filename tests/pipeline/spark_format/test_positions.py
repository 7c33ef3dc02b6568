import pytest

from doubledecker.errors import BadRequest
from doubledecker.model.position import Position
from doubledecker.pipeline.land.journal_reader import JournalSlice
from doubledecker.pipeline.spark_format import options
from doubledecker.store.journal import Extent

EXTENTS = {0: Extent("100-0", "101-0", "900-3", 9, 90), 1: Extent("0-0", "50-0", "70-0", 2, 20)}
LAST = 2**64 - 1


def test_an_id_sorts_by_time_then_by_number():
    assert Position.parse("9-10") > Position.parse("9-9")
    assert Position.parse("10-0") > Position.parse("9-10")
    assert Position.parse("10") == Position(10, 0)


def test_before_an_id_nothing_fits_between():
    assert Position(5, 3).before == Position(5, 2)
    assert Position(5, 0).before == Position(4, LAST)


@pytest.mark.parametrize(
    ("text", "is_end", "expected"),
    [
        ("earliest", False, {0: "100-0", 1: "0-0"}),
        ("latest", False, {0: "900-3", 1: "70-0"}),
        ("latest", True, {0: "900-3", 1: "70-0"}),
        ("1794740919538-4", False, {0: "1794740919538-3", 1: "1794740919538-3"}),
        ("1794740919538-4", True, {0: "1794740919538-4", 1: "1794740919538-4"}),
        ("1970-01-01T00:00:00.500Z", False, {0: f"499-{LAST}", 1: f"499-{LAST}"}),
        ("1970-01-01T00:00:00.500Z", True, {0: f"499-{LAST}", 1: f"499-{LAST}"}),
        ("1970-01-01", False, {0: "0-0", 1: "0-0"}),
        ('{"0": "500-0"}', False, {0: f"499-{LAST}", 1: "0-0"}),
        ('{"1": "60-0"}', True, {0: "900-3", 1: "60-0"}),
    ],
)
def test_a_position_is_a_place_in_every_partition(text: str, is_end: bool, expected: dict[int, str]):
    places = options.position(text, EXTENTS, is_end=is_end)

    assert {index: str(place) for index, place in places.items()} == expected


@pytest.mark.parametrize("text", ["yesterday", "", '{"0": 5}', '{"7": "1-0"}', "[1]", "12-x"])
def test_a_position_that_is_none_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(BadRequest, match=r"it must be|write it like|this bus has|must be like"):
        options.position(text, EXTENTS, is_end=False)


def test_slices_cover_a_range_without_overlap_and_leave_nothing_out():
    slices = JournalSlice(0, Position(0, 0), Position(1000, 7)).cut(4, first=Position(900, 0))

    assert [(str(part.after), str(part.upto)) for part in slices] == [
        ("0-0", "925-0"),
        ("925-0", "950-0"),
        ("950-0", "975-0"),
        ("975-0", "1000-7"),
    ]


def test_a_range_within_one_millisecond_is_one_slice():
    assert JournalSlice(0, Position(5, 1), Position(5, 9)).cut(8, first=Position(5, 0)) == [
        JournalSlice(0, Position(5, 1), Position(5, 9))
    ]
