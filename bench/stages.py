"""What stages cost: a guarded call that does nothing, beside the libraries that people use for the same.

All subjects take turns within one process, on asyncio's own loop: each is called some thousand times, then the next,
several times around, and the median of the turns is taken. The time is that of the processor: there is nothing else in
these calls.
"""

import asyncio
import importlib.util
import statistics
import time
from collections.abc import Awaitable, Callable

from bench.scale import Scale
from doubledecker.stages import (
    Breaker,
    Bulkhead,
    Chain,
    Event,
    RateLimit,
    Retry,
    Stage,
    Timeout,
)

Call = Callable[[], Awaitable[object]]

PEERS = ("tenacity", "stamina", "aiobreaker", "aiolimiter", "hyx")

_CALLS = 3_000
_TURNS = 15
# Ours, each as a decorator around the same function.
_STAGES = {
    "no_stage": Chain(),
    "stage": Chain() | Stage(),
    "bulkhead": Chain() | Bulkhead(workers=32),
    "breaker": Chain() | Breaker(),
    "retry": Chain() | Retry(3),
    "timeout": Chain() | Timeout(2.0),
    "rate_limit": Chain() | RateLimit(1e9, burst=1_000_000),
    "four": Retry(3) | Timeout(2.0) | Breaker() | Bulkhead(workers=32),
}


async def measure(scale: Scale) -> dict[str, float]:
    """µs a call, by subject; `over` is less what the bare call takes."""
    ours, peers = {"bare": _nothing, **_ours()}, {"asyncio": _within_asyncio_timeout, **_peers()}
    subjects = {**ours, **peers}
    turns: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(_TURNS if scale.repetitions > 1 else 3):
        for name, call in subjects.items():
            turns[name].append(await _us_per_call(call))
    found = {name: statistics.median(values) for name, values in turns.items()}
    figures = {f"guarded.{name}_us": found[name] for name in ours}
    figures |= {f"guarded.{name}_over_us": found[name] - found["bare"] for name in ("stage", "four")}
    return figures | {f"{name}.guarded_us": found[name] for name in peers}


async def _us_per_call(call: Call) -> float:
    started_s = time.process_time()
    for _ in range(_CALLS):
        await call()
    return (time.process_time() - started_s) / _CALLS * 1e6


async def _nothing() -> None:
    pass


async def _within_asyncio_timeout() -> None:
    async with asyncio.timeout(2.0):
        await _nothing()


def _ours() -> dict[str, Call]:
    event = Event(function=_nothing)
    plain, four = _STAGES["stage"].bind().run, _STAGES["four"].bind().run
    bound = {"bound": lambda: plain(event), "four_bound": lambda: four(event)}
    return {name: chain(_nothing) for name, chain in _STAGES.items()} | bound


def _peers() -> dict[str, Call]:
    """Those that are installed, with the settings nearest to ours."""
    makers = dict(zip(PEERS, (_tenacity, _stamina, _aiobreaker, _aiolimiter, _hyx), strict=True))
    return {name: make() for name, make in makers.items() if importlib.util.find_spec(name) is not None}


def _tenacity() -> Call:
    import tenacity

    return tenacity.retry(stop=tenacity.stop_after_attempt(3))(_nothing)


def _stamina() -> Call:
    import stamina

    return stamina.retry(on=OSError, attempts=3)(_nothing)


def _aiobreaker() -> Call:
    import aiobreaker

    breaker = aiobreaker.CircuitBreaker(fail_max=5)
    return lambda: breaker.call_async(_nothing)


def _aiolimiter() -> Call:
    import aiolimiter

    limiter = aiolimiter.AsyncLimiter(1e9, 1)

    async def limited() -> None:
        async with limiter:
            await _nothing()

    return limited


def _hyx() -> Call:
    """All four, in the order of ours."""
    from hyx.bulkhead import bulkhead
    from hyx.circuitbreaker import consecutive_breaker
    from hyx.retry import retry
    from hyx.timeout import timeout

    breaker = consecutive_breaker(failure_threshold=5, recovery_time_secs=5)
    return retry(attempts=3)(timeout(2.0)(breaker(bulkhead(max_concurrency=32, max_capacity=64)(_nothing))))
