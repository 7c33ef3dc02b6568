"""Which part of the lake a round goes through: pure, so without Spark."""

import pytest

from doubledecker.model.position import Position, Reach, Strand
from doubledecker.pipeline.bulk import scan_ranges
from doubledecker.pipeline.bulk.scan_ranges import Bounds, FileSpan
from doubledecker.store.bulk import Course

pytestmark = pytest.mark.slow

END = {0: Position(10_000, 5)}
EVEN = [FileSpan(0, 9_999, rows=10_000, bytes=10_000)]


def at(ms: int, **more: int) -> Reach:
    return Reach(Position(ms, 0), **more)


def test_strands_that_keep_pace_go_on_together_up_to_what_has_landed():
    reaches = {Strand(0, n): at(1000) for n in range(3)}

    [leg] = scan_ranges.plan(reaches, END, EVEN, Bounds())

    assert (leg.since_ms, leg.until_ms) == (1000, 10_001)
    assert set(leg.upto.values()) == {Position(10_000, 5)}
    assert not leg.is_empty


def test_a_span_ends_where_it_would_hold_too_many_rows_or_bytes():
    reaches = {Strand(0, 0): at(1000)}

    [by_rows] = scan_ranges.plan(reaches, END, EVEN, Bounds(rows_max=500))
    [by_bytes] = scan_ranges.plan(reaches, END, EVEN, Bounds(bytes_max=2000))

    assert by_rows.until_ms == 1500
    assert by_bytes.until_ms == 3000
    assert by_rows.upto[Strand(0, 0)] > Position(1499, 10**6)
    assert by_rows.upto[Strand(0, 0)] < Position(1500, 0, 0)


def test_a_crowded_millisecond_is_gone_through_all_the_same():
    crowded = [FileSpan(1000, 1000, rows=10**6, bytes=10**6)]

    [leg] = scan_ranges.plan({Strand(0, 0): at(1000)}, END, crowded, Bounds(rows_max=10))

    assert leg.until_ms == 1001


def test_one_that_was_held_up_has_a_span_of_its_own_and_the_furthest_is_never_left_out():
    reaches = {Strand(0, n): at(1000 * n) for n in range(10)}

    found = scan_ranges.plan(reaches, END, EVEN, Bounds(rows_max=500))

    assert [leg.since_ms for leg in found] == [0, 1000, 2000, 9000]
    assert all(len(leg.reaches) == 1 for leg in found)


def test_where_no_file_holds_anything_there_is_nothing_to_read():
    [leg] = scan_ranges.plan({Strand(0, 0): at(1000)}, END, [], Bounds())

    assert leg.is_empty
    assert leg.upto == {Strand(0, 0): Position(10_000, 5)}


def test_strands_that_wait_after_a_failure_or_are_at_the_end_are_not_due():
    course = Course({Strand(0, 0): at(5, retry_at=100), Strand(0, 1): at(5), Strand(0, 2): Reach(END[0])})

    assert set(scan_ranges.due(course, END, now_ms=50)) == {Strand(0, 1)}
    assert set(scan_ranges.due(course, END, now_ms=100)) == {Strand(0, 0), Strand(0, 1)}


def test_one_that_is_live_again_goes_no_further_than_its_end():
    course = Course({Strand(0, 0): at(5)}, until={0: Position(2000, 0)})

    assert scan_ranges.ends(course, {0: Position(10_000, 5)}) == {0: Position(2000, 0)}
    assert not scan_ranges.is_through(course)
    assert scan_ranges.is_through(Course({Strand(0, 0): at(2000)}, until={0: Position(2000, 0)}))
    assert not scan_ranges.is_through(Course({Strand(0, 0): at(2000)}))


def test_a_strand_that_stopped_stays_and_the_others_pass_from_where_they_stood():
    reaches = {Strand(0, n): at(1000) for n in range(3)}
    [leg] = scan_ranges.plan(reaches, END, EVEN, Bounds())

    passing = scan_ranges.passing(leg, {Strand(0, 0)}, {Strand(0, 0): at(3000), Strand(0, 1): at(4000)})

    assert passing == {
        Strand(0, 1): (at(4000), Reach(Position(10_000, 5))),
        Strand(0, 2): (at(1000), Reach(Position(10_000, 5))),
    }


def test_how_far_a_strand_has_come_is_read_as_it_was_written():
    for reach in (Reach(), Reach(Position(12, 3, 4), 5, 678), at(9)):
        assert Reach.read(reach.text) == reach
    assert Strand.parse(Strand(2, 13).field) == Strand(2, 13)
