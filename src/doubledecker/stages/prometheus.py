"""Snapshots for Prometheus: every stage of some bound chains, read when Prometheus asks.

    registry.register(StagesCollector({"payments": bound}))

The laws of a snapshot hold for the metrics too: arrived = rejected + started + queued + cancelled_in_queue. Durations
are a histogram whose bounds are powers of two: they are bounds of the stages' own buckets, so the counts are exact.

It needs `prometheus-client`, which nothing else of the stages does.
"""

from collections.abc import Iterator, Mapping
from math import exp2

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from doubledecker.stages.bound import Bound
from doubledecker.stages.statistics import Durations, Snapshot

_COUNTERS = {
    "arrived": "Events that came to the stage",
    "rejected": "Events that it did not let in, or turned away from its queue",
    "cancelled_in_queue": "Events given up while they waited",
    "started": "Events that were worked on",
    "succeeded": "Events whose work gave a result",
    "failed": "Events whose work raised",
    "cancelled": "Events given up during the work",
}
_GAUGES = {"queued": "Events that wait for a worker", "working": "Events at work"}
_DURATIONS = {"queue_time": "Waiting for a worker, of those that waited", "work_time": "The work, whatever its end"}
# From an eighth of a millisecond to a minute: a guarded call that is faster is not worth a bucket.
_BOUNDS_S = tuple(exp2(power) for power in range(-13, 7))
_LABELS = ("chain", "stage")
# A clock's last bit must not decide on which side of a bound a bucket is.
_ROUNDING = 1 + 1e-9


class StagesCollector(Collector):
    """Chains by the name that their metrics carry; the mapping may change between two readings."""

    def __init__(self, chains: Mapping[str, Bound], *, prefix: str = "stage") -> None:
        self._chains = chains
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        rows = [
            ((name, snapshot.stage), snapshot) for name, one in self._chains.items() for snapshot in one.snapshots()
        ]
        for column, text in _COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"{self._prefix}_{column}", text, labels=_LABELS), rows, column)
        for column, text in _GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"{self._prefix}_{column}", text, labels=_LABELS), rows, column)
        yield self._workers(rows)
        yield self._states(rows)
        for column, text in _DURATIONS.items():
            family = HistogramMetricFamily(f"{self._prefix}_{column}_seconds", text, labels=_LABELS)
            for labels, snapshot in rows:
                durations: Durations = getattr(snapshot, column)
                family.add_metric(labels, _buckets(durations), sum_value=durations.total_s)
            yield family

    def _filled(
        self,
        family: CounterMetricFamily | GaugeMetricFamily,
        rows: list[tuple[tuple[str, str], Snapshot]],
        column: str,
    ) -> Metric:
        for labels, snapshot in rows:
            family.add_metric(labels, getattr(snapshot, column))
        return family

    def _workers(self, rows: list[tuple[tuple[str, str], Snapshot]]) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}_workers", "How many events may be worked on", labels=_LABELS)
        for labels, snapshot in rows:
            if snapshot.workers is not None:
                family.add_metric(labels, snapshot.workers)
        return family

    def _states(self, rows: list[tuple[tuple[str, str], Snapshot]]) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}_state", "1 for the state it is in", labels=(*_LABELS, "state"))
        for labels, snapshot in rows:
            if snapshot.state:
                family.add_metric((*labels, snapshot.state), 1)
        return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """How many stay under each bound."""
    cumulative = list(durations.cumulative())
    found = []
    for bound_s in _BOUNDS_S:
        under = max((number for upper_s, number in cumulative if upper_s <= bound_s * _ROUNDING), default=0)
        found.append((str(bound_s), float(under)))
    return [*found, ("+Inf", float(durations.count))]
