"""Bulk delivery: how fast the pipeline's step delivers what has landed to one subscriber, beside a worker's drain.

The first backlog starts Spark's Python processes and is not counted; the second is. All that a round costs is in the
figure: planning, reading the lake, sorting, posting, and moving the ledger with every batch.
"""

import asyncio
import tempfile
import time
from dataclasses import replace

from bench.bus import Bus, a_bus
from bench.children import a_receiver
from bench.scale import Scale
from doubledecker.assembly import settings as reading
from doubledecker.pipeline.bulk.delivery import Bulk
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.session import SessionPlan, open_session


async def measure(scale: Scale) -> dict[str, float]:
    spark = await asyncio.to_thread(open_session, SessionPlan())
    try:
        return {
            f"bulk.{events_max}.events_per_s": await _delivered(spark, events_max, scale.backlog)
            for events_max in (100, 1000)
        }
    finally:
        spark.stop()


async def _delivered(spark: object, events_max: int, backlog: int) -> float:
    async with a_receiver() as receiver, a_bus() as bus:
        await bus.subscribe(1, receiver.url, max=events_max, tier="bulk")
        with tempfile.TemporaryDirectory() as root:
            step = Bulk(spark, replace(reading.read(bus.environment), log_level="error"), root)
            await _land_and_deliver(step, bus, backlog)
            return await _land_and_deliver(step, bus, backlog)


async def _land_and_deliver(step: Bulk, bus: Bus, backlog: int) -> float:
    """Events delivered a second, from the first look until there is nothing more to do."""
    await bus.fill(backlog)
    access = Access(bus.server.url, step.settings.namespace, step.settings.partitions)
    archive = landing.archive_of(step.root)
    await landing.register(access, archive, takes_over=False)
    while (await asyncio.to_thread(landing.land, step.spark, access, step.root, "events", archive=archive)).has_more:
        pass
    began_s, events, has_more = time.monotonic(), 0, True
    while has_more:
        done = await asyncio.to_thread(step.act)
        events, has_more = events + done.rows, done.has_more
    if events != backlog:
        raise ValueError(f"{events} of {backlog} events were delivered")
    return events / (time.monotonic() - began_s)
