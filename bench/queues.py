"""Queues: messages pushed, pulled and acked a second from one process, at ten facets and at a hundred thousand.

And jobs a second that a handler gets which does nothing: directly on Valkey, and over HTTP from one web process.
"""

import json

import aiohttp

from bench import children
from bench.bus import ROOT_KEY, a_bus, a_server
from bench.scale import Scale

_START_S_MAX = 30.0
_FACETS = (10, 1_000, 100_000)


async def measure(scale: Scale) -> dict[str, float]:
    counts = {"singles": scale.singles, "batched": scale.backlog // 2, "messages": max(_FACETS)}
    figures = await _looped({"noisy": scale.backlog}, scale)
    for facets in _FACETS:
        figures |= await _looped({"facets": facets, **counts}, scale)
    return {
        **figures,
        **_costs(figures),
        "queues.handled.redis_per_s": await _handled("redis", scale),
        "queues.handled.http_per_s": await _handled("http", scale),
    }


def _costs(figures: dict[str, float]) -> dict[str, float]:
    """How many times as long everything takes with many tenants as with few."""
    few, *many = _FACETS
    return {
        f"queues.{facets}.{how}.cost": figures[f"queues.{few}.{how}_per_s"] / figures[f"queues.{facets}.{how}_per_s"]
        for facets in many
        for how in ("pushed.single", "pushed.batched", "pulled.single", "pulled.batched")
    }


async def _looped(counts: dict[str, int], scale: Scale) -> dict[str, float]:
    """What one process measures on a server of its own: as many messages for few tenants as for many."""
    async with a_server() as server:
        environment = {"BENCH_REDIS_URL": server.url}
        words = ("bench.queue_loop", json.dumps(counts))
        async with children.started(*words, environment=environment) as loop:
            figures: dict[str, float] = json.loads(await loop.line(within_s=_START_S_MAX + 10 * scale.patience_s))
            return figures


async def _handled(how: str, scale: Scale) -> float:
    async with a_bus() as bus:
        headers = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
        url = f"{bus.url}/queues/work"
        async with bus.http.put(url, json={"pattern": ".*"}, headers=headers) as answer:
            answer.raise_for_status()
        await bus.fill(scale.backlog)
        environment = {"BENCH_REDIS_URL": bus.server.url, "BENCH_BUS_URL": bus.url, "BENCH_ROOT_KEY": ROOT_KEY}
        words = ("bench.queue_handlers", how, str(scale.backlog))
        async with children.started(*words, environment=environment) as runner:
            return float(await runner.line(within_s=_START_S_MAX + 10 * scale.patience_s))
