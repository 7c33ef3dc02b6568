"""Latency: from the moment a publisher sends an event to the moment its receiver has it, at light load.

And what an event costs there: processor time, and calls to Valkey.
"""

import asyncio
import time

from redis.asyncio import Redis

from bench import calls, children
from bench.bus import Bus, a_bus
from bench.children import Child, Loaded, Receiver, a_receiver
from bench.load import Spec, percentile
from bench.scale import Scale

PER_S = 50.0
_START_S_MAX = 30.0
_LAST_S_MAX = 10.0
# For how long calls are counted, without events and with them, apart from what is timed: as long as the rarest
# housekeeping takes to come again. In 4 s an idle worker made 152, 186 and 159 calls: a tenth of a call an event.
_CALLS_S = 10.0


async def measure(scale: Scale) -> dict[str, float]:
    async with a_receiver() as receiver, a_bus() as bus, bus.a_worker() as worker:
        await subscribe(bus, receiver)
        loaded, lags_ms = await trickle(bus, worker, receiver, per_s=PER_S, seconds=scale.light_s)
        async with Redis.from_url(bus.server.url) as redis, calls.watched(redis, worker.pid) as watch:
            await asyncio.sleep(_CALLS_S)
            idle_per_s = watch.calls / _CALLS_S
            started_s = time.monotonic()
            counted, _ = await trickle(bus, worker, receiver, per_s=PER_S, seconds=_CALLS_S)
            beyond = watch.calls - idle_per_s * (_CALLS_S + time.monotonic() - started_s)
    return {
        "latency.p50_ms": percentile(lags_ms, 50),
        "latency.p99_ms": percentile(lags_ms, 99),
        "latency.answer_p50_ms": loaded.load.p50_ms,
        "latency.answer_p99_ms": loaded.load.p99_ms,
        **{f"latency.{who}_cpu_us": used / len(lags_ms) * 1e6 for who, used in loaded.cpu_s.items()},
        # Housekeeping still comes a few calls earlier or later, which shows in the second decimal.
        "latency.worker_calls": round(beyond / counted.load.requests, 1),
        "latency.idle_calls_per_s": idle_per_s,
    }


async def subscribe(bus: Bus, receiver: Receiver) -> None:
    """A subscriber that gets each event at once, after its first: those load scripts and open connections."""
    await bus.subscribe(1, f"{receiver.url}/timed", timeout=0, max=100)
    await bus.fill(100)
    tally = await receiver.until("events", 100, within_s=_START_S_MAX)
    if tally["events"] < 100:
        raise ValueError(f"{tally['events']} of the first 100 events arrived within {_START_S_MAX:.0f} s")


async def trickle(
    bus: Bus, worker: Child, receiver: Receiver, *, per_s: float, seconds: float
) -> tuple[Loaded, list[float]]:
    """Publish evenly, one event a request; with the load comes how long each event took, in order of length."""
    await receiver.open()
    spec = Spec(bus.port, bus.publisher, per_s=per_s, measure_s=seconds)
    loaded = await children.loaded(spec, {**bus.pids, "worker": worker.pid})
    tally = await receiver.until("timed", loaded.load.requests, within_s=_LAST_S_MAX)
    lags_ms = sorted(tally["lags_ms"])
    if len(lags_ms) < loaded.load.requests:
        raise ValueError(f"{loaded.load.requests} events were published, and {len(lags_ms)} arrived")
    return loaded, lags_ms
