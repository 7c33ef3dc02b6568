"""The pipeline's pages: who sees what, and how a replay and an erasure are counted, confirmed and cancelled."""

import msgspec

from conftest import Topology
from doubledecker import clock
from doubledecker.model.step import RunReport, StepReport
from doubledecker.store import pipeline, pipeline_jobs
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS
from harness import TestBus, a_bus, an_event
from signing_in import a_browser
from web.asking import ask
from web.test_dashboard_letters import HOSTILE, confirm, page, records


async def count(bus: TestBus, kind: str, where: str) -> str:
    """Finish a job that counts, as a pipeline does; returns where its page is."""
    path = where.removeprefix("/dashboard")
    done = {"state": "done", "total": 7, "counts": (("orders", "2030-01-01", 7),)}
    home = bus.partitions.home
    await pipeline_jobs.change(home, kind, path.rpartition("/")[2], lambda job: msgspec.structs.replace(job, **done))
    return path


async def test_steps_are_shown_with_what_they_report(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        home, now_ms = bus.partitions.home, clock.now_ms()
        made = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "scopes": {"topics": ["orders"]}})
        secret = await bus.token("client")
        await pipeline.report_run(home, RunReport("running", at=now_ms, began_at=now_ms, master="local[2]", lake="/l"))
        await pipeline.report_step(home, "events", StepReport("working", at=now_ms, rows=4321, error=HOSTILE))
        _, text = await page(http, bus, "/pipeline")
        async with a_browser(bus, secret) as client, a_browser(bus, made.json["token"]) as limited:
            _, others = await page(client, bus, "/pipeline")
            _, least = await page(limited, bus, "/pipeline")

    assert "4,321" in text
    assert "&lt;img" in text
    assert "<img" not in text
    assert ("4,321" in others, "&lt;img" in others, "Erasures" in others) == (True, False, False)
    assert "4,321" not in least


async def test_a_replay_is_counted_then_started_then_cancelled(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")
        await bus.publish(secret, [an_event(1, topic="orders")])
        await bus.subscribe(secret, "https://shop.example/", "orders")
        async with a_browser(bus, secret) as http:
            wanted = {"target": "to_subscriber", "name": "shop", "topic": "orders", "rate": "50", "from": "2024-01-01"}
            _, counting = await confirm(http, bus, "/pipeline/replay", **wanted)
            early, _ = await confirm(http, bus, counting.removeprefix("/dashboard"), do="start")
            path = await count(bus, REPLAYS, counting)
            _, text = await page(http, bus, path)
            _, begun = await confirm(http, bus, path, do="start")
            ended, _ = await confirm(http, bus, begun.removeprefix("/dashboard"), do="cancel")
            _, listed = await page(http, bus, "/pipeline")
        jobs = (await ask(bus, "GET", "/replays", secret)).json
        trail = [row["action"] for row in await records(bus)]

    assert (early, ended) == (409, 303)
    assert "Send 7 events again" in text
    assert "2030-01-01" in text
    assert [(job["dry_run"], job["state"], job["rate"], job["topic"]) for job in jobs] == [
        (False, "cancelled", 50, "orders"),
        (True, "done", 50, "orders"),
    ]
    assert jobs[0]["to"] == jobs[1]["to"]
    assert begun.rpartition("/")[2] in listed
    assert trail[:2] == ["replay.cancelled", "replay.asked"]


async def test_an_erasure_is_counted_and_its_tenant_typed(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        _, counting = await confirm(http, bus, "/pipeline/erase", tenant="acme")
        path = await count(bus, ERASURES, counting)
        wrong, _ = await confirm(http, bus, path, typed="acm")
        before = (await ask(bus, "GET", "/erasures")).json
        begun, _ = await confirm(http, bus, path, typed="acme")
        after = (await ask(bus, "GET", "/erasures")).json
        trail = await records(bus)

    assert (wrong, begun) == (400, 303)
    assert [job["dry_run"] for job in before] == [True]
    assert [(job["dry_run"], job["tenant"]) for job in after] == [(False, "acme"), (True, "acme")]
    assert [(row["action"], row["detail"]) for row in trail] == [("erasure.asked", "tenant=acme")]


async def test_each_token_reaches_what_the_api_gives_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        theirs = (await ask(bus, "POST", "/replays", await bus.token("other"), json={"to_topic": "mine"})).json["id"]
        erasure = (await ask(bus, "POST", "/erasures", json={"tenant": "acme", "dry_run": True})).json["id"]
        paths = ("", "/replay", f"/replays/{theirs}", "/erase", f"/erasures/{erasure}")
        seen = {}
        for actions in (["publish"], ["replay"], ["read-only"], ["admin"]):
            made = await ask(bus, "POST", "/api_tokens", json={"name": actions[0], "scopes": {"actions": actions}})
            async with a_browser(bus, made.json["token"]) as http:
                found = [await page(http, bus, f"/pipeline{path}") for path in paths]
            seen[actions[0]] = [status for status, _ in found]
            assert "doubledecker pipeline run" in found[0][1]

    assert seen == {
        "publish": [200, 403, 403, 403, 403],
        "replay": [200, 200, 403, 403, 403],
        "read-only": [200, 200, 403, 403, 403],
        "admin": [200] * 5,
    }
