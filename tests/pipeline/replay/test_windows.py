"""Windows: together they are the whole stretch, in order, and none holds more than wanted where that can be."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as some

from doubledecker.pipeline.replay.replayer import Bin, Windows

pytestmark = pytest.mark.slow


class Events:
    """Moments of events, counted as Spark would, and how often that was asked for."""

    def __init__(self, moments: list[int]) -> None:
        self.moments = moments
        self.asked = 0

    def count(self, from_ms: int, upto_ms: int, width: int) -> Mapping[int, int]:
        self.asked += 1
        return Counter((each - from_ms) // width for each in self.moments if from_ms <= each < upto_ms)

    def within(self, from_ms: int, upto_ms: int) -> int:
        return sum(from_ms <= each < upto_ms for each in self.moments)


def cut(events: Events, from_ms: int, upto_ms: int, most: int) -> list[tuple[int, int]]:
    windows = Windows(Bin(from_ms, upto_ms, events.within(from_ms, upto_ms)), events.count)
    found, cursor = [], from_ms
    while cursor < upto_ms:
        end = windows.next(most)
        assert end > cursor
        found.append((cursor, end))
        cursor = end
    return found


@given(
    moments=some.lists(some.integers(1_794_740_000_000, 1_794_740_500_000) | some.just(1_794_740_077_777)),
    most=some.integers(1, 20),
    from_ms=some.sampled_from([0, 1_794_740_000_000, 1_794_740_200_000]),
)
def test_windows_follow_one_another_and_hold_no_more_than_wanted_but_for_single_milliseconds(
    moments: list[int], most: int, from_ms: int
):
    events = Events(moments)
    windows = cut(events, from_ms, 1_794_740_400_000, most)

    assert [start for start, _ in windows[1:]] == [end for _, end in windows[:-1]]
    assert windows[-1][1] == 1_794_740_400_000
    for start, end in windows:
        crowded = [moment for moment in moments if start <= moment < end]
        assert len(crowded) <= most or len(set(crowded)) == 1


def test_a_year_of_events_is_not_counted_again_for_each_window():
    events = Events(list(range(0, 31_536_000_000, 315_360)))
    windows = cut(events, 0, 31_536_000_000, 1_000)

    assert len(windows) == 100
    assert events.asked == 1
