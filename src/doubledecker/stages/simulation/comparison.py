"""What callers saw, in a few measures, and two reports side by side.

Chains that are compared with one seed meet the same traffic, so their replications are pairs, and the difference is
estimated from the pairs: much of what chance did to the one, it did to the other too.
"""

from collections.abc import Callable, Mapping

from doubledecker.stages.simulation.report import Estimate, Replication, Report, estimate

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
    """By how much the latter's measures are higher."""
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
