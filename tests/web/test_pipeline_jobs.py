"""Replays and erasures over HTTP: who may have what, and what is said to those who may not."""

import pytest

from conftest import Topology
from doubledecker import clock
from doubledecker.model.step import RunReport
from doubledecker.store import pipeline
from harness import ROOT_KEY, a_bus, an_event
from web.asking import ask

HOOK = "https://mail.example/"


async def test_a_client_asks_for_replays_to_what_is_its_own_and_sees_no_others(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        await bus.publish(shop, [an_event(1)])
        await bus.subscribe(mail, HOOK)
        await ask(bus, "PUT", "/queues/jobs", mail, json={"pattern": ".*"})
        made = [
            await ask(bus, "POST", "/replays", mail, json={"to_subscriber": "mail", "topic": "widgets", "rate": 7}),
            await ask(bus, "POST", "/replays", mail, json={"to_queue": "jobs", "from": "2024-01-01"}),
            await ask(bus, "POST", "/replays", shop, json={"to_topic": "widgets"}),
            await ask(bus, "POST", "/replays", json={"to_subscriber": "mail", "where": "type = 'update'"}),
        ]
        mine = (await ask(bus, "GET", "/replays", mail)).json
        shops = (await ask(bus, "GET", "/replays", shop)).json
        everything = (await ask(bus, "GET", "/replays")).json
        hidden = await ask(bus, "GET", f"/replays/{made[0].json['id']}", shop)
        cancelled = await ask(bus, "DELETE", f"/replays/{made[0].json['id']}", mail)
        again = await ask(bus, "DELETE", f"/replays/{made[0].json['id']}", mail)

    assert [answer.status for answer in made] == [202] * 4
    first = made[0].json
    assert (first["state"], first["rate"], first["topic"], first["sent"]) == ("waiting", 7, "widgets", 0)
    assert first["to_subscriber"].startswith("mail-")
    assert made[1].json["from"] == "2024-01-01T00:00:00+00:00"
    assert made[2].json["rate"] == 1000
    assert [row["id"] for row in mine] == [made[1].json["id"], made[0].json["id"]]
    assert [row["id"] for row in shops] == [made[2].json["id"]]
    assert len(everything) == 4
    assert hidden.status == 403
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    assert (again.status, again.detail) == (409, f"replay {first['id']!r} is over: cancelled")


async def test_what_is_asked_for_says_at_once_that_no_pipeline_runs(one: Topology):
    async with a_bus(one, workers=0) as bus:
        home = bus.partitions.home
        shop = await bus.token("shop")
        asked = [
            await ask(bus, "POST", "/replays", shop, json={"to_topic": "mine"}),
            await ask(bus, "POST", "/erasures", json={"tenant": "acme"}),
        ]
        path = f"/replays/{asked[0].json['id']}"
        looked = [(await ask(bus, "GET", path)).json, *(await ask(bus, "GET", "/erasures")).json]
        now_ms = clock.now_ms()
        await pipeline.report_run(home, RunReport("running", at=now_ms, began_at=now_ms))
        running = (await ask(bus, "GET", path)).json
        await pipeline.report_run(home, RunReport("running", at=now_ms - 60_000, began_at=0))
        silent = (await ask(bus, "GET", path)).json
        cancelled = (await ask(bus, "DELETE", path)).json

    assert [answer.status for answer in asked] == [202, 202]
    for job in (*(answer.json for answer in asked), *looked, silent):
        assert job["note"].startswith("no pipeline runs on this bus")
        assert "`doubledecker pipeline run`" in job["note"]
    assert (running["note"], cancelled["note"]) == ("", "")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({}, 400, "to_subscriber, to_queue or to_topic; there is none of them"),
        ({"to_queue": "jobs", "to_topic": "mine"}, 400, "there is to_queue and to_topic"),
        ({"to_topic": "7bad"}, 400, "the topic is '7bad'"),
        ({"to_topic": "mine", "rate": 0}, 400, "rate is 0; it must be from 1 to 1000000 events a second"),
        ({"to_topic": "mine", "rate": "fast"}, 400, "rate is a string; it must be a whole number or null"),
        ({"to_topic": "mine", "speed": 1}, 400, "a replay has no field 'speed'"),
        ({"to_topic": "mine", "from": "yesterday"}, 400, "from is 'yesterday'; write it like"),
        ({"to_topic": "mine", "to": "2999-01-01"}, 400, "in the future"),
        ({"to_topic": "mine", "from": "2024-01-02", "to": "2024-01-01"}, 400, "not before to"),
        ({"to_topic": "mine", "topic": "no good"}, 400, "the topic is 'no good'"),
        ({"to_topic": "mine", "tenant": "no good"}, 400, "tenant is 'no good'"),
        ({"to_topic": "mine", "where": "1 = 1"}, 403, "only the root key may give it"),
        ({"to_topic": "widgets"}, 403, "topic 'widgets' belongs to another client"),
        ({"to_subscriber": "mail"}, 404, "no subscriber named 'mail'"),
        ({"to_subscriber": "shop"}, 403, "subscriber 'shop' is not yours"),
        ({"to_queue": "jobs"}, 403, "queue 'jobs' belongs to another client"),
        ({"to_queue": "nothing"}, 404, "no queue named 'nothing'"),
    ],
)
async def test_a_replay_that_may_not_be_is_told_why_and_nothing_is_kept(
    one: Topology, body: dict[str, object], status: int, told: str
):
    async with a_bus(one, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        await bus.publish(shop, [an_event(1)])
        await ask(bus, "PUT", "/queues/jobs", shop, json={"pattern": ".*"})
        answer = await ask(bus, "POST", "/replays", mail, json=body)
        kept = (await ask(bus, "GET", "/replays")).json

    assert answer.status == status
    assert told in answer.detail
    assert kept == []


async def test_a_tenant_that_is_a_number_is_taken_as_its_text(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        erasure = await ask(bus, "POST", "/erasures", json={"tenant": 0})
        replay = await ask(bus, "POST", "/replays", client, json={"tenant": 7, "to_topic": "again"})

        assert (erasure.status, erasure.json["tenant"]) == (202, "0")
        assert (replay.status, replay.json["tenant"]) == (202, "7")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "there is neither"),
        ({"tenant": "a", "key": "b"}, "there is both"),
        ({"tenant": "a", "topic": "orders"}, "leave the topic out"),
        ({"tenant": "a b"}, "tenant is 'a b'"),
        ({"key": "a/b"}, "key is 'a/b'"),
        ({"key": "a", "topic": "7bad"}, "the topic is '7bad'"),
        ({"key": "a", "before": 7}, "an erasure has no field 'before'"),
    ],
)
async def test_an_erasure_says_whose_events_it_is_about(one: Topology, body: dict[str, object], told: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/erasures", ROOT_KEY, json=body)

    assert answer.status == 400
    assert told in answer.detail


async def test_erasures_are_roots_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        made = await ask(bus, "POST", "/erasures", json={"key": "k", "topic": "orders"})
        statuses = [
            (await ask(bus, method, path, shop, json=body)).status
            for method, path, body in (
                ("POST", "/erasures", {"tenant": "a"}),
                ("GET", "/erasures", None),
                ("GET", f"/erasures/{made.json['id']}", None),
            )
        ]
        listed = (await ask(bus, "GET", "/erasures")).json

    assert statuses == [403] * 3
    assert listed == [made.json]
    assert (made.json["key"], made.json["topic"], made.json["tenant"]) == ("k", "orders", None)
