"""Client tokens: made and revoked by root, shown once, kept as hashes."""

import asyncio
import re
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker.bus.clients import Clients
from doubledecker.store.journal import inflate
from harness import ROOT_KEY, a_bus, an_event
from web.asking import another_web, ask, everything, journal


async def test_without_any_token_the_list_is_empty_and_says_204(one: Topology):
    async with a_bus(one, workers=0) as bus:
        assert (await ask(bus, "GET", "/api_tokens")).status == 204


async def test_a_new_token_is_its_name_and_chance_and_is_shown_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await ask(bus, "POST", "/api_tokens", json={"name": "shop"})
        listed = await ask(bus, "GET", "/api_tokens")

        assert made.status == 201
        assert re.fullmatch(r"shop--[0-9a-f]{32}", made.json["token"])
        assert made.json["name"] == "shop"
        [row] = listed.json
        assert row["name"] == "shop"
        assert re.fullmatch(r"shop-[0-9a-f]{8}", row["token"])
        assert row["token"] == made.json["id"]
        assert made.json["token"].encode() not in listed.body


async def test_the_same_name_may_have_several_tokens(one: Topology):
    async with a_bus(one, workers=0) as bus:
        first, second = await bus.token("shop"), await bus.token("shop")

        assert first != second
        assert [row["name"] for row in (await ask(bus, "GET", "/api_tokens")).json] == ["shop", "shop"]
        assert (await ask(bus, "GET", "/pulse", first)).status == 204
        assert (await ask(bus, "GET", "/pulse", second)).status == 204


async def test_root_may_choose_the_secret(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "token": "chosen:by_root-1"})

        assert made.status == 201
        assert made.json["token"] == "chosen:by_root-1"
        assert (await ask(bus, "GET", "/pulse", "chosen:by_root-1")).status == 204


async def test_the_same_name_and_secret_again_is_the_same_token(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for _ in range(2):
            assert (await ask(bus, "POST", "/api_tokens", json={"name": "shop", "token": "secret"})).status == 201

        assert len((await ask(bus, "GET", "/api_tokens")).json) == 1


@pytest.mark.parametrize("size", [1, 64])
async def test_names_of_any_allowed_length_make_tokens_that_work(one: Topology, size: int):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("a" * size)

        assert len(secret) <= 64
        assert (await ask(bus, "GET", "/pulse", secret)).status == 204


async def test_no_value_in_the_store_holds_a_secret(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        made = await bus.token("shop")
        chosen = "a-chosen-secret"
        await ask(bus, "POST", "/api_tokens", json={"name": "mail", "token": chosen})
        await bus.subscribe(chosen, "https://mail.example/", "orders")
        await bus.publish(made, [an_event(1, topic="orders", id="own")])
        await ask(bus, "POST", "/events", made, json=an_event(2), headers={"Idempotency-Key": "k"})

        stored = []
        for partition in bus.partitions.all:
            for key in await partition.command("KEYS", partition.key("*")):
                stored += [key, await partition.command("DUMP", key) or b"", *await _values(partition, key)]
        stored = b"\n".join(stored)
        assert b"shop-" in stored
        for secret in (made, chosen, ROOT_KEY):
            assert secret.encode() not in stored


@pytest.mark.parametrize("by", ["id", "token"])
async def test_a_token_is_revoked_by_its_id_or_by_its_secret(one: Topology, by: str):
    async with a_bus(one, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        kept = await bus.token("kept")
        revoked = await ask(bus, "DELETE", f"/api_tokens/{made[by]}")

        assert revoked.status == 204
        assert (await ask(bus, "GET", "/pulse", made["token"])).status == 401
        assert (await ask(bus, "GET", "/pulse", kept)).status == 204


async def test_revoking_what_is_not_there_is_204_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for name in ("nobody-00000000", "{name}", "%00", "root", ROOT_KEY):
            assert (await ask(bus, "DELETE", f"/api_tokens/{name}")).status == 204

        assert (await ask(bus, "GET", "/pulse")).status == 204


async def test_the_subscriber_ends_with_its_token(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "mail"})).json
        publisher = await bus.token("shop")
        await bus.subscribe(made["token"], "https://mail.example/", "widgets")
        await ask(bus, "DELETE", f"/api_tokens/{made['id']}")

        assert await bus.get("/subscribers") == []
        await bus.publish(publisher, [an_event(1)])
        home = bus.partitions.home
        assert await home.command("KEYS", home.key("subscriber*")) == []


async def test_the_name_and_the_secret_of_a_token_have_bounds(one: Topology):
    async with a_bus(one, workers=0) as bus:
        before = await everything(bus)
        for value in ("", "A", "a b", "a" * 65, "ü", "a\n", "a/b", "a.b"):
            for body in ({"name": value}, {"name": "fine", "token": value}):
                answer = await ask(bus, "POST", "/api_tokens", json=body)
                assert answer.status == 400, body
                assert "must match [a-z0-9:_-]{1,64}" in answer.detail
        for body in ({}, {"name": 1}, {"name": None}, {"name": "a", "role": "root"}, [], "a", None):
            assert (await ask(bus, "POST", "/api_tokens", json=body, body=b"null")).status == 400, body

        assert await everything(bus) == before


async def test_a_revoked_token_is_refused_by_another_web_process_within_a_second(one: Topology):
    async with a_bus(one, workers=0) as bus, another_web(bus) as other_url:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        assert (await ask(bus, "GET", "/pulse", made["token"], url=other_url)).status == 204

        await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
        async with asyncio.timeout(1):
            while (await ask(bus, "GET", "/pulse", made["token"], url=other_url)).status != 401:
                await asyncio.sleep(0.02)


async def test_another_web_process_takes_no_event_from_a_revoked_token(topology: Topology):
    async with a_bus(topology, workers=0) as bus, another_web(bus) as other_url:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        assert (await ask(bus, "POST", "/events", made["token"], json=an_event(1), url=other_url)).status == 202

        await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
        refused = await ask(bus, "POST", "/events", made["token"], json=an_event(2), url=other_url)

        assert refused.status == 401
        assert [event["url"] for event in await journal(bus)] == ["https://example.org/1"]


async def test_a_new_token_is_known_to_another_web_process_at_once(one: Topology):
    async with a_bus(one, workers=0) as bus, another_web(bus) as other_url:
        for _ in range(3):
            secret = await bus.token("shop")
            async with asyncio.timeout(1):
                while (await ask(bus, "GET", "/pulse", secret, url=other_url)).status != 204:
                    await asyncio.sleep(0.02)


async def test_tokens_of_a_routemaster_are_imported_once_and_do_not_come_back(one: Topology):
    """A restart would else bring back what was revoked, or rotated, since."""
    given = "demo, shop--6f1d6311 ,gone--1234,"
    async with a_bus(one, workers=0) as bus:
        old = replace(bus, settings=replace(bus.settings, clients=given))
        with capture_logs() as logs:
            async with another_web(old):
                rows = {row["name"]: row["token"] for row in await bus.get("/api_tokens")}
                await ask(bus, "DELETE", f"/api_tokens/{rows['gone']}")
                await ask(bus, "POST", f"/api_tokens/{rows['shop']}/rotate", json={"overlap_s": 0})
            async with another_web(old) as url:
                again = {row["name"]: row["token"] for row in await bus.get("/api_tokens")}
                secrets = ("demo", "shop--6f1d6311", "gone--1234")
                answers = [await ask(bus, "GET", "/pulse", secret, url=url) for secret in secrets]

        assert set(rows) == {"demo", "shop", "gone"}
        assert again == {name: id_ for name, id_ in rows.items() if name != "gone"}
        assert [answer.status for answer in answers] == [204, 401, 401]
        [line] = [line for line in logs if line["event"] == "tokens.imported"]
        assert sorted(line["clients"]) == sorted(rows.values())


async def test_a_token_that_a_client_has_already_is_not_imported_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await ask(bus, "POST", "/api_tokens", json={"name": "mine", "token": "shop--6f1d6311"})
        async with another_web(replace(bus, settings=replace(bus.settings, clients="shop--6f1d6311"))):
            assert [row["name"] for row in await bus.get("/api_tokens")] == ["mine"]


async def _values(partition, key: bytes) -> list[bytes]:
    """A key's values as they are read: DUMP compresses long ones, and so does the journal."""
    reads = {
        b"string": ("GET", key),
        b"hash": ("HGETALL", key),
        b"list": ("LRANGE", key, 0, -1),
        b"set": ("SMEMBERS", key),
        b"zset": ("ZRANGE", key, 0, -1),
    }
    kind = await partition.command("TYPE", key)
    if kind == b"none":  # it has expired meanwhile
        return []
    if kind == b"stream":
        return [inflate(b) for _, fields in await partition.command("XRANGE", key, "-", "+") for b in fields]
    found = await partition.command(*reads[kind])
    return found if isinstance(found, list) else [found]


async def test_a_secret_in_the_path_of_a_request_that_fails_is_not_logged(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Clients, "revoke", fail)
    async with a_bus(one, workers=0) as bus:
        with capture_logs() as lines:
            answer = await ask(bus, "DELETE", "/api_tokens/shop--5ec7e7")

    assert answer.status == 500
    assert [line["path"] for line in lines if line["event"] == "request.failed"] == ["/api_tokens/…"]
