"""Drain: how fast one worker process delivers a backlog of one subscriber, in large batches and one by one.

The receiver holds its answers until the worker has started and every call that it may make is under way. Then the
gate opens and the clock starts, so that the start of a Python process is no part of it.
"""

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis

from bench import calls, children
from bench.bus import Bus, a_bus
from bench.children import Receiver, a_receiver
from bench.scale import Scale

CONCURRENCY = 4  # calls to a subscriber at a time, as by default
_START_S_MAX = 30.0
# Batches of a thousand at least: of ten, four are held at the gate, and the other six are over before anything is warm.
_LARGE = 60


@dataclass(frozen=True)
class Drained:
    """What was delivered while the gate was open, and what it took."""

    events: int
    batches: int
    seconds: float
    worker_s: float
    valkey_s: float
    calls: int


async def measure(scale: Scale) -> dict[str, float]:
    return {
        **await _drained(100, scale.backlog, scale),
        **await _drained(1000, max(scale.backlog, _LARGE * 1000), scale),
        **await _drained(1, scale.singles, scale),
    }


async def _drained(events_max: int, backlog: int, scale: Scale) -> dict[str, float]:
    async with a_receiver(is_open=False) as receiver, a_bus() as bus:
        await bus.subscribe(1, receiver.url, max=events_max)
        await bus.fill(backlog)
        # What the receiver holds when the gate opens is not counted.
        counted = backlog - CONCURRENCY * events_max
        drained = await deliver(bus, receiver, counted, held=CONCURRENCY, within_s=scale.patience_s)
    key = f"drain.{events_max}"
    return {
        f"{key}.events_per_s": drained.events / drained.seconds,
        f"{key}.batches_per_s": drained.batches / drained.seconds,
        f"{key}.worker_cpu_us": drained.worker_s / drained.events * 1e6,
        f"{key}.valkey_cpu_us": drained.valkey_s / drained.events * 1e6,
        f"{key}.calls_per_batch": drained.calls / drained.batches,
    }


async def deliver(
    bus: Bus, receiver: Receiver, count: int, *, held: int, within_s: float, workers: int = 1, **settings: int
) -> Drained:
    """Start workers, wait until the shut receiver holds so many calls, open it, and let them deliver so many events."""
    async with contextlib.AsyncExitStack() as running, Redis.from_url(bus.server.url) as redis:
        started = [await running.enter_async_context(bus.a_worker(**settings)) for _ in range(workers)]
        pids = [worker.pid for worker in started]
        found = await receiver.until("held", held, within_s=_START_S_MAX)
        if found["held"] != held:
            raise ValueError(f"{workers} worker processes make {found['held']} calls at a time, not {held}")
        calls_before = await calls.count(redis)
        worker_s, valkey_s = sum(map(children.cpu_s, pids)), children.cpu_s(bus.server.pid)
        await receiver.open()
        tally = await receiver.until("events", count, within_s=within_s)
        return Drained(
            events=tally["events"],
            batches=tally["requests"],
            seconds=tally["seconds"],
            worker_s=sum(map(children.cpu_s, pids)) - worker_s,
            valkey_s=children.cpu_s(bus.server.pid) - valkey_s,
            calls=await calls.count(redis) - calls_before,
        )
