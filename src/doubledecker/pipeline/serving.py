"""Serving: what the measures say of queues: what each handed out, to whom, how fairly, and how long tenants waited."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from doubledecker.model import moment
from doubledecker.model.summary import Serving
from doubledecker.pipeline import fairness, measures
from doubledecker.pipeline.fairness import Claim
from doubledecker.pipeline.tallying import Row, Tally

# Of queues, and of a queue's tenants: more would not be looked at, and have to be kept.
LARGEST_MAX = 20


class QueueTallies:
    """All that is added up about queues."""

    def __init__(self) -> None:
        self.by_queue = Tally(["queue"], measures.SETTLEMENTS)
        self.served = Tally(["queue", "tenant"], ["pulled"])
        self.moments_served = Tally(["queue", "at", "tenant"], ["pulled"])
        self.waited = Tally(["queue", "tenant"], measures.WAITING.sums)
        self.moments_waited = Tally(["queue", "at", "tenant"], measures.WAITING.sums)

    def by_measure(self) -> dict[str, list[Tally]]:
        """What each table's rows are added to."""
        return {
            "settlements": [self.by_queue, self.served, self.moments_served],
            "waiting": [self.waited, self.moments_waited],
        }


@dataclass
class _Tenant:
    """What a queue did for a tenant in some time."""

    pulled: int = 0
    waited_ms: int = 0
    observed_ms: int = 0
    weighted_ms: int = 0


_Tenants = Mapping[str, _Tenant]
_Key = Callable[[Row], object]


def servings(tallies: QueueTallies, ats: Sequence[int]) -> list[Serving]:
    """The queues that handed out or kept waiting the most; `ats` are the moments that fairness is told for."""
    wholes = _grouped(tallies.served.rows(), tallies.waited.rows(), lambda row: row["queue"])
    parts = _grouped(
        tallies.moments_served.rows(), tallies.moments_waited.rows(), lambda row: (row["queue"], _ms(row["at"]))
    )
    settled = {row["queue"]: row for row in tallies.by_queue.rows()}
    largest = sorted(wholes, key=lambda queue: (-_asked_in_all(wholes[queue]), str(queue)))[:LARGEST_MAX]
    return [
        _serving(str(queue), settled.get(queue, {}), wholes[queue], [parts.get((queue, at), {}) for at in ats])
        for queue in largest
    ]


def _serving(name: str, settled: Row, whole: _Tenants, moments: Sequence[_Tenants]) -> Serving:
    tenants = {tenant: held for tenant, held in whole.items() if tenant != measures.OBSERVED}
    claims = _claims(whole)
    served = sum(held.pulled for held in tenants.values())
    shown = sorted(tenants, key=lambda tenant: (-claims[tenant].asked, tenant))[:LARGEST_MAX]
    return Serving(
        name,
        {word: _whole(settled.get(word, 0)) for word in measures.SETTLEMENTS},
        len(tenants),
        {tenant: tenants[tenant].pulled / served for tenant in shown if served},
        _fairness(whole),
        [_fairness(each) for each in moments],
        {tenant: _wait_ms(tenants[tenant]) for tenant in shown if _is_observed(whole)},
    )


def _fairness(tenants: _Tenants) -> float | None:
    return fairness.index(_claims(tenants)) if _is_observed(tenants) else None


def _claims(tenants: _Tenants) -> dict[str, Claim]:
    observed_ms = max(1, tenants[measures.OBSERVED].observed_ms) if measures.OBSERVED in tenants else 1
    return {
        tenant: Claim(
            held.pulled,
            held.pulled + held.waited_ms / observed_ms,
            held.weighted_ms / held.observed_ms if held.weighted_ms else 1.0,
        )
        for tenant, held in tenants.items()
        if tenant != measures.OBSERVED
    }


def _is_observed(tenants: _Tenants) -> bool:
    """Whether it is known what was asked for, and not only what was got."""
    return measures.OBSERVED in tenants and tenants[measures.OBSERVED].observed_ms > 0


def _wait_ms(held: _Tenant) -> float | None:
    """By Little's law: all the time that messages waited, over how many were served."""
    if not held.pulled:
        return None if held.waited_ms else 0.0
    return held.waited_ms / held.pulled


def _asked_in_all(tenants: _Tenants) -> float:
    return sum(claim.asked for claim in _claims(tenants).values())


def _grouped(served: Iterable[Row], waited: Iterable[Row], by: _Key) -> dict[object, dict[str, _Tenant]]:
    found: dict[object, dict[str, _Tenant]] = defaultdict(lambda: defaultdict(_Tenant))
    for row in served:
        found[by(row)][str(row["tenant"])].pulled = _whole(row["pulled"])
    for row in waited:
        held = found[by(row)][str(row["tenant"])]
        held.waited_ms, held.observed_ms = _whole(row["waited_ms"]), _whole(row["observed_ms"])
        held.weighted_ms = _whole(row["weighted_ms"])
    return found


def _ms(value: object) -> int:
    assert isinstance(value, datetime)
    return moment.to_ms(value)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
