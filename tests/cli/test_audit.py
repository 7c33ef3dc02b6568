"""`doubledecker audit` lists who changed what."""

import asyncio
import getpass
import json
import socket

from cli.commands import run
from conftest import Topology
from doubledecker.client import AsyncBus
from harness import ROOT_KEY, a_bus
from web.asking import ask


async def test_the_trail_is_listed_to_those_who_may_see_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        await ask(bus, "PUT", "/queues/jobs", ann, json={"pattern": ".*"})

        async def said(secret: str, *arguments: str):
            return await asyncio.to_thread(run, "audit", *arguments, "--bus", bus.url, "--token", secret)

        whole, own = await said(ROOT_KEY), await said(ann, "--json")
        none, wrong = await said(ROOT_KEY, "--actor", "bob"), await said(ROOT_KEY, "--action", "all")
        async with AsyncBus(bus.url, ROOT_KEY) as remote:
            page = await remote.audit(action="queue.created", start="2026-01-01", limit=5)

    assert [line.split("\t")[3:6] for line in whole.stdout.splitlines()[-2:]] == [
        ["queue.created", "jobs", "done"],
        ["token.created", page.records[0].actor, "done"],
    ]
    assert [each["action"] for each in json.loads(own.stdout)["records"]] == ["queue.created"]
    assert (none.stdout.strip().count("\n"), none.stderr) == (0, "There are no such records\n")
    assert (wrong.returncode, "like queue.deleted" in wrong.stderr) == (4, True)
    assert [(each.target, each.status, each.fields) for each in page.records] == [("jobs", 201, ("pattern",))]


async def test_what_goes_straight_to_redis_is_recorded_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await ask(bus, "PUT", "/queues/jobs", json={"pattern": ".*"})
        asked = (await ask(bus, "POST", "/replays", json={"to_queue": "jobs"})).json
        where = {"DOUBLEDECKER_REDIS_URL": one.url, "DOUBLEDECKER_ROOT_KEY": ROOT_KEY}
        done = await asyncio.to_thread(run, "replays", "--cancel", asked["id"], **where)
        [row] = (await ask(bus, "GET", "/audit?action=replay.cancelled")).json["records"]

    assert done.returncode == 0, done.stderr
    assert (row["actor"], row["actor_name"], row["address"]) == ("root", getpass.getuser(), socket.gethostname())
    assert (row["target"], row["outcome"], row["status"]) == (asked["id"], "done", None)
