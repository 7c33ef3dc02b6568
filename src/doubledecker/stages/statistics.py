"""What a stage counts, and the snapshot that reports read.

Two laws hold at every moment, and tests check them on every technique:

    arrived = rejected + started + queued + cancelled in queue
    started = succeeded + failed + cancelled + working

Times are kept in buckets an eighth of a doubling wide, so a quantile is at most 9 % off. A call only appends its time
to a list; every few hundred calls the list is sorted and folded into the buckets, which is three times cheaper than
finding the bucket of each.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp2, log2

_PER_DOUBLING = 8
FOLD_EVERY = 512  # a power of two: the stage tests some bits of its counter


class Histogram:
    """Durations in seconds; `note` is a list's append, so the caller must `fold` now and then."""

    __slots__ = ("_buckets", "_count", "_recent", "_total_s", "note")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._total_s = 0.0
        self._recent: list[float] = []
        self.note = self._recent.append

    def fold(self) -> None:
        """Sort the recent durations into their buckets."""
        recent = sorted(self._recent)
        self._recent.clear()
        self._count += len(recent)
        self._total_s += sum(recent)
        # Virtual time knows durations of zero; they are in the count, and in no bucket.
        at = bisect_left(recent, 1e-12)
        while at < len(recent):
            bucket = int(log2(recent[at]) * _PER_DOUBLING // 1)
            end = bisect_left(recent, _upper_s(bucket), at + 1)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + end - at
            at = end

    @property
    def is_long(self) -> bool:
        return len(self._recent) >= FOLD_EVERY

    def freeze(self) -> "Durations":
        """A copy for reports."""
        self.fold()
        return Durations(self._count, self._total_s, dict(sorted(self._buckets.items())))


def _upper_s(bucket: int) -> float:
    return exp2((bucket + 1) / _PER_DOUBLING)


@dataclass(frozen=True)
class Durations:
    """A histogram at one moment."""

    count: int
    total_s: float
    buckets: dict[int, int]

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """The duration that `share` of all stay under."""
        rank = ceil(share * self.count)
        middle = exp2(-0.5 / _PER_DOUBLING)
        return next((upper_s * middle for upper_s, under in self.cumulative() if under >= rank), 0.0)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds with how many stay under each, as Prometheus wants them."""
        under = self.count - sum(self.buckets.values())
        yield 0.0, under
        for bucket, number in self.buckets.items():
            under += number
            yield _upper_s(bucket), under


class Counters:
    """What a bound stage counts; `quit` are those who gave up in the queue."""

    __slots__ = (
        "arrived",
        "cancelled",
        "failed",
        "note_wait",
        "note_work",
        "queue_time",
        "quit",
        "rejected",
        "started",
        "succeeded",
        "work_time",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.rejected = 0
        self.quit = 0
        self.started = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0
        self.queue_time = Histogram()
        self.work_time = Histogram()
        self.note_wait = self.queue_time.note
        self.note_work = self.work_time.note

    @property
    def working(self) -> int:
        return self.started - self.succeeded - self.failed - self.cancelled

    def fold(self) -> None:
        self.queue_time.fold()
        self.work_time.fold()

    def fold_when_long(self) -> None:
        """Fold where it is time; for the rare ways to end, which are not counted."""
        if self.work_time.is_long or self.queue_time.is_long:
            self.fold()


@dataclass(frozen=True)
class Snapshot:
    """One stage at one moment; the columns are the same in production and in a simulation's report."""

    stage: str
    arrived: int
    rejected: int
    queued: int
    cancelled_in_queue: int
    started: int
    working: int
    succeeded: int
    failed: int
    cancelled: int
    workers: int | None
    queue_time: Durations
    work_time: Durations
    state: str = ""

    @property
    def is_balanced(self) -> bool:
        """Both laws hold."""
        arrived = self.rejected + self.started + self.queued + self.cancelled_in_queue
        started = self.succeeded + self.failed + self.cancelled + self.working
        return self.arrived == arrived and self.started == started and min(self.working, self.cancelled) >= 0

    @property
    def wait_mean_s(self) -> float:
        """Over all that started; those that did not wait count as zero."""
        return self.queue_time.total_s / self.started if self.started else 0.0
