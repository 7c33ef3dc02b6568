"""Latency: from the moment a publisher sends an event to the moment its receiver has it, at light load."""

from bench.bus import a_bus
from bench.children import a_receiver
from bench.load import Spec, percentile
from bench.scale import Scale

PER_S = 50.0
_LAST_S_MAX = 5.0


async def measure(scale: Scale) -> dict[str, float]:
    async with a_receiver() as receiver, a_bus() as bus, bus.a_worker():
        await bus.subscribe(1, f"{receiver.url}/timed", timeout=0, max=100)
        # The first deliveries load scripts and open connections; they are no part of it.
        await bus.fill(100)
        await receiver.until("events", 100, within_s=_LAST_S_MAX)
        await receiver.open()
        loaded = await bus.loaded(Spec(bus.port, bus.publisher, per_s=PER_S, measure_s=scale.light_s))
        tally = await receiver.until("events", loaded.load.requests, within_s=_LAST_S_MAX)
    lags_ms = sorted(tally["lags_ms"])
    if len(lags_ms) < loaded.load.requests:
        raise ValueError(f"{loaded.load.requests} events were published, and {len(lags_ms)} arrived")
    return {
        "latency.p50_ms": percentile(lags_ms, 50),
        "latency.p99_ms": percentile(lags_ms, 99),
        "latency.answer_p50_ms": loaded.load.p50_ms,
        "latency.answer_p99_ms": loaded.load.p99_ms,
    }
