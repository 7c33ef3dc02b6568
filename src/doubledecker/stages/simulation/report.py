"""What a simulation found: per stage the columns of production, and for the callers success and latency.

Every number is a mean over replications with the half-width of its 95 % confidence interval. One replication has
none: how far it may be off cannot be known from it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from doubledecker.stages.statistics import Snapshot

# Student's t for 95 %, by degrees of freedom; beyond the table the next smaller entry is wide enough.
_T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
_T |= {12: 2.179, 15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}

_COLUMNS = (
    "arrived",
    "rejected",
    "queued",
    "cancelled_in_queue",
    "started",
    "working",
    "succeeded",
    "failed",
    "cancelled",
)


@dataclass(frozen=True)
class Estimate:
    """A mean and the half-width of its confidence interval."""

    mean: float
    margin: float

    @property
    def low(self) -> float:
        return self.mean - self.margin

    @property
    def high(self) -> float:
        return self.mean + self.margin

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + (f" ±{self.margin:.2g}" if 0.0 < self.margin < math.inf else "")


@dataclass(frozen=True)
class Sample:
    """All stages at one moment of virtual time."""

    at: float
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class Replication:
    """One run: its stages at the end, how its events ended, and how long each took."""

    duration: float
    snapshots: tuple[Snapshot, ...]
    outcomes: Mapping[str, int]
    latencies_s: Sequence[float] = field(repr=False)
    samples: tuple[Sample, ...] = field(default=(), repr=False)

    @property
    def sent(self) -> int:
        return sum(self.outcomes.values())

    @property
    def success(self) -> float:
        return self.outcomes.get("succeeded", 0) / self.sent if self.sent else 0.0

    def latency_s(self, share: float) -> float:
        """The latency that `share` of all events stay under, however they ended."""
        ordered = sorted(self.latencies_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0

    def stage(self, name: str) -> Snapshot:
        return next(snapshot for snapshot in self.snapshots if snapshot.stage == name)


@dataclass(frozen=True)
class Report:
    """All replications."""

    replications: tuple[Replication, ...]

    def estimate(self, measure: Callable[[Replication], float]) -> Estimate:
        """Any measure of a replication, with its confidence interval."""
        return estimate([measure(one) for one in self.replications])

    def stage(self, name: str, measure: Callable[[Snapshot], float]) -> Estimate:
        """Any measure of one stage's snapshot, with its confidence interval."""
        return self.estimate(lambda one: measure(one.stage(name)))

    @property
    def success(self) -> Estimate:
        """The share of events that succeeded."""
        return self.estimate(lambda one: one.success)

    def latency_s(self, share: float) -> Estimate:
        """A quantile of the events' latencies, however they ended."""
        return self.estimate(lambda one: one.latency_s(share))

    def table(self) -> str:
        """The report as text."""
        names = [snapshot.stage for snapshot in self.replications[0].snapshots]
        head = ["stage", *(column.replace("_", " ") for column in _COLUMNS), "wait mean", "work p50", "work p99"]
        rows = [head, *([name, *self._row(name)] for name in names)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, self._callers()])

    def _row(self, name: str) -> list[str]:
        counts = [self.stage(name, attrgetter(column)) for column in _COLUMNS]
        times = [
            self.stage(name, lambda one: one.wait_mean_s),
            self.stage(name, lambda one: one.work_time.quantile_s(0.5)),
            self.stage(name, lambda one: one.work_time.quantile_s(0.99)),
        ]
        return [str(each) for each in (*counts, *times)]

    def _callers(self) -> str:
        quantiles = ", ".join(f"p{share * 100:g} {self.latency_s(share)} s" for share in (0.5, 0.95, 0.99))
        return f"callers: success {self.success}, latency {quantiles}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, and how far it may be off."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, math.inf)
    freedom = max(known for known in _T if known <= len(values) - 1)
    return Estimate(mean, _T[freedom] * statistics.stdev(values) / math.sqrt(len(values)))
