"""Replay straight to a subscriber: a window goes from the lake to its callback, as bulk delivery does.

Nothing of it is in Redis but the replay's own ledger, which says how far each strand has come. So a window that was cut
short, or that the subscriber did not take, goes on from there.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as columns

from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.errors import NotFound
from doubledecker.model.replay import Replay
from doubledecker.model.shard import Reach, Strand
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline.bulk import posting
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.store import bulk, pipeline_jobs

_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Directed:
    """How many events of the replay are delivered now, in all; and why the window is not done with, if it is not."""

    passed: int
    why: str = ""


def send(settings: Settings, id_: str, replay: Replay, window: DataFrame, *, tasks: int) -> Directed:
    """Post what is left of a window, as far as one round comes; no faster, over all windows, than the replay may."""
    ledger = f"replay:ledger:{id_}"
    subscriber, reaches = asyncio.run(_begin(settings, replay, ledger))
    left = posting.remaining(window, reaches).withColumn("replay", columns.lit(id_))
    work = Posting(settings, subscriber, ledger, is_replayed=True)
    posted = posting.post(left, work, tasks=min(tasks, subscriber.concurrency))
    why = next(iter(posted.stopped.values()), "")
    return Directed(asyncio.run(_end(settings, id_, replay, ledger, posted.events)), why)


async def _begin(settings: Settings, replay: Replay, ledger: str) -> tuple[Subscriber, Mapping[Strand, Reach]]:
    async with build.open_bus(settings, patience_s=_PATIENCE_S) as bus:
        subscriber = bus.registry.snapshot.subscribers.get(replay.name)
        if subscriber is None:
            raise NotFound(f"there is no subscriber {replay.name!r} any more")
        await bulk.open_ledger(bus.partitions, ledger)
        return subscriber, (await bulk.course(bus.partitions.home, ledger)).reaches


async def _end(settings: Settings, id_: str, replay: Replay, ledger: str, events: int) -> int:
    """Wait until the next window may go, and say what is delivered."""
    async with build.open_bus(settings, patience_s=_PATIENCE_S) as bus:
        home = bus.partitions.home
        wait_ms = await pipeline_jobs.keep_turn(home, id_, count=events, rate=replay.rate) if events else 0
        passed = sum((await bulk.course(home, ledger)).passed.values())
    await asyncio.sleep(wait_ms / 1000)
    return passed
