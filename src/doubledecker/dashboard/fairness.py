"""How fairly a queue serves its tenants: what each got in the last minute, against what it asked for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from doubledecker.model import fairness
from doubledecker.model.fairness import Claim
from doubledecker.model.queue import FacetRule
from doubledecker.queues.view import FacetShare, QueueOverview


@dataclass(frozen=True)
class TenantShare:
    """A tenant of a queue: its part of what was served, and of what was asked for; and how it stands."""

    tenant: str
    served: float
    offered: float
    messages: int
    waiting: int
    in_flight: int
    oldest_at: int | None
    rule: FacetRule


@dataclass(frozen=True)
class QueueFairness:
    """A queue's tenants, those who asked for the most first; Jain's index of what each got over its fair share."""

    queue: QueueOverview
    tenants: Sequence[TenantShare]
    jain: float | None

    @property
    def widest(self) -> float:
        """The greatest share, which fills a bar."""
        return max((max(each.served, each.offered) for each in self.tenants), default=0.0) or 1.0


def weigh(queue: QueueOverview, served: Counter[str], facets: Sequence[FacetShare]) -> QueueFairness:
    """What tenants got and asked for, in messages: it got what was handed out, and asked for what waits besides."""
    known = {facet.tenant: facet for facet in facets}
    claims = {
        tenant: Claim(served[tenant], served[tenant] + (known[tenant].waiting if tenant in known else 0), weight)
        for tenant in served.keys() | known.keys()
        for weight in [known[tenant].rule.weight if tenant in known else 1.0]
    }
    got, asked = served.total() or 1, sum(claim.asked for claim in claims.values()) or 1
    rows = [_share(name, claim, known.get(name), got=got, asked=asked) for name, claim in claims.items()]
    index = fairness.index({name: claim for name, claim in claims.items() if claim.weight > 0})
    return QueueFairness(queue, sorted(rows, key=lambda row: (-row.offered, row.tenant)), index)


def _share(tenant: str, claim: Claim, facet: FacetShare | None, *, got: float, asked: float) -> TenantShare:
    return TenantShare(
        tenant,
        served=claim.got / got,
        offered=claim.asked / asked,
        messages=int(claim.got),
        waiting=facet.waiting if facet else 0,
        in_flight=facet.in_flight if facet else 0,
        oldest_at=facet.oldest_at if facet else None,
        rule=facet.rule if facet else FacetRule(),
    )
