"""What a token may do: actions, expiry, and who may give what; test_token_limits.py has topics and tenants."""

import asyncio
import json

import pytest

from conftest import Topology
from doubledecker import clock
from doubledecker.assembly.settings import Settings
from doubledecker.store import registry
from harness import TestBus, a_bus, an_event
from web.asking import Answer, an_app, ask


async def make(bus: TestBus, name: str, secret: str | None = None, **fields: object) -> dict[str, str]:
    """Make a token with these fields; the answer has its id and secret."""
    by = {} if secret is None else {"secret": secret}
    answer = await ask(bus, "POST", "/api_tokens", json={"name": name, **fields}, **by)
    assert answer.status == 201, answer.body
    return answer.json


async def patch(bus: TestBus, id_: str, change: dict[str, object], **by: str) -> Answer:
    return await ask(bus, "PATCH", f"/api_tokens/{id_}", json=change, **by)


async def test_what_is_asked_for_a_token_is_listed_and_changed(one: Topology):
    asked = {"actions": ["publish"], "topics": ["orders", "mail.*"], "tenants": ["acme"]}
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop", description="The shop", expires_at=clock.now_ms() + 60_000, scopes=asked)
        [before] = (await ask(bus, "GET", "/api_tokens")).json
        changed = (await patch(bus, made["id"], {"expires_at": 0, "scopes": {"topics": ["orders"]}})).json
        unlimited = (await patch(bus, made["id"], {"scopes": None})).json

    assert (before["description"], before["scopes"]) == ("The shop", asked)
    assert before["expires_at"] > clock.now_ms()
    assert changed == {**before, "expires_at": 0, "scopes": {"actions": None, "topics": ["orders"], "tenants": None}}
    assert unlimited["scopes"] == {"actions": None, "topics": None, "tenants": None}


async def test_a_page_of_tokens_follows_an_id(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ids = sorted([(await make(bus, name))["id"] for name in ("c", "a", "b")])
        page = (await ask(bus, "GET", f"/api_tokens?limit=1&after={ids[0]}")).json

    assert [row["token"] for row in page] == [ids[1]]


async def test_the_same_secret_with_other_scopes_is_a_conflict(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await make(bus, "shop", token="secret", scopes={"actions": ["publish"]})
        await make(bus, "shop", token="secret")
        answer = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "token": "secret", "scopes": None})

    assert (answer.status, "another scopes" in answer.detail) == (409, True)


async def test_an_expired_token_is_refused_and_told_so(one: Topology, monkeypatch: pytest.MonkeyPatch):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop", expires_in_s=3600)
        before = await ask(bus, "GET", "/pulse", made["token"])
        later = clock.now_ms() + 3_600_001
        monkeypatch.setattr("doubledecker.web.authentication.clock.now_ms", lambda: later)
        after = await ask(bus, "GET", "/pulse", made["token"])

    assert (before.status, after.status) == (204, 401)
    assert "expired" in after.detail


async def test_where_nothing_is_the_default_a_token_does_what_it_is_given(one: Topology):
    async with a_bus(one, workers=0, tokens_default="none") as bus:
        bare = (await make(bus, "bare"))["token"]
        limited = (await make(bus, "limited", scopes={"topics": ["orders"]}))["token"]
        given = (await make(bus, "given", scopes={"actions": ["publish"]}))["token"]
        whole = (await make(bus, "whole", scopes=None))["token"]
        statuses = [(await ask(bus, "GET", "/topics", each)).status for each in (bare, limited, given, whole)]

    assert statuses == [403, 403, 200, 200]


async def test_a_refusal_says_what_is_missing_and_what_is_there(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop", actions=["stream", "search"])
        answer = await ask(bus, "POST", "/events", secret, json=an_event(1))

    assert answer.detail == "this needs the action publish; the actions of this token are stream, search"


async def test_an_admin_may_not_touch_tokens_of_admins_nor_give_more_than_it_has(one: Topology):
    scopes = {"actions": ["admin"]}
    async with a_bus(one, workers=0) as bus:
        me, other = await make(bus, "me", scopes=scopes), await make(bus, "other", scopes=scopes)
        client = await make(bus, "client", me["token"], scopes={"tenants": ["acme"]})
        by = {"secret": me["token"]}
        refused = [
            await ask(bus, "POST", "/api_tokens", json={"name": "new", "scopes": scopes}, **by),
            await patch(bus, client["id"], {"scopes": scopes}, **by),
            *[await patch(bus, whose["id"], {"description": "mine"}, **by) for whose in (me, other)],
            await ask(bus, "POST", f"/api_tokens/{other['id']}/rotate", json={}, **by),
            await ask(bus, "DELETE", f"/api_tokens/{other['id']}", **by),
        ]
        allowed = await ask(bus, "DELETE", f"/api_tokens/{client['id']}", **by)

    assert [answer.status for answer in refused] == [403] * 6
    assert allowed.status == 204


async def test_an_admin_does_what_root_does_with_the_things_of_others(one: Topology):
    async with a_bus(one, workers=0) as bus:
        admin, client = await bus.token("admin", actions=["admin"]), await bus.token("client")
        await bus.publish(client, [an_event(1, topic="orders")])
        await bus.subscribe(client, "https://mail.example/", "orders")
        await ask(bus, "PUT", "/queues/jobs", client, json={"pattern": ".*"})
        rows = [(await ask(bus, "GET", path, admin)).json for path in ("/subscriptions", "/queues", "/api_tokens")]
        changed = [
            await ask(bus, "POST", f"/subscribers/{rows[0][0]['subscriber']}/pause", admin),
            await ask(bus, "PATCH", "/queues/jobs/facets/acme", admin, json={"paused": True}),
            await ask(bus, "POST", "/topics/orders/give", admin, json={"to": rows[2][0]["token"]}),
            await ask(bus, "POST", "/erasures", admin, json={"tenant": "acme", "dry_run": True}),
        ]

    assert [len(some) for some in rows] == [1, 1, 2]
    assert [answer.status for answer in changed] == [200, 200, 204, 202]


async def test_admin_is_for_the_whole_bus(one: Topology):
    async with a_bus(one, workers=0) as bus:
        scopes = {"actions": ["admin"], "tenants": ["acme"]}
        answer = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "scopes": scopes})

    assert (answer.status, "for the whole bus" in answer.detail) == (400, True)


async def test_a_token_of_an_older_version_may_do_what_it_could(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop")
        home = bus.partitions.home
        record = json.loads(await home.command("HGET", home.key("api_tokens"), made["id"]))

    assert record.keys() == {"id", "name", "hash", "ha1", "created_at"}


def test_every_route_says_which_actions_it_needs():
    paths = json.loads(an_app(Settings()).document)["paths"]
    named = {
        action for row in paths.values() for operation in row.values() for action in operation.get("x-actions", ())
    }

    assert named == {"publish", "subscribe", "consume", "stream", "search", "replay", "manage", "admin", "portal"}


async def test_when_a_token_was_last_used_is_listed_and_moves_no_version(one: Topology):
    async with a_bus(one, workers=0) as bus:
        home, made = bus.partitions.home, await make(bus, "shop")
        before = await registry.version(home)
        await ask(bus, "GET", "/pulse", made["token"])
        async with asyncio.timeout(20):
            while (row := (await ask(bus, "GET", "/api_tokens")).json[0])["last_used_at"] is None:
                await asyncio.sleep(0.05)
        after = await registry.version(home)
        await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
        left = await home.command("EXISTS", home.key("api_tokens:used"))

    assert clock.now_ms() - 120_000 < row["last_used_at"] <= clock.now_ms()
    assert (before, left) == (after, 0)


async def test_queues_with_a_callback_end_with_a_limited_token(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop", scopes={"tenants": ["acme"]})
        pushed = {"pattern": ".*", "callback": "https://mail.example/"}
        for name, wanted in (("pulled", {"pattern": ".*"}), ("pushed", pushed)):
            await ask(bus, "PUT", f"/queues/{name}", made["token"], json=wanted)
        await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
        left = [row["name"] for row in (await ask(bus, "GET", "/queues")).json]

    assert left == ["pulled"]
