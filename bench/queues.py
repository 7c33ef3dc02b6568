"""Queues: messages pushed, pulled and acked a second from one process, at ten facets and at a hundred thousand."""

import json

from bench import children
from bench.bus import a_server
from bench.scale import Scale

_START_S_MAX = 30.0


async def measure(scale: Scale) -> dict[str, float]:
    counts = {"singles": scale.singles // 2, "batched": scale.backlog // 2, "noisy": scale.backlog}
    async with a_server() as server:
        environment = {"BENCH_REDIS_URL": server.url}
        words = ("bench.queue_loop", json.dumps(counts))
        async with children.started(*words, environment=environment) as loop:
            figures: dict[str, float] = json.loads(await loop.line(within_s=_START_S_MAX + 10 * scale.patience_s))
    many, few = figures["queues.100000.batched_per_s"], figures["queues.10.batched_per_s"]
    return {**figures, "queues.cost_of_facets": few / many}
