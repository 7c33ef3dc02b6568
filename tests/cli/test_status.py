"""`doubledecker status` finds its way about the data it looks at."""

import asyncio
import json

from cli.commands import COMMAND, environment
from conftest import Topology
from doubledecker.store import losses
from harness import a_bus, an_event, within


async def status(topology: Topology, *arguments: str) -> dict[str, object]:
    asked = await asyncio.create_subprocess_exec(
        *[*COMMAND, *arguments, "--url", topology.url, "--json"],
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await within(asked.communicate(), 30)
    assert asked.returncode == 0, said
    return json.loads(printed)


async def test_it_needs_no_setting_to_know_how_many_partitions_there_are(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("s"), "http://127.0.0.1:9/", "widgets", timeout=60_000)
        await bus.publish(publisher, [an_event(n, tenant=f"t{n}") for n in range(20)])
        shown = await status(topology, "status")
        piped = await status(topology, "pipeline", "status")

    [subscriber] = shown["subscribers"]
    assert subscriber["waiting"] == 20
    assert piped is not None


async def test_the_slot_for_aux_jobs_delivers_nothing_and_is_not_counted(one: Topology):
    async with a_bus(one, worker_threads=3):
        shown = await status(one, "status")

    assert shown["worker_slots"] == 3


async def test_it_names_the_command_that_brings_back_what_a_subscriber_lost(one: Topology):
    async with a_bus(one, workers=0) as bus:
        publisher, secret = await bus.token("publisher"), await bus.token("s")
        body = {"timeout": 0, "max": 1, "backlog_max_bytes": 500}
        await bus.subscribe(secret, "http://127.0.0.1:9/", "widgets", "gadgets", **body)
        await bus.publish(publisher, [an_event(n) for n in range(20)])
        [row] = await bus.get("/subscribers", secret)
        await losses.drop_oldest(bus.partitions.home, row["subscriber"], bytes_enough=1_000, created_max=None)
        [row] = await bus.get("/subscribers", secret)
        shown = await status(one, "status")

    lost, told = shown["subscribers"][0]["dropped"], row["dropped"]
    assert lost["events"] == lost["batches"] == shown["dropped"] == 20 - row["events"]["queued"] > 0
    where = "topic in ('gadgets', 'widgets')"
    command = (
        f'replay --direct --receiver {row["subscriber"]} --from {told["from"]} --to {told["to"]} --where "{where}"'
    )
    assert lost["replay"] == f"doubledecker {command}"
