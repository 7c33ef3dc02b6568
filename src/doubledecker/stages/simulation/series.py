"""A simulation over time: what happened between one look at it and the next.

An interval's latencies are those of the events that ended in it. In an overload that is what callers feel then, though
they may have asked long before. Each value is estimated over the replications; where nothing happened, there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from doubledecker.stages.simulation.report import Estimate, Replication, Report, SimulationSample, estimate, quantile
from doubledecker.stages.statistics import Snapshot


@dataclass(frozen=True)
class Interval:
    """From one look to the next, in one replication."""

    former: SimulationSample
    latter: SimulationSample
    latencies_s: Sequence[float]

    @property
    def took(self) -> float:
        return self.latter.at - self.former.at

    @property
    def success(self) -> float | None:
        """Of the events that ended here."""
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


Measure = Callable[[Interval], float | None]


def moments(report: Report) -> list[float]:
    """The ends of the intervals; a simulation that was not sampled has none."""
    return [sample.at for sample in report.replications[0].samples[1:]]


def over_time(report: Report, measure: Measure) -> list[Estimate | None]:
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
