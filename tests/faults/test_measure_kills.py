"""Kill -9 of the pipeline while it measures: the measures are what the lake's rows say, as without any kill.

What must hold in any order: the tables equal a recount by another engine, in minutes and hours.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

import recount
from cli.commands import children
from doubledecker.lake import snapshots
from doubledecker.model.position import Position
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures
from doubledecker.pipeline.metrics.measures import SPANS
from doubledecker.store import pipeline
from doubledecker.store import pipeline as told
from faults.test_pipeline_kills import Ground, a_ground, land_the_rest, publishing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 3
# Each costs a start of Spark.
KILLS = 2


def measured(ground: Ground) -> dict[int, Position]:
    return snapshots.landed(measures.table_of(str(ground.lake), "events").open(), PARTITIONS)


def landed(ground: Ground) -> dict[int, Position]:
    return snapshots.landed(landing.table_of(str(ground.lake), "events").open(), PARTITIONS)


async def until_measuring(ground: Ground) -> None:
    """Until this pipeline has measured something, and is at it again with more to do."""
    before = measured(ground)
    async with asyncio.timeout(240):
        while measured(ground) == before:
            await asyncio.sleep(0.1)
        while True:
            step = (await pipeline.read(ground.partitions.home)).steps["measure"]
            if step.state == "working" and measured(ground) != landed(ground):
                return
            await asyncio.sleep(0.02)


async def test_nothing_is_counted_twice_or_missed_when_all_of_spark_is_killed_while_it_measures(tmp_path: Path):
    async with a_ground(tmp_path, partitions=PARTITIONS, measure_interval_s=0.1) as ground:
        left = []
        async with publishing(ground):
            for _ in range(KILLS):
                await ground.pipeline.start()
                await until_measuring(ground)
                await asyncio.sleep(random.uniform(0.0, 0.6))
                for pid in [*children(ground.pipeline.pid), ground.pipeline.pid]:
                    os.kill(pid, signal.SIGKILL)
                await ground.pipeline.kill()
                left.append(measured(ground) != landed(ground))
        rows = await land_the_rest(ground)
        latest = await told.measures(ground.partitions.home)

    root = str(ground.lake)
    assert any(left)
    assert measured(ground) == landed(ground)
    for span in SPANS:
        assert recount.measured(root, "events", span=span) == recount.recount(root, "events", span=span)
    assert latest["hour"].total.events == len(rows) == len(ground.accepted)
