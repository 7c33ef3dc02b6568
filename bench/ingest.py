"""Ingest: how many requests and events one web process accepts. No worker runs: what is accepted waits in batches."""

from bench.bus import a_bus
from bench.children import Loaded
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
        return await bus.loaded(spec)


def _figures(name: str, loaded: Loaded, *, events_per_request: int) -> dict[str, float]:
    events = loaded.load.requests * events_per_request
    return {
        f"ingest.{name}.requests_per_s": loaded.load.per_s,
        f"ingest.{name}.events_per_s": loaded.load.per_s * events_per_request,
        f"ingest.{name}.p50_ms": loaded.load.p50_ms,
        f"ingest.{name}.p99_ms": loaded.load.p99_ms,
        **{f"ingest.{name}.{who}_cpu_us": used / events * 1e6 for who, used in loaded.cpu_s.items()},
    }
