"""Serving: what the measures say of queues: what each handed out, to whom, how fairly, and how long tenants waited.

Fairness is measured in what the queue divides. One that charges by count divides messages, and those waiting are asked
for as they are. One that charges by time divides the time of its consumers: a tenant got what its messages took, and
asked for as much again for each that waits as one of its messages took on average.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from doubledecker.model import fairness, moment
from doubledecker.model.summary import Serving
from doubledecker.pipeline.metrics import measures
from doubledecker.pipeline.metrics.sketches import Row, Totals

# Of queues, and of a queue's tenants: more would not be looked at, and have to be kept.
LARGEST_MAX = 20
# How a message leaves its consumer's hands, which is when it is known what it took.
_ENDS = ("acked", "nacked", "expired")
_SERVED = ("pulled", *_ENDS, "took_ms")


class QueueTotals:
    """All that is added up about queues."""

    def __init__(self) -> None:
        self.by_queue = Totals(["queue"], measures.SETTLEMENTS)
        self.served = Totals(["queue", "tenant"], _SERVED)
        self.moments_served = Totals(["queue", "at", "tenant"], _SERVED)
        self.waited = Totals(["queue", "tenant"], measures.WAITING.sums)
        self.moments_waited = Totals(["queue", "at", "tenant"], measures.WAITING.sums)

    def by_measure(self) -> dict[str, list[Totals]]:
        """What each table's rows are added to."""
        return {
            "settlements": [self.by_queue, self.served, self.moments_served],
            "waiting": [self.waited, self.moments_waited],
        }


@dataclass
class _Tenant:
    """What a queue did for a tenant in some time."""

    pulled: int = 0
    ended: int = 0
    took_ms: int = 0
    waited_ms: int = 0
    observed_ms: int = 0
    weighted_ms: int = 0
    timed_ms: int = 0

    @property
    def weight(self) -> float:
        return self.weighted_ms / self.observed_ms if self.weighted_ms else 1.0

    @property
    def paid_ms(self) -> int:
        """What its messages took, by which it is charged: a millisecond each at least."""
        return max(self.took_ms, self.ended)


_Tenants = Mapping[str, _Tenant]
_Key = Callable[[Row], object]


def servings(totals: QueueTotals, ats: Sequence[int]) -> list[Serving]:
    """The queues that handed out or kept waiting the most; `ats` are the moments that fairness is measured at."""
    wholes = _grouped(totals.served.rows(), totals.waited.rows(), lambda row: row["queue"])
    parts = _grouped(
        totals.moments_served.rows(), totals.moments_waited.rows(), lambda row: (row["queue"], _ms(row["at"]))
    )
    settled = {row["queue"]: row for row in totals.by_queue.rows()}
    largest = sorted(wholes, key=lambda queue: (-_asked_in_all(wholes[queue]), str(queue)))[:LARGEST_MAX]
    return [
        _serving(str(queue), settled.get(queue, {}), wholes[queue], [parts.get((queue, at), {}) for at in ats])
        for queue in largest
    ]


def _serving(name: str, settled: Row, whole: _Tenants, moments: Sequence[_Tenants]) -> Serving:
    tenants = _named(whole)
    claims = _messages(whole)
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
        "time" if _is_timed(whole) else "count",
    )


def _named(tenants: _Tenants) -> dict[str, _Tenant]:
    return {tenant: held for tenant, held in tenants.items() if tenant != measures.OBSERVED}


def _fairness(tenants: _Tenants) -> float | None:
    if not _is_observed(tenants):
        return None
    return fairness.index(_times(tenants) if _is_timed(tenants) else _messages(tenants))


def _messages(tenants: _Tenants) -> dict[str, fairness.Claim]:
    """What each got and asked for, in messages."""
    return {
        tenant: fairness.Claim(held.pulled, held.pulled + _waiting(tenants, held), held.weight)
        for tenant, held in _named(tenants).items()
    }


def _times(tenants: _Tenants) -> dict[str, fairness.Claim]:
    """What each got and asked for, in milliseconds of consumers."""
    named = _named(tenants)
    ended = sum(held.ended for held in named.values())
    # Of a tenant whose costs are not known the others' are the best guess, as they are for the queue itself.
    mean_ms = sum(held.paid_ms for held in named.values()) / ended if ended else 1.0
    return {
        tenant: fairness.Claim(
            held.paid_ms,
            held.paid_ms + _waiting(tenants, held) * (held.paid_ms / held.ended if held.ended else mean_ms),
            held.weight,
        )
        for tenant, held in named.items()
    }


def _waiting(tenants: _Tenants, held: _Tenant) -> float:
    """How many messages of a tenant waited, on average."""
    return held.waited_ms / max(1, tenants[measures.OBSERVED].observed_ms) if measures.OBSERVED in tenants else 0.0


def _is_timed(tenants: _Tenants) -> bool:
    """Whether the queue charged by time, for most of the time in which it was observed."""
    observed = tenants.get(measures.OBSERVED, _Tenant())
    return 2 * observed.timed_ms > observed.observed_ms


def _is_observed(tenants: _Tenants) -> bool:
    """Whether it is known what was asked for, and not only what was got."""
    return measures.OBSERVED in tenants and tenants[measures.OBSERVED].observed_ms > 0


def _wait_ms(held: _Tenant) -> float | None:
    """The mean wait by Little's law: all the time that messages waited, over how many were served."""
    if not held.pulled:
        return None if held.waited_ms else 0.0
    return held.waited_ms / held.pulled


def _asked_in_all(tenants: _Tenants) -> float:
    return sum(claim.asked for claim in _messages(tenants).values())


def _grouped(served: Iterable[Row], waited: Iterable[Row], by: _Key) -> dict[object, dict[str, _Tenant]]:
    found: dict[object, dict[str, _Tenant]] = defaultdict(lambda: defaultdict(_Tenant))
    for row in served:
        held = found[by(row)][str(row["tenant"])]
        held.pulled, held.took_ms = _whole(row["pulled"]), _whole(row["took_ms"])
        held.ended = sum(_whole(row[word]) for word in _ENDS)
    for row in waited:
        held = found[by(row)][str(row["tenant"])]
        held.waited_ms, held.observed_ms = _whole(row["waited_ms"]), _whole(row["observed_ms"])
        held.weighted_ms, held.timed_ms = _whole(row["weighted_ms"]), _whole(row["timed_ms"])
    return found


def _ms(value: object) -> int:
    assert isinstance(value, datetime)
    return moment.to_ms(value)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
