"""What stages cost: a guarded no-op through one and through four of them, and customers of a simulation."""

import asyncio
import time
from functools import partial

from doubledecker.stages import (
    Breaker,
    Bulkhead,
    Chain,
    Event,
    Exponential,
    Fifo,
    Poisson,
    Retry,
    Simulated,
    Stage,
    Timeout,
    simulate,
)

_CALLS = 50_000
_ROUNDS = 7


async def _nothing() -> None:
    pass


async def _us_per_call(function) -> float:
    """The best of some rounds: what others do on the machine only adds."""
    best_s = float("inf")
    for _ in range(_ROUNDS):
        started_s = time.perf_counter()
        for _ in range(_CALLS):
            await function()
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s / _CALLS * 1e6


async def _asyncio_timeout() -> None:
    async with asyncio.timeout(1):
        await _nothing()


async def measure() -> dict[str, float]:
    four = Retry(3) | Breaker() | Bulkhead(workers=32) | Timeout(2.0)
    subjects = {
        "bare await": _nothing,
        "asyncio.timeout": _asyncio_timeout,
        "no stage": Chain()(_nothing),
        "plain stage": Chain((Stage(),))(_nothing),
        "retry": Chain((Retry(3),))(_nothing),
        "breaker": Chain((Breaker(),))(_nothing),
        "bulkhead": Chain((Bulkhead(workers=32),))(_nothing),
        "timeout": Chain((Timeout(2.0),))(_nothing),
        "retry | breaker | bulkhead | timeout": four(_nothing),
    }
    found = {name: await _us_per_call(function) for name, function in subjects.items()}
    event = Event(function=_nothing)
    for name, chain in (("plain stage, bound", Chain((Stage(),))), ("the four, bound", four)):
        found[name] = await _us_per_call(partial(chain.bind().run, event))
    return found


def customers_per_s() -> float:
    """M/M/1 at load 0.8 through a bulkhead, in virtual time."""
    chain = Bulkhead(workers=1, queue=Fifo()) | Simulated(Exponential(1.0))
    rates = []
    for _ in range(3):
        started_s = time.perf_counter()
        report = simulate(chain, traffic=Poisson(0.8), duration=50_000)
        rates.append(report.replications[0].sent / (time.perf_counter() - started_s))
    return max(rates)


if __name__ == "__main__":
    for name, us in asyncio.run(measure()).items():
        print(f"{name:40} {us:6.2f} µs")
    print(f"{'M/M/1 through a bulkhead':40} {customers_per_s():6.0f} customers/s")
