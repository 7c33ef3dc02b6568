"""What clients use of their quotas, for `status` and for metrics."""

import math
from collections import Counter
from dataclasses import dataclass

from doubledecker.model.quota import Quotas
from doubledecker.model.routing import Registry
from doubledecker.store import backlogs, registry, streams
from doubledecker.store.partitions import Partitions


@dataclass(frozen=True)
class Use:
    """What one client has, by the name of the bound that counts it."""

    client: str
    counts: dict[str, int]

    def shares(self, quotas: Quotas) -> dict[str, float]:
        """How much of each bound is used; of none where there is none."""
        return {bound: count / (getattr(quotas, bound) or math.inf) for bound, count in self.counts.items()}


async def look(partitions: Partitions, snapshot: Registry) -> list[Use]:
    """Every client that uses anything, by id."""
    queues = Counter(queue.owner for queue in snapshot.queues.values())
    ids = sorted(snapshot.tokens)
    found = []
    open_streams = await streams.counts(partitions.home, ids)
    waiting = await backlogs.of_clients(partitions.home, ids)
    rows = zip(ids, await registry.counts_of(partitions.home, ids), waiting, strict=True)
    for id_, (topics, keys), waiting_bytes in rows:
        subscriber = snapshot.subscribers.get(id_)
        counts = {
            "client_topics_max": topics,
            "client_queues_max": queues[id_],
            "client_pattern_steps_max": snapshot.steps(id_),
            "client_subscriptions_max": len(subscriber.topics) if subscriber else 0,
            "client_streams_max": open_streams[id_],
            "client_idempotency_keys_max": keys,
            "client_waiting_bytes_max": waiting_bytes,
        }
        if any(counts.values()):
            found.append(Use(id_, counts))
    return found
