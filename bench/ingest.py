"""Ingest: how many requests and events one web process accepts. No worker runs: what is accepted waits in batches."""

from redis.asyncio import Redis

from bench.bus import Bus, a_bus
from bench.children import Loaded
from bench.events import TOPIC
from bench.load import Spec
from bench.scale import Scale

_NOBODY = "http://127.0.0.1:9/"  # never called: there is no worker


async def measure(scale: Scale) -> dict[str, float]:
    one = await _loaded(scale, subscribers=1)
    ten = await _loaded(scale, subscribers=10)
    array = await _loaded(scale, subscribers=1, kind="events", events_per_request=100, connections=8)
    return {
        **_figures("single", one, events_per_request=1),
        **_figures("single_to_10", ten, events_per_request=1),
        **_figures("array", array, events_per_request=100),
        "ingest.cost_of_10": one.load.per_s / ten.load.per_s,
    }


async def _loaded(scale: Scale, *, subscribers: int, **shape: object) -> Loaded:
    async with a_bus() as bus:
        await bus.subscribe(subscribers, _NOBODY)
        spec = Spec(bus.port, bus.publisher, warm_s=scale.warm_s, measure_s=scale.measure_s, **shape)
        loaded = await bus.loaded(spec)
        await _check(bus, events_least=loaded.load.requests * spec.events_per_request)
        return loaded


async def _check(bus: Bus, *, events_least: int) -> None:
    """A fast answer counts only if the events are there: raises unless the topic has counted them all."""
    async with Redis.from_url(bus.server.url) as redis:
        counted = int(await redis.hget(f"rm:topic:{TOPIC}", "counter") or 0)
    if counted < events_least:
        raise ValueError(f"{events_least} events were answered with a 2xx, and {counted} are in the store")


def _figures(name: str, loaded: Loaded, *, events_per_request: int) -> dict[str, float]:
    events = loaded.load.requests * events_per_request
    return {
        f"ingest.{name}.requests_per_s": loaded.load.per_s,
        f"ingest.{name}.events_per_s": loaded.load.per_s * events_per_request,
        f"ingest.{name}.p50_ms": loaded.load.p50_ms,
        f"ingest.{name}.p99_ms": loaded.load.p99_ms,
        **{f"ingest.{name}.{who}_cpu_us": used / events * 1e6 for who, used in loaded.cpu_s.items()},
    }
