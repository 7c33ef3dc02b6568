"""What catch-all queues of a stranger cost a publisher: time and CPU of a publish beside what it takes without them.

python -m bench.copies

The publisher has one subscriber, whose batches take every event; no worker runs. The queues are root's, which the bound
`client_copies_max` does not hold for. `kept` queues keep what they get; `full` ones are at their `max_length`, and drop
the oldest for each new message. Every round measures all numbers of queues, so that a busy machine is busy for each of
them alike; the ratio is the median over the rounds of a number's cost over that of none in the same round.
"""

import asyncio
import statistics
from dataclasses import dataclass

import aiohttp

from bench.bus import ROOT_KEY, Bus, a_bus
from bench.load import Spec

_NOBODY = "http://127.0.0.1:9/"  # never called: there is no worker
_COUNTS = (0, 3, 4, 5, 8, 10)
_ROUNDS = 5
_FULL_LENGTH = 200
# Events in a request, connections, requests of a measurement.
_SHAPES = ((1, 1, 500), (1, 16, 1_500), (100, 1, 80), (100, 4, 160))


@dataclass(frozen=True)
class Cost:
    """What a request took: its median time, and CPU of web and Valkey together."""

    wall_ms: float
    cpu_ms: float


async def main() -> None:
    """Print a row for each kind of queue, each shape of requests, and each number of queues."""
    print(f"{'queues':>6} {'kind':>5} {'events':>7} {'connections':>12} {'CPU ms':>8} {'CPU':>6} {'time':>6}")
    for kind, length in (("kept", 1_000_000), ("full", _FULL_LENGTH)):
        for shape in _SHAPES:
            async with a_bus() as bus:
                await bus.subscribe(1, _NOBODY)
                rounds = [await _round(bus, shape, length) for _ in range(_ROUNDS + 1)][1:]
            for count in _COUNTS:
                _print(count, kind, shape, rounds)


def _print(count: int, kind: str, shape: tuple[int, int, int], rounds: list[dict[int, Cost]]) -> None:
    cpu_ms = statistics.median(each[count].cpu_ms for each in rounds)
    cpu = statistics.median(each[count].cpu_ms / each[0].cpu_ms for each in rounds)
    wall = statistics.median(each[count].wall_ms / each[0].wall_ms for each in rounds)
    print(f"{count:>6} {kind:>5} {shape[0]:>7} {shape[1]:>12} {cpu_ms:>8.3f} {cpu:>5.2f}x {wall:>5.2f}x", flush=True)


async def _round(bus: Bus, shape: tuple[int, int, int], length: int) -> dict[int, Cost]:
    return {count: await _measure(bus, shape, count, length) for count in _COUNTS}


async def _measure(bus: Bus, shape: tuple[int, int, int], count: int, length: int) -> Cost:
    events, connections, requests = shape
    root = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
    for n in range(count):
        body = {"pattern": ".*", "max_length": length}
        async with bus.http.put(f"{bus.url}/queues/all-{n}", json=body, headers=root) as answer:
            answer.raise_for_status()
    spec = Spec(bus.port, bus.publisher, "events", events, connections, warm_s=0.1, measure_s=60, requests_max=requests)
    loaded = await bus.loaded(spec)
    for n in range(count):
        async with bus.http.delete(f"{bus.url}/queues/all-{n}?discard=1", headers=root) as answer:
            answer.raise_for_status()
    return Cost(loaded.load.p50_ms, sum(loaded.cpu_s.values()) / requests * 1000)


if __name__ == "__main__":
    asyncio.run(main())
