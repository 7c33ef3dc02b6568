"""Processes: what a second process of a kind adds, on a machine whose cores it shares with everything else here."""

import asyncio
import sys

from bench import drain, subscribers
from bench.bus import a_bus
from bench.children import a_receiver
from bench.load import Spec
from bench.scale import Scale

_NOBODY = "http://127.0.0.1:9/"  # never called: there is no worker
_SUBSCRIBERS = 100


async def measure(scale: Scale) -> dict[str, float]:
    one, two = await _batches_per_s(1, scale), await _batches_per_s(2, scale)
    figures = {"processes.worker.1_per_s": one, "processes.worker.2_per_s": two, "processes.worker.gain": two / one}
    if await _takes_processes():
        one, two = await _requests_per_s(1, scale), await _requests_per_s(2, scale)
        figures |= {"processes.web.1_per_s": one, "processes.web.2_per_s": two, "processes.web.gain": two / one}
    return figures


async def _batches_per_s(workers: int, scale: Scale) -> float:
    """Batches of one event for a hundred subscribers, with as many slots a process."""
    slots = subscribers.SLOTS
    async with a_receiver(is_open=False) as receiver, a_bus(seed=subscribers.seeded(_SUBSCRIBERS, receiver.url)) as bus:
        await subscribers.fill(bus, _SUBSCRIBERS, scale.singles // _SUBSCRIBERS)
        drained = await drain.deliver(
            *(bus, receiver, scale.singles - 2 * slots),
            held=workers * slots,
            within_s=scale.patience_s,
            workers=workers,
            worker_threads=slots,
        )
        return drained.batches / drained.seconds


async def _takes_processes() -> bool:
    """Whether `doubledecker web` can start several processes."""
    command = (sys.executable, "-m", "doubledecker", "web", "--help")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        text, _ = await process.communicate()
    return b"--processes" in text


async def _requests_per_s(processes: int, scale: Scale) -> float:
    """Requests with one event each."""
    async with a_bus("--processes", str(processes)) as bus:
        await bus.subscribe(1, _NOBODY)
        spec = Spec(bus.port, bus.publisher, warm_s=scale.warm_s, measure_s=scale.measure_s)
        return (await bus.loaded(spec)).load.per_s
