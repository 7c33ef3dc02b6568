"""What a guarded call costs: a no-op through one stage, and through retry, breaker, bulkhead and timeout."""

import asyncio
import time

from doubledecker.stages.chain import Chain
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.breaker import Breaker
from doubledecker.stages.techniques.bulkhead import Bulkhead
from doubledecker.stages.techniques.retry import Retry
from doubledecker.stages.techniques.timeout import Timeout

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
    return {name: await _us_per_call(function) for name, function in subjects.items()}


if __name__ == "__main__":
    for name, us in asyncio.run(measure()).items():
        print(f"{name:40} {us:6.2f} µs")
