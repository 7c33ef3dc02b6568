"""Which part of the lake a round goes through: pure, so without Spark."""

import pytest

from doubledecker.model.position import Checkpoint, Position, Shard
from doubledecker.pipeline.bulk import scan_ranges
from doubledecker.pipeline.bulk.scan_ranges import Bounds, FileSpan
from doubledecker.store.bulk import Progress

pytestmark = pytest.mark.slow

END = {0: Position(10_000, 5)}
EVEN = [FileSpan(0, 9_999, rows=10_000, bytes=10_000)]


def at(ms: int, **more: int) -> Checkpoint:
    return Checkpoint(Position(ms, 0), **more)


def test_shards_that_keep_pace_go_on_together_up_to_what_has_landed():
    checkpoints = {Shard(0, n): at(1000) for n in range(3)}

    [scan] = scan_ranges.plan(checkpoints, END, EVEN, Bounds())

    assert (scan.since_ms, scan.until_ms) == (1000, 10_001)
    assert set(scan.upto.values()) == {Position(10_000, 5)}
    assert not scan.is_empty


def test_a_span_ends_where_it_would_hold_too_many_rows_or_bytes():
    checkpoints = {Shard(0, 0): at(1000)}

    [by_rows] = scan_ranges.plan(checkpoints, END, EVEN, Bounds(rows_max=500))
    [by_bytes] = scan_ranges.plan(checkpoints, END, EVEN, Bounds(bytes_max=2000))

    assert by_rows.until_ms == 1500
    assert by_bytes.until_ms == 3000
    assert by_rows.upto[Shard(0, 0)] > Position(1499, 10**6)
    assert by_rows.upto[Shard(0, 0)] < Position(1500, 0, 0)


def test_a_crowded_millisecond_is_gone_through_all_the_same():
    crowded = [FileSpan(1000, 1000, rows=10**6, bytes=10**6)]

    [scan] = scan_ranges.plan({Shard(0, 0): at(1000)}, END, crowded, Bounds(rows_max=10))

    assert scan.until_ms == 1001


def test_one_that_was_held_up_has_a_span_of_its_own_and_the_furthest_is_never_left_out():
    checkpoints = {Shard(0, n): at(1000 * n) for n in range(10)}

    found = scan_ranges.plan(checkpoints, END, EVEN, Bounds(rows_max=500))

    assert [scan.since_ms for scan in found] == [0, 1000, 2000, 9000]
    assert all(len(scan.checkpoints) == 1 for scan in found)


def test_where_no_file_holds_anything_there_is_nothing_to_read():
    [scan] = scan_ranges.plan({Shard(0, 0): at(1000)}, END, [], Bounds())

    assert scan.is_empty
    assert scan.upto == {Shard(0, 0): Position(10_000, 5)}


def test_shards_that_wait_after_a_failure_or_are_at_the_end_are_not_due():
    progress = Progress({Shard(0, 0): at(5, retry_at=100), Shard(0, 1): at(5), Shard(0, 2): Checkpoint(END[0])})

    assert set(scan_ranges.due(progress, END, now_ms=50)) == {Shard(0, 1)}
    assert set(scan_ranges.due(progress, END, now_ms=100)) == {Shard(0, 0), Shard(0, 1)}


def test_one_that_is_live_again_goes_no_further_than_its_end():
    progress = Progress({Shard(0, 0): at(5)}, until={0: Position(2000, 0)})

    assert scan_ranges.ends(progress, {0: Position(10_000, 5)}) == {0: Position(2000, 0)}
    assert not scan_ranges.is_through(progress)
    assert scan_ranges.is_through(Progress({Shard(0, 0): at(2000)}, until={0: Position(2000, 0)}))
    assert not scan_ranges.is_through(Progress({Shard(0, 0): at(2000)}))


def test_a_shards_that_stopped_stays_and_the_others_pass_from_where_they_stood():
    checkpoints = {Shard(0, n): at(1000) for n in range(3)}
    [scan] = scan_ranges.plan(checkpoints, END, EVEN, Bounds())

    passing = scan_ranges.passing(scan, {Shard(0, 0)}, {Shard(0, 0): at(3000), Shard(0, 1): at(4000)})

    assert passing == {
        Shard(0, 1): (at(4000), Checkpoint(Position(10_000, 5))),
        Shard(0, 2): (at(1000), Checkpoint(Position(10_000, 5))),
    }


def test_how_far_a_shard_has_come_is_read_as_it_was_written():
    for checkpoint in (Checkpoint(), Checkpoint(Position(12, 3, 4), 5, 678), at(9)):
        assert Checkpoint.read(checkpoint.text) == checkpoint
    assert Shard.parse(Shard(2, 13).field) == Shard(2, 13)
