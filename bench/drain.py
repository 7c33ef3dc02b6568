"""Drain: how fast one worker process delivers a backlog of one subscriber, in large batches and one by one.

The receiver holds its answers until the worker has started and every call that it may make is under way. Then the
gate opens and the clock starts, so that the start of a Python process is no part of it.
"""

from bench import children
from bench.bus import Bus, a_bus
from bench.children import Receiver, a_receiver
from bench.scale import Scale

CONCURRENCY = 4  # calls to a subscriber at a time, as by default
_START_S_MAX = 30.0


async def measure(scale: Scale) -> dict[str, float]:
    return {
        **await _drained(100, scale.backlog, scale),
        **await _drained(1000, scale.backlog, scale),
        **await _drained(1, scale.singles, scale),
    }


async def _drained(events_max: int, backlog: int, scale: Scale) -> dict[str, float]:
    async with a_receiver(is_open=False) as receiver, a_bus() as bus:
        await bus.subscribe(1, receiver.url, max=events_max)
        await bus.fill(backlog)
        return await _delivered(bus, receiver, events_max, backlog, within_s=scale.patience_s)


async def _delivered(
    bus: Bus, receiver: Receiver, events_max: int, backlog: int, *, within_s: float
) -> dict[str, float]:
    async with bus.a_worker() as worker:
        held = await receiver.until("held", CONCURRENCY, within_s=_START_S_MAX)
        if held["held"] < CONCURRENCY:
            raise ValueError(f"the worker makes {held['held']} calls at a time, not {CONCURRENCY}")
        before = {pid: children.cpu_s(pid) for pid in (worker.pid, bus.server.pid)}
        await receiver.open()
        tally = await receiver.until("events", backlog - held["events"], within_s=within_s)
        worker_s, valkey_s = (children.cpu_s(pid) - used for pid, used in before.items())
    events = tally["events"]
    return {
        f"drain.{events_max}.events_per_s": events / tally["seconds"],
        f"drain.{events_max}.batches_per_s": tally["requests"] / tally["seconds"],
        f"drain.{events_max}.worker_cpu_us": worker_s / events * 1e6,
        f"drain.{events_max}.valkey_cpu_us": valkey_s / events * 1e6,
    }
