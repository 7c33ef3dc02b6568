"""Neighbours: how long events take to a healthy subscriber beside one that hangs, fails, floods or refuses.

The neighbour has a topic of its own with a backlog of batches of one event, so that the two share nothing but the
worker and Valkey. Undisturbed means without a neighbour.
"""

from bench import latency
from bench.bus import a_bus
from bench.children import Receiver, a_receiver
from bench.load import percentile
from bench.scale import Scale

_PER_S = 100.0
_TOPIC = "neighbours"
_BACKLOG = 2_000
_SEEN_S_MAX = 30.0


async def measure(scale: Scale) -> dict[str, float]:
    quiet_ms = await _p99_ms(None, scale)
    figures = {"neighbours.none.p99_ms": quiet_ms}
    for kind in ("hang", "fail", "flood", "refuse"):
        p99_ms = await _p99_ms(kind, scale)
        figures |= {f"neighbours.{kind}.p99_ms": p99_ms, f"neighbours.{kind}.times": p99_ms / quiet_ms}
    return figures


async def _p99_ms(kind: str | None, scale: Scale) -> float:
    async with a_receiver() as receiver, a_receiver() as neighbour, a_bus() as bus:
        if kind is not None:
            await bus.subscribe(1, f"{neighbour.url}/{kind}", topic=_TOPIC, timeout=0, max=1)
            await bus.publish(_TOPIC, _BACKLOG, per_request=100)
        async with bus.a_worker() as worker:
            if kind is not None:
                await _until_called(neighbour)
            await latency.subscribe(bus, receiver)
            _, lags_ms = await latency.trickle(bus, worker, receiver, per_s=_PER_S, seconds=scale.light_s)
    return percentile(lags_ms, 99)


async def _until_called(neighbour: Receiver) -> None:
    tally = await neighbour.until("requests", 1, within_s=_SEEN_S_MAX)
    if not tally["requests"]:
        raise ValueError("the neighbour was not called")
