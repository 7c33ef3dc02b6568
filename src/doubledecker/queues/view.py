"""How a queue stands over all partitions: for its page, for metrics, and before anything is destroyed."""

import asyncio
from collections import Counter as Sum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.store import facets, queue_contents
from doubledecker.store.facets import FacetRecord
from doubledecker.store.partitions import Partition, Partitions


@dataclass(frozen=True)
class FacetShare:
    """One tenant's line over all partitions; `share` is the part of the service it is due while others wait too."""

    tenant: str
    waiting: int
    in_flight: int
    oldest_at: int | None
    rule: FacetRule
    share: float


@dataclass(frozen=True)
class QueueOverview:
    """A queue at one moment; `waiting` are those that could be pulled, now or when their facet's turn comes."""

    queue: RegisteredQueue
    waiting: int
    in_flight: int
    delayed: int
    dead: int
    counters: dict[str, int]


# The line of each has to be asked for its length.
_LOOKED_AT_MAX = 1_000
_TOGETHER = 50


class _Timed(msgspec.Struct, gc=False):
    """The only part of a stored message that a view looks at."""

    t: int = 0


_TIMED = msgspec.json.Decoder(_Timed)


async def look(partitions: Partitions, queue: RegisteredQueue) -> QueueOverview:
    """Numbers alone, one round trip a partition."""
    [seen] = await look_all(partitions, [queue])
    return seen


async def look_all(partitions: Partitions, queues: Sequence[RegisteredQueue]) -> list[QueueOverview]:
    """Many queues, some at a time, so that what others ask meanwhile does not wait for all of them."""
    found: list[QueueOverview] = []
    for first in range(0, len(queues), _TOGETHER):
        some = queues[first : first + _TOGETHER]
        parts = await asyncio.gather(*(facets.look(partition, some) for partition in partitions.all))
        found += [_joined_view(queue, seen) for queue, *seen in zip(some, *parts, strict=True)]
    return found


def _joined_view(queue: RegisteredQueue, parts: Sequence[facets.QueueRecord]) -> QueueOverview:
    """A queue over all partitions."""
    counters: Sum[str] = Sum()
    for part in parts:
        counters.update(part.counters)
    counters.pop("sequence", None)
    in_flight, delayed = sum(part.in_flight for part in parts), sum(part.delayed for part in parts)
    return QueueOverview(
        queue=queue,
        waiting=sum(part.length for part in parts) - in_flight - delayed,
        in_flight=in_flight,
        delayed=delayed,
        dead=sum(part.dead for part in parts),
        counters=dict(counters),
    )


async def look_at_facets(partitions: Partitions, queue: RegisteredQueue, *, most: int) -> list[FacetShare]:
    """Tenants that have something waiting or a rule, those with the most waiting first; of very many, of the next."""
    found = await asyncio.gather(*(_facets(partition, queue, _LOOKED_AT_MAX) for partition in partitions.all))
    return sorted(_joined([row for part in found for row in part]), key=lambda facet: -facet.waiting)[:most]


async def look_at_facet(partitions: Partitions, queue: RegisteredQueue, tenant: str) -> FacetShare:
    """One tenant, whatever it has."""
    found = await asyncio.gather(*(_with_age(partition, queue, [tenant]) for partition in partitions.all))
    return _joined([row for part in found for row in part])[0]


async def _facets(partition: Partition, queue: RegisteredQueue, most: int) -> list[tuple[FacetRecord, int | None]]:
    return await _with_age(partition, queue, await facets.names(partition, queue, most=most))


async def _with_age(
    partition: Partition, queue: RegisteredQueue, tenants: Sequence[str]
) -> list[tuple[FacetRecord, int | None]]:
    rows = await facets.facets(partition, queue, tenants)
    texts = dict(await queue_contents.read(partition, queue, [row.oldest_id for row in rows if row.oldest_id]))
    return [(row, _TIMED.decode(texts[row.oldest_id]).t if row.oldest_id in texts else None) for row in rows]


def _joined(rows: Sequence[tuple[FacetRecord, int | None]]) -> list[FacetShare]:
    """One facet a tenant: the default tenant may be in several partitions."""
    by_tenant: dict[str, list[tuple[FacetRecord, int | None]]] = {}
    for row in rows:
        by_tenant.setdefault(row[0].tenant, []).append(row)
    weights = {
        tenant: parts[0][0].rule.weight
        for tenant, parts in by_tenant.items()
        if any(view.waiting for view, _ in parts) and not parts[0][0].rule.paused
    }
    total = sum(weights.values()) or 1.0
    return [
        FacetShare(
            tenant=tenant,
            waiting=sum(view.waiting for view, _ in parts),
            in_flight=sum(view.in_flight for view, _ in parts),
            oldest_at=min((at for _, at in parts if at is not None), default=None),
            rule=parts[0][0].rule,
            share=round(weights.get(tenant, 0.0) / total, 6),
        )
        for tenant, parts in by_tenant.items()
    ]
