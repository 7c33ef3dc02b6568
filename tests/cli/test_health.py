"""How a receiver fares, as a worker finds it: the same in `status` and in `/metrics`."""

import asyncio
import json
from typing import Any

import pytest

from cli.commands import run
from conftest import Topology
from harness import ROOT_KEY, a_bus, an_event, basic
from receiver import Receiver


@pytest.mark.parametrize(
    ("status", "state", "is_failing", "refusals"),
    [(500, "failing", True, 0), (404, "failing", True, 0), (400, "refusing", False, 1)],
)
async def test_a_receiver_is_shown_by_its_last_attempt_whatever_came_before(
    one: Topology, status: int, state: str, is_failing: bool, refusals: int
):
    async with a_bus(one, backoff_base_ms=300_000, backoff_cap_ms=300_000) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=1)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(n) for n in range(20)])
        await receiver.until_events(20)
        before = await _until(one, "healthy")
        receiver.plan = lambda _: status
        await bus.publish(publisher, [an_event(20)])

        after = await _until(one, state)

        assert (before["failures"], before["refusals"]) == (0, 0)
        assert after["health"] >= 80
        async with bus.http.get(f"{bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
            lines = (await response.text()).splitlines()
        label = f'{{subscriber="{after["subscriber"]}"}}'
        assert f"doubledecker_subscriber_refusals{label} {refusals}.0" in lines
        [failures] = [line for line in lines if line.startswith(f"doubledecker_subscriber_failures{label} ")]
        assert failures.endswith(" 0.0") != is_failing


async def _until(topology: Topology, state: str) -> dict[str, Any]:
    """The subscriber in `status`, once it has this state."""
    async with asyncio.timeout(30):
        while True:
            told = json.loads((await asyncio.to_thread(run, "status", "--url", topology.url, "--json")).stdout)
            [found] = told["subscribers"]
            if found["state"] == state:
                return dict(found)
