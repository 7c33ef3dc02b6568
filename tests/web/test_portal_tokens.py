"""Portal tokens: what a customer of a client may do for its own tenant, what it may not, and when that ends."""

import asyncio
import base64

import aiohttp
import pytest

from conftest import Topology
from doubledecker import clock
from doubledecker.model import portal as portals
from doubledecker.model.portal import Portal
from doubledecker.store import registry
from harness import TestBus, a_bus, an_event, basic
from receiver import Receiver
from signing_in import a_login_form
from web.asking import Answer, ask
from web.test_scopes import make, patch

CALLBACK = "https://mail.example/events"


async def portal(bus: TestBus, secret: str, tenant: str = "acme", **fields: object) -> str:
    answer = await ask(bus, "POST", "/portal_tokens", secret, json={"tenant": tenant, **fields})
    assert answer.status == 201, answer.body
    return answer.json["token"]


async def put(bus: TestBus, secret: str, name: str, *topics: str, url: str = CALLBACK, **fields: object) -> Answer:
    return await ask(bus, "PUT", f"/subscriptions/{name}", secret, json={"topics": topics, "callback": url, **fields})


async def a_shop(bus: TestBus, *topics: str) -> str:
    """A client that owns some topics."""
    shop = await bus.token("shop")
    for topic in topics or ["orders"]:
        assert (await ask(bus, "PUT", f"/topics/{topic}", shop, json={})).status == 201
    return shop


async def test_a_portal_has_its_tenants_subscriptions_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await a_shop(bus)
        acme, globex = await portal(bus, shop), await portal(bus, shop, "globex")
        mine = await put(bus, acme, "billing", "orders")
        await put(bus, globex, "billing", "orders")
        await put(bus, shop, "billing", "orders")
        own = (await ask(bus, "GET", "/subscriptions", acme)).json
        whole = (await ask(bus, "GET", "/subscriptions", shop)).json
        by_client = await ask(bus, "GET", "/subscriptions/billing?tenant=globex", shop)
        foreign = await ask(bus, "GET", "/subscriptions/billing?tenant=globex", acme)

        client = whole[0]["client"]
        assert mine.json["secret"]
        assert [(row["name"], row["tenant"]) for row in own] == [("billing", "acme")]
        names = [f"{client}/acme/billing", f"{client}/billing", f"{client}/globex/billing"]
        assert [row["subscriber"] for row in whole] == names
        assert by_client.json["tenant"] == "globex"
        assert foreign.status == 403
        for named in (names[0], "billing"):
            paused = await ask(bus, "POST", f"/subscribers/{named.replace('/', '%2F')}/pause", acme)
            assert paused.json["receiver"] == names[0]
        for named in (client, names[1], names[2], "shop", "globex/billing"):
            assert (await ask(bus, "POST", f"/subscribers/{named.replace('/', '%2F')}/pause", acme)).status == 404
        await ask(bus, "DELETE", "/subscriptions/billing", acme)
        assert [row["subscriber"] for row in (await ask(bus, "GET", "/subscriptions", shop)).json] == names[1:]


async def test_all_that_a_portal_is_for_can_be_done(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        acme = await portal(bus, await a_shop(bus))
        secret = (await put(bus, acme, "billing", "orders", url=receiver.url)).json["secret"]
        asked = [
            ("GET", ""),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/enable"),
            ("POST", "/test"),
            ("GET", "/attempts"),
            ("GET", "/dead"),
            ("GET", "/dead/jobs"),
        ]
        answers = [await ask(bus, method, f"/subscriptions/billing{action}", acme) for method, action in asked]
        rotated = await ask(bus, "POST", "/subscriptions/billing/rotate-secret", acme, json={})
        purged = await ask(bus, "POST", "/subscriptions/billing/dead/purge", acme, json={})
        changed = await ask(bus, "PATCH", "/subscriptions/billing", acme, json={"max": 7})

        assert [answer.status for answer in answers] == [200] * len(asked)
        assert rotated.json["secret"] not in {"", secret}
        assert purged.status in {200, 202}
        assert changed.json["max_events"] == 7


async def test_topics_are_those_on_which_the_client_may_publish(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, other = await a_shop(bus, "orders", "refunds"), await bus.token("other")
        await ask(bus, "PUT", "/topics/payroll", other, json={})
        acme, narrow = await portal(bus, shop), await portal(bus, shop, topics=["orders"])
        listed = [(await ask(bus, "GET", "/topics", each)).json for each in (acme, narrow)]
        refused = [
            await put(bus, acme, "billing", topic) for topic in ("payroll", "unknown", "doubledecker.receivers", "or*")
        ]
        refused.append(await put(bus, narrow, "billing", "refunds"))
        wide = await put(bus, acme, "wide", "orders", "refunds")

        assert [[row["name"] for row in rows] for rows in listed] == [["orders", "refunds"], ["orders"]]
        assert listed[1][0]["events"] is None
        assert [answer.status for answer in refused] == [403, 403, 403, 400, 403]
        assert wide.status == 201
        assert (await ask(bus, "GET", "/subscriptions", narrow)).json == []
        for method, path in (("PATCH", ""), ("DELETE", ""), ("GET", "/attempts"), ("POST", "/rotate-secret")):
            answer = await ask(bus, method, f"/subscriptions/wide{path}", narrow, json={})
            assert answer.status == 403, (method, path)


async def test_two_tenants_get_their_own_events_under_load(one: Topology):
    async with a_bus(one) as bus, Receiver() as acme, Receiver() as globex, Receiver() as all_:
        shop = await a_shop(bus)
        for tenant, receiver in (("acme", acme), ("globex", globex)):
            await put(bus, await portal(bus, shop, tenant), "in", "orders", url=receiver.url, timeout=0)
        await put(bus, shop, "in", "orders", url=all_.url, timeout=0)

        async def publish(first: int) -> None:
            tenants = ("acme", "globex", "initech", None)
            events = [an_event(first + i, topic="orders", tenant=tenants[i % 4]) for i in range(100)]
            await bus.publish(shop, events)

        await asyncio.gather(*(publish(first) for first in range(0, 1_000, 100)))
        async with asyncio.timeout(30):
            while len(all_.events) < 1_000 or len(acme.events) < 250 or len(globex.events) < 250:
                await asyncio.sleep(0.02)

        assert {event["tenant"] for event in acme.events} == {"acme"}
        assert {event["tenant"] for event in globex.events} == {"globex"}


async def test_a_portal_token_ends_with_what_made_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop")
        id_, former = made["id"], made["token"]
        first = await portal(bus, former)
        kept = (await ask(bus, "POST", f"/api_tokens/{id_}/rotate", json={"overlap_s": 60})).json["token"]
        in_overlap = await ask(bus, "GET", "/subscriptions", first)
        second = await portal(bus, kept)
        await ask(bus, "POST", f"/api_tokens/{id_}/rotate", json={"overlap_s": 0, "token": kept})
        after = [(await ask(bus, "GET", "/subscriptions", each)).status for each in (first, second)]
        scopes = ({"actions": ["publish"]}, {"tenants": ["globex"]}, {"actions": ["manage"], "tenants": ["acme"]})
        changed = []
        for each in scopes:
            await patch(bus, id_, {"scopes": each})
            changed.append((await ask(bus, "GET", "/subscriptions", second)).status)
        await ask(bus, "DELETE", f"/api_tokens/{id_}")
        revoked = await ask(bus, "GET", "/subscriptions", second)

    assert in_overlap.status == 200
    assert after == [401, 200]
    assert changed == [401, 401, 200]
    assert (revoked.status, "portal token" in revoked.detail) == (401, True)


async def test_a_portal_token_ends_by_time_and_no_later_than_its_client(one: Topology, monkeypatch: pytest.MonkeyPatch):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "shop", expires_in_s=600)
        answer = await ask(bus, "POST", "/portal_tokens", made["token"], json={"tenant": "acme", "expires_in_s": 3600})
        [listed] = (await ask(bus, "GET", "/api_tokens")).json
        short = await portal(bus, made["token"], expires_in_s=60)
        later = clock.now_ms() + 61_000
        monkeypatch.setattr("doubledecker.web.authentication.clock.now_ms", lambda: later)
        ended = await ask(bus, "GET", "/subscriptions", short)

    assert answer.json["expires_at"] == listed["expires_at"]
    assert (ended.status, "expired" in ended.detail) == (401, True)


async def test_making_a_portal_token_writes_nothing_that_processes_follow(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await a_shop(bus)
        before = await registry.version(bus.partitions.home)
        await portal(bus, shop)

        assert await registry.version(bus.partitions.home) == before


async def test_who_may_not_manage_a_tenant_makes_no_portal_token(one: Topology):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", actions=["manage"], tenants=["acme"])
        reader = await bus.token("reader", actions=["subscribe"])
        acme = await portal(bus, limited)
        asked = {"tenant": "globex"}
        statuses = [
            (await ask(bus, "POST", "/portal_tokens", secret, json=asked)).status for secret in (limited, reader, acme)
        ]

        assert statuses == [403, 403, 403]


async def test_a_changed_portal_token_is_refused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        token = await portal(bus, await a_shop(bus))
        raw = bytearray(base64.urlsafe_b64decode(token[4:] + "=" * (-len(token[4:]) % 4)))
        forged = raw.replace(b"acme", b"acmf")
        texts = [
            "ddp." + base64.urlsafe_b64encode(bytes(forged)).decode().rstrip("="),
            "ddp.",
            "ddp.x",
            token + "A",
            token[:-8],
            token + "é",
            "ddp." + "A" * 5_000,
        ]
        statuses = [(await ask(bus, "GET", "/subscriptions", each)).status for each in texts]

        assert forged != raw
        assert statuses == [401] * len(texts)


async def test_without_a_root_key_there_are_no_portal_tokens(one: Topology):
    async with a_bus(one, workers=0, root_key="", clients="shop--1") as bus:
        refused = await ask(bus, "POST", "/portal_tokens", "shop--1", json={"tenant": "acme"})
        forged = portals.sign(Portal("shop", "acme", 2**52), b"", secret_hash="")
        unknown = await ask(bus, "GET", "/subscriptions", forged)

    assert (refused.status, "DOUBLEDECKER_ROOT_KEY" in refused.detail) == (403, True)
    assert unknown.status == 401


async def test_one_tenant_has_its_share_of_subscriptions(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("doubledecker.model.quota.TENANT_SUBSCRIBERS_MAX", 1)
    async with a_bus(one, workers=0) as bus:
        shop = await a_shop(bus)
        acme, globex = await portal(bus, shop), await portal(bus, shop, "globex")
        statuses = [
            (await put(bus, who, name, "orders")).status
            for who, name in ((acme, "a"), (acme, "a"), (acme, "b"), (globex, "a"))
        ]

        assert statuses == [201, 200, 429, 201]


async def test_a_tenants_subscription_keeps_its_limits_for_everyone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await a_shop(bus)
        made = await put(bus, shop, "in?tenant=acme", "orders")
        notices = await put(bus, shop, "in?tenant=acme", "doubledecker.receivers")
        bulk = await put(bus, shop, "in?tenant=acme", "orders", tier="bulk")

        assert made.json["tenant"] == "acme"
        assert (notices.status, bulk.status) == (403, 403)


async def test_the_audit_trail_says_that_it_was_a_portal(one: Topology):
    async with a_bus(one, workers=0) as bus:
        acme = await portal(bus, await a_shop(bus))
        await put(bus, acme, "billing", "orders")
        rows = (await ask(bus, "GET", "/audit")).json["records"]

        assert (rows[0]["action"], rows[0]["actor_name"]) == ("subscription.created", "shop (portal of acme)")
        assert (rows[1]["action"], rows[1]["target"], rows[1]["actor_name"]) == ("portal_token.created", "acme", "shop")


async def test_a_portal_token_signs_in_to_no_page(one: Topology):
    async with a_bus(one, workers=0) as bus, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        acme = await portal(bus, await a_shop(bus))
        form = await a_login_form(bus, http) | {"token": acme}
        async with http.post(f"{bus.url}/dashboard/login", data=form, allow_redirects=False) as answer:
            assert answer.status == 401
            assert "a portal token is for the API" in await answer.text()


async def test_what_is_sent_again_to_a_tenants_subscription_is_its_tenants(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await a_shop(bus)
        made = await put(bus, shop, "in?tenant=acme", "orders")
        at = f"/subscribers/{made.json['subscriber'].replace('/', '%2F')}/resend"
        ids = [(await bus.publish(shop, [an_event(1, topic="orders", tenant=name)]))[0] for name in ("acme", "globex")]
        own, foreign = [await ask(bus, "POST", at, shop, json={"event": id_}) for id_ in ids]

        assert (own.status, foreign.status) == (202, 404)


async def test_a_portal_token_is_a_user_of_basic_too(one: Topology):
    async with a_bus(one, workers=0, root_key="ddp.root") as bus:
        shop = (await ask(bus, "POST", "/api_tokens", "ddp.root", json={"name": "shop"})).json["token"]
        acme = await portal(bus, shop)
        async with bus.http.get(f"{bus.url}/subscriptions", headers=basic(acme)) as response:
            assert response.status == 200
