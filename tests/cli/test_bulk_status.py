"""A bulk subscriber without a pipeline: accepted, waiting, and said so."""

import asyncio
import json

from cli.commands import run
from conftest import Topology
from doubledecker import clock
from doubledecker.model.step import RunReport
from doubledecker.store import pipeline
from harness import a_bus, an_event


async def test_status_says_that_the_bulk_tier_gets_nothing_until_a_pipeline_runs(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await bus.subscribe(await bus.token("mail"), "http://127.0.0.1:9/", "orders", tier="bulk")
        await bus.publish(await bus.token("shop"), [an_event(n, "orders") for n in range(3)])
        without = await asyncio.to_thread(run, "status", "--url", one.url)
        told = json.loads((await asyncio.to_thread(run, "status", "--url", one.url, "--json")).stdout)
        now_ms = clock.now_ms() + 60_000
        await pipeline.report_run(bus.partitions.home, RunReport("running", at=now_ms, began_at=now_ms))
        piped = await asyncio.to_thread(run, "status", "--url", one.url)

    [seen] = told["subscribers"]
    assert (seen["tier"], seen["waiting"], told["pipeline"]) == ("bulk", 3, False)
    assert seen["oldest_ms"] > 0
    assert f"so {seen['subscriber']} of the bulk tier get nothing; start one with" in without.stderr
    assert "bulk tier get nothing" not in piped.stderr
