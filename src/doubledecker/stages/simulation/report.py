"""What a simulation found: per stage the columns of production, and for the callers success and latency.

Every number is a mean over replications with the half-width of its 95 % confidence interval. One replication has
none: how far it may be off cannot be known from it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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
        # A margin that is but a rounding error, or not known, is not shown.
        is_known = 1e-9 * abs(self.mean) < self.margin < math.inf
        return _short(self.mean, 4) + (f" ±{_short(self.margin, 2)}" if is_known else "")


def _short(value: float, digits: int) -> str:
    """To so many digits; whole numbers whole, and without an exponent."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


@dataclass(frozen=True)
class SimulationSample:
    """All stages at one moment of virtual time, and how many events had ended and succeeded by then."""

    at: float
    snapshots: tuple[Snapshot, ...]
    ended: int
    succeeded: int


@dataclass(frozen=True)
class Replication:
    """One run: its stages at the end, how its events ended, and how long each took, in the order of their ends."""

    duration: float
    snapshots: tuple[Snapshot, ...]
    outcomes: Mapping[str, int]
    latencies_s: Sequence[float] = field(repr=False)
    samples: tuple[SimulationSample, ...] = field(default=(), repr=False)

    @property
    def sent(self) -> int:
        return sum(self.outcomes.values())

    @property
    def success(self) -> float:
        return self.outcomes.get("succeeded", 0) / self.sent if self.sent else 0.0

    def latency_s(self, share: float) -> float:
        """The latency that `share` of all events stay under, however they ended."""
        return quantile(self.latencies_s, share)

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

    def ended(self, how: str) -> Estimate:
        """The number of events that ended so: `succeeded`, or the class of what was raised."""
        return self.estimate(lambda one: one.outcomes.get(how, 0))

    def latency_s(self, share: float) -> Estimate:
        """A quantile of the events' latencies, however they ended."""
        return self.estimate(lambda one: one.latency_s(share))

    def stages(self) -> dict[str, dict[str, Estimate]]:
        """The columns of production for each stage: counts, and times in seconds."""
        return {snapshot.stage: self._columns(snapshot.stage) for snapshot in self.replications[0].snapshots}

    def _columns(self, name: str) -> dict[str, Estimate]:
        counts = {column.replace("_", " "): self.stage(name, attrgetter(column)) for column in _COLUMNS}
        return counts | {
            "wait mean": self.stage(name, lambda one: one.wait_mean_s),
            "work p50": self.stage(name, lambda one: one.work_time.quantile_s(0.5)),
            "work p99": self.stage(name, lambda one: one.work_time.quantile_s(0.99)),
        }

    def table(self) -> str:
        """The report as text."""
        stages = self.stages()
        head = ["stage", *next(iter(stages.values()))]
        rows = [head, *([name, *map(str, columns.values())] for name, columns in stages.items())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, self._callers()])

    def _callers(self) -> str:
        quantiles = ", ".join(f"p{share * 100:g} {self.latency_s(share)} s" for share in (0.5, 0.95, 0.99))
        return f"callers: success {self.success}, latency {quantiles}"


def looks(duration: float, every: float) -> list[float]:
    """When to look: at the beginning, every so often, and at the end."""
    # Multiplied, not added up: a tenth added ten times is not one. And what is but a rounding error is no interval.
    count = math.ceil(duration / every * (1.0 - 1e-9))
    return [*(i * every for i in range(count)), duration]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all stay at or under; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, and how far it may be off."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, math.inf)
    freedom = max(known for known in _T if known <= len(values) - 1)
    return Estimate(mean, _T[freedom] * statistics.stdev(values) / math.sqrt(len(values)))


# A simulation over time: what happened between one look at it and the next.
#
# An interval's latencies are those of the events that ended in it. In an overload that is what callers feel then,
# though they may have asked long before. Each value is estimated over the replications; where nothing happened, there
# is none.


@dataclass(frozen=True)
class Interval:
    """The time from one look to the next, in one replication."""

    former: SimulationSample
    latter: SimulationSample
    latencies_s: Sequence[float]

    @property
    def took(self) -> float:
        return self.latter.at - self.former.at

    @property
    def success(self) -> float | None:
        """The share of success of the events that ended here."""
        ended = self.latter.ended - self.former.ended
        return (self.latter.succeeded - self.former.succeeded) / ended if ended else None

    def latency_s(self, share: float) -> float | None:
        """A quantile of the latencies of the events that ended here."""
        return quantile(self.latencies_s, share) if self.latencies_s else None

    def arrived_per_s(self, stage: int) -> float:
        """How many came to a stage, by its place in the chain; the last one is -1."""
        return (self.latter.snapshots[stage].arrived - self.former.snapshots[stage].arrived) / self.took

    def at_end(self, name: str) -> Snapshot:
        """A stage at the end of the interval."""
        return next(snapshot for snapshot in self.latter.snapshots if snapshot.stage == name)


IntervalMeasure = Callable[[Interval], float | None]


def moments(report: Report) -> list[float]:
    """The ends of the intervals; a simulation that was not sampled has none."""
    return [sample.at for sample in report.replications[0].samples[1:]]


def over_time(report: Report, measure: IntervalMeasure) -> list[Estimate | None]:
    """The measure of each interval, over all replications."""
    runs = [intervals(one) for one in report.replications]
    return [_estimate([measure(interval) for interval in same]) for same in zip(*runs, strict=True)]


def intervals(replication: Replication) -> list[Interval]:
    """What the samples of one replication lie between."""
    return [
        Interval(former, latter, replication.latencies_s[former.ended : latter.ended])
        for former, latter in pairwise(replication.samples)
    ]


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate(known) if known else None


# What callers saw, in a few measures, and two reports side by side.
#
# Chains that are compared with one seed meet the same traffic, so their replications are pairs, and the difference is
# estimated from the pairs: much of what chance did to the one, it did to the other too.

Measure = Callable[[Replication], float]


def _call_success(one: Replication) -> float:
    calls = one.snapshots[-1]
    ended = calls.succeeded + calls.failed
    return calls.succeeded / ended if ended else 0.0


MEASURES: Mapping[str, Measure] = {
    "events": lambda one: float(one.sent),
    "success": lambda one: one.success,
    "latency p50": lambda one: one.latency_s(0.5),
    "latency p95": lambda one: one.latency_s(0.95),
    "latency p99": lambda one: one.latency_s(0.99),
    "calls per event": lambda one: one.snapshots[-1].arrived / one.sent if one.sent else 0.0,
    "call success": _call_success,
    "call p50": lambda one: one.snapshots[-1].work_time.quantile_s(0.5),
    "call p99": lambda one: one.snapshots[-1].work_time.quantile_s(0.99),
}


def measures(report: Report) -> dict[str, Estimate]:
    """Every measure of a report; a call is one that reached the dependency."""
    return {name: report.estimate(measure) for name, measure in MEASURES.items()}


def differences(former: Report, latter: Report) -> dict[str, Estimate]:
    """How much higher the latter's measures are."""
    return {name: _difference(former, latter, measure) for name, measure in MEASURES.items()}


def _difference(former: Report, latter: Report, measure: Measure) -> Estimate:
    before = [measure(one) for one in former.replications]
    after = [measure(one) for one in latter.replications]
    if len(before) == 1:
        # What was recorded happened once: every replication is held against it.
        before *= len(after)
    if len(before) != len(after):
        return Estimate(estimate(after).mean - estimate(before).mean, float("inf"))
    return estimate([y - x for x, y in zip(before, after, strict=True)])
