"""Cutting a stretch of time into windows of about as many events as wanted, without looking at them all each time.

Events are counted in a thousand bins; only a bin that holds too many is counted again, in a thousand finer ones. So the
next window costs a count of a small part of the stretch, and often none at all.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_BINS = 1_000


@dataclass(frozen=True)
class Bin:
    """So many events from one millisecond until before another."""

    from_ms: int
    upto_ms: int
    count: int


# Counts the events from one time until before another, in bins of so many milliseconds each, by the bin's number.
Counting = Callable[[int, int, int], Mapping[int, int]]


class Windows:
    """The windows of a stretch, one after the other."""

    def __init__(self, stretch: Bin, count: Counting) -> None:
        self._upto_ms = stretch.upto_ms
        self._bins = deque([stretch] if stretch.count else [])
        self._count = count

    def next(self, most: int) -> int:
        """Where the next window ends: `most` events, or fewer, or one millisecond with however many it has."""
        taken, end_ms = 0, 0
        while self._bins:
            first = self._bins[0]
            if taken + first.count > most and not taken and first.upto_ms - first.from_ms > 1:
                self._bins.popleft()
                self._bins.extendleft(reversed(self._split(first)))
                continue
            if taken and taken + first.count > most:
                break
            self._bins.popleft()
            taken, end_ms = taken + first.count, first.upto_ms
        return end_ms if self._bins else self._upto_ms

    def _split(self, bin_: Bin) -> list[Bin]:
        width = -(-(bin_.upto_ms - bin_.from_ms) // _BINS)
        counts = self._count(bin_.from_ms, bin_.upto_ms, width)
        found = []
        for number in sorted(counts):
            from_ms = bin_.from_ms + number * width
            found.append(Bin(from_ms, min(from_ms + width, bin_.upto_ms), counts[number]))
        return found
