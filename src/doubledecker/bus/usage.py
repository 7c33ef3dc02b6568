"""What clients use of their quotas, for `status` and for metrics: every bound, with what is used of it.

Most is counted in Redis. How many requests of a client are under way, and how many connections an address has, each web
process knows for itself, and its bounds are a part of those of its command: the process with the most is shown, as it
last reported. Bounds are those that web processes report, since a command may have other settings. The copies of one
event are those that the last events would have, since others are not known.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.quota import Quotas, filter_steps
from doubledecker.store import backlogs, facets, quotas, registry
from doubledecker.store.partitions import Partitions
from doubledecker.store.processes import MetricSample, ProcessReport

# What a web process reports, by client and of the address with the most; and its bounds.
REQUESTS, REQUESTS_BOUND = "doubledecker_client_requests", "doubledecker_client_requests_max"
CONNECTIONS, CONNECTIONS_BOUND = "doubledecker_address_connections", "doubledecker_address_connections_max"
# The other bounds that it checks, by name. How many bytes may wait depends on memory, and is in Redis.
BOUNDS = "doubledecker_process_quota_max"
SETTINGS = tuple(
    field.name for field in fields(Quotas) if field.name not in {"client_requests_max", "client_waiting_bytes_max"}
)
# Clients, or queues, that are looked at before others have their turn.
_TOGETHER = 250

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Use:
    """What one client has, by the name of the bound that counts it."""

    client: str
    counts: dict[str, int]

    def nearness(self, bounds: dict[str, int]) -> float:
        """How much is used of the bound that is used most; nothing where there is none."""
        return max(count / (bounds[name] or math.inf) for name, count in self.counts.items())


@dataclass(frozen=True)
class QuotaUsage:
    """Every client that uses anything, by id; what all of them use together; every bound (0: none)."""

    clients: Sequence[Use]
    together: dict[str, int]
    bounds: dict[str, int]


async def look(
    partitions: Partitions, live: LiveRegistry, reports: Sequence[ProcessReport], *, connections_max: int
) -> QuotaUsage:
    """Read everything; `connections_max` is the bound of an address where no web process reports its own."""
    snapshot = live.snapshot
    of_web = _OfWeb(reports)
    bounds = {field.name: getattr(live.bounds, field.name) for field in fields(Quotas)} | of_web.bounds()
    bounds |= {"client_requests_max": of_web.most(REQUESTS_BOUND, bounds["client_requests_max"])}
    bounds |= {"address_connections_max": of_web.most(CONNECTIONS_BOUND, connections_max)}
    queues = Counter(queue.owner for queue in snapshot.queues.values())
    refusing = Counter(queue.owner for queue in snapshot.queues.values() if queue.refuses)
    copies, tenants = await live.copies.most(), await _tenants(partitions, live)
    filters = snapshot.filters_of_clients()
    found: list[Use] = []
    for ids in _pieces(sorted(snapshot.tokens)):
        rows = zip(ids, await _counts(partitions, ids), strict=True)
        for id_, counts in rows:
            own = snapshot.subscriptions_of(id_)
            counts |= {
                "client_queues_max": queues[id_],
                "client_refusing_queues_max": refusing[id_],
                "client_copies_max": copies.get(id_, 0),
                "client_pattern_steps_max": snapshot.steps(id_),
                "client_filter_steps_max": filter_steps(filters.get(id_, {}).values()),
                "client_subscribers_max": len(own),
                "client_subscriptions_max": sum(len(each.topics) for each in own),
                "client_requests_max": of_web.requests.get(id_, 0),
                "queue_tenants_max": tenants.get(id_, 0),
            }
            if any(counts.values()):
                found.append(Use(id_, counts))
    together = {
        "pattern_steps_max": snapshot.steps_total,
        "filter_steps_max": filter_steps(each for them in filters.values() for each in them.values()),
        "address_connections_max": of_web.most(CONNECTIONS, 0),
    }
    return QuotaUsage(found, together, bounds)


class _OfWeb:
    """What web processes report of themselves."""

    def __init__(self, reports: Sequence[ProcessReport]) -> None:
        self._samples: dict[str, list[MetricSample]] = {}
        for family in itertools.chain.from_iterable(report.families for report in reports):
            self._samples.setdefault(family.name, []).extend(family.samples)
        self.requests: dict[str, int] = {}
        for sample in self._samples.get(REQUESTS, ()):
            client = sample.labels["client"]
            self.requests[client] = max(self.requests.get(client, 0), int(sample.value))

    def bounds(self) -> dict[str, int]:
        """The bounds that web processes check, the most generous of each; 0 is none."""
        found: dict[str, int] = {}
        for sample in self._samples.get(BOUNDS, ()):
            name, bound = sample.labels["quota"], int(sample.value)
            found[name] = max(found.get(name, bound), bound, key=lambda each: each or math.inf)
        return found

    def most(self, name: str, otherwise: int) -> int:
        """The largest of all processes."""
        return max((int(sample.value) for sample in self._samples.get(name, ())), default=otherwise)


def _pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[first : first + _TOGETHER] for first in range(0, len(items), _TOGETHER))


async def _counts(partitions: Partitions, ids: Sequence[str]) -> list[dict[str, int]]:
    home = partitions.home
    rows = zip(
        await registry.counts_of(home, ids),
        (await quotas.counts(home, ids)).values(),
        await backlogs.of_clients(home, ids),
        await quotas.taken(home, ids),
        strict=True,
    )
    return [
        {
            "client_topics_max": topics,
            "client_streams_max": open_streams,
            "client_events_per_s": events,
            "client_idempotency_keys_max": keys,
            "client_waiting_bytes_max": waiting,
        }
        for (topics, keys), open_streams, waiting, events in rows
    ]


async def _tenants(partitions: Partitions, live: LiveRegistry) -> dict[str, int]:
    """The tenants of the queue that has the most, by client."""
    owned = [queue for queue in live.snapshot.queues.values() if not queue.is_roots]
    found: dict[str, int] = {}
    for queues in _pieces(owned):
        for partition in partitions.all:
            counts = await facets.count_tenants(partition, [queue.name for queue in queues])
            for queue, count in zip(queues, counts, strict=True):
                found[queue.owner] = max(found.get(queue.owner, 0), count)
    return found
