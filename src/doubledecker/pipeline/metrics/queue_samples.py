"""Sample: how many messages of each tenant wait in each queue, added to the measures as time waited.

The journal says what a queue handed out, not what it was asked for. So the queues are looked at with every round of
measuring, and what waits then is taken to have waited since the last look: a tenant with 10 messages in line for half a
minute has waited 300 000 message-milliseconds. These add up over time and partitions like all measures.
"""

import asyncio
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from doubledecker.model import moment
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.metrics import measures
from doubledecker.store import facets, queue_contents, registry
from doubledecker.store.facets import WaitingMessages

# Bounds of one look, in each partition: it takes milliseconds of the server's time at most.
_QUEUES_MAX, _TENANTS_MAX = 1_000, 1_000
# The mark in the table's log: when the last sample was taken, by the bus's clock.
_MARK = "sampled_at"

Sample = Mapping[str, Mapping[str, WaitingMessages]]


@dataclass(frozen=True)
class _Look:
    """What waits at one moment, by queue and tenant, and which queues charge by time."""

    at: int
    queues: Sample
    timed: AbstractSet[str]


def sample(access: Access, root: str, *, interval_ms: int, is_active: bool) -> None:
    """Add what waits now. A bus on which nothing waits and nothing is served leaves no trace."""
    look = asyncio.run(_look(access))
    if not (is_active or any(look.queues.values())):
        return
    table = measures.table_of(root, measures.WAITING.name)
    opened = table.open()
    before = opened.transaction_version(_MARK) or look.at - interval_ms
    # While no pipeline ran nothing was observed, so a long gap is not counted.
    observed_ms = max(0, min(look.at - before, 2 * interval_ms))
    found = list(rows(look.queues, at=moment.from_ms(look.at), observed_ms=observed_ms, timed=look.timed))
    batch = pa.RecordBatch.from_pylist(found, schema=measures.WAITING.schema)
    table.commit(opened, files.write(table, [batch]), {_MARK: look.at})


def rows(queues: Sample, *, at: datetime, observed_ms: int, timed: AbstractSet[str]) -> Iterator[dict[str, object]]:
    """What one look adds to its minute and to its hour."""
    starts = {"minute": at.replace(second=0, microsecond=0), "hour": at.replace(minute=0, second=0, microsecond=0)}
    for span, start in starts.items():
        for queue, tenants in queues.items():
            about = {"span": span, "at": start, "queue": queue, "observed_ms": observed_ms, "timed_ms": 0}
            timed_ms = observed_ms if queue in timed else 0
            yield {**about, "tenant": measures.OBSERVED, "waited_ms": 0, "weighted_ms": 0, "timed_ms": timed_ms}
            for tenant, held in tenants.items():
                waited_ms, weighted_ms = held.count * observed_ms, round(held.weight * observed_ms)
                yield {**about, "tenant": tenant, "waited_ms": waited_ms, "weighted_ms": weighted_ms}


async def _look(access: Access) -> _Look:
    queues: dict[str, dict[str, WaitingMessages]] = {}
    async with journal_reader.connected(access) as bus:
        for partition in bus.all:
            for queue in sorted(await queue_contents.names_held(partition))[:_QUEUES_MAX]:
                tenants = queues.setdefault(queue, {})
                for found in await facets.waiting(partition, queue, most=_TENANTS_MAX):
                    before = tenants.get(found.tenant)
                    count = found.count + (before.count if before else 0)
                    tenants[found.tenant] = WaitingMessages(found.tenant, count, found.weight)
        known = await registry.queues(bus.home, list(queues))
        # What is pushed to a callback is charged by count, whatever its queue says.
        timed = {queue.name for queue in known if queue.charge == "time" and not queue.callback}
        return _Look(await bus.home.time_ms(), queues, timed)
