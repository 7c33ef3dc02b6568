"""The pipeline: rows a second between the bus and the lake, beside what one process does without Spark, and the lag.

Everything that Spark does is measured in one child, which prints its figures as JSON (bench/pipeline_loop.py). The lag
is that of `doubledecker pipeline run` beside a whole bus that takes ten thousand events a second over HTTP: how old the
newest event in the lake is, at any moment.
"""

import asyncio
import json
import statistics
import tempfile
import time

from bench import children, events
from bench.bus import Bus, a_bus, a_server
from bench.scale import Scale
from doubledecker.model.position import Position
from doubledecker.store import journal, partitions
from doubledecker.store.partitions import Partition

_START_S_MAX = 60.0
_RATE = 10_000
_REQUEST_EVENTS = 100
_LOOK_S = 0.1


async def measure(scale: Scale) -> dict[str, float]:
    async with a_server() as server:
        words = ("bench.pipeline_loop", str(scale.rows))
        environment = {"BENCH_REDIS_URL": server.url, "BENCH_VALKEY_PID": str(server.pid)}
        async with children.started(*words, environment=environment) as loop:
            figures: dict[str, float] = json.loads(await loop.line(within_s=_START_S_MAX + 20 * scale.patience_s))
    return {**figures, **await _lag(scale)}


async def _lag(scale: Scale) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as lake:
        async with a_bus() as bus:
            environment = {**bus.environment, "DOUBLEDECKER_LAKE": lake}
            async with (
                children.started("doubledecker", "pipeline", "run", environment=environment),
                asyncio.TaskGroup() as tasks,
            ):
                found = await partitions.Partitions.connect(bus.server.url, namespace="rm:", count=1)
                feeding = tasks.create_task(_feed(bus))
                await _until_landed(found.home)
                # What came while Spark started is caught up with first.
                await asyncio.sleep(scale.patience_s / 2)
                lags = await _look(found.home, scale.patience_s)
                feeding.cancel()
                await found.close()
    return {"pipeline.lag_p50_s": statistics.median(lags), "pipeline.lag_most_s": max(lags)}


async def _until_landed(home: Partition) -> None:
    """Wait until Spark has started, and landed something."""
    async with asyncio.timeout(_START_S_MAX):
        while True:
            if "events_confirmed" in await journal.state(home):
                return
            await asyncio.sleep(_LOOK_S)


async def _feed(bus: Bus) -> None:
    """Ten thousand events a second, in requests of a hundred, evenly; late ones are made up for."""
    body = events.encode([events.event(number) for number in range(_REQUEST_EVENTS)])
    headers = {"Authorization": bus.publisher, "Content-Type": "application/json"}
    began_s = time.monotonic()
    sent = 0
    while True:
        due = int((time.monotonic() - began_s) * _RATE / _REQUEST_EVENTS)
        for _ in range(due - sent):
            async with bus.http.post(f"{bus.url}/events", data=body, headers=headers) as answer:
                answer.raise_for_status()
        sent = max(sent, due)
        await asyncio.sleep(_REQUEST_EVENTS / _RATE)


async def _look(home: Partition, seconds: float) -> list[float]:
    """How old what the lake has last confirmed is, again and again."""
    lags = []
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        confirmed = Position.parse((await journal.state(home)).get("events_confirmed", "0-0"))
        lags.append(time.time() - confirmed.ms / 1000)
        await asyncio.sleep(_LOOK_S)
    return lags
