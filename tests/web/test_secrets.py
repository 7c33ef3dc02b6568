"""Signing secrets and own headers over HTTP: who sees what, and what stays when a receiver is replaced."""

import asyncio

from conftest import Topology
from doubledecker.store import registry
from harness import ROOT_KEY, a_bus, an_event
from web.asking import another_web, ask

CALLBACK = "https://mail.example/"
HEADERS = {"X-Key": "hidden-value", "Cookie": "a=b"}


async def test_a_subscriber_has_no_secret_until_it_asks_for_one_and_then_keeps_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        [before] = await bus.get("/subscriptions", client)

        rotated = (await ask(bus, "POST", "/subscriber/rotate-secret", client)).json
        await bus.subscribe(client, CALLBACK + "moved", "widgets", max=7)

        [after] = await bus.get("/subscriptions", client)
        assert (before["secret_set"], before["secret_rotated_at"]) == (False, None)
        assert (after["secret_set"], after["secret_rotated_at"]) == (True, rotated["rotated_at"])
        assert rotated["receiver"] == after["subscriber"]
        assert rotated["former_until"] is None
        again = (
            await ask(bus, "POST", f"/subscribers/{after['subscriber']}/rotate-secret", json={"overlap_s": 60})
        ).json
        assert again["secret"] != rotated["secret"]
        assert again["former_until"] == again["rotated_at"] + 60_000


async def test_a_secret_ends_with_its_subscriber(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        await ask(bus, "POST", "/subscriber/rotate-secret", client)
        await ask(bus, "DELETE", "/subscriber", client)
        await bus.subscribe(client, CALLBACK, "widgets")

        assert [row["secret_set"] for row in await bus.get("/subscriptions", client)] == [False]


async def test_a_queue_shows_the_secret_of_a_new_callback_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        asked = {"pattern": ".*", "callback": CALLBACK, "headers": HEADERS}

        pulled = (await ask(bus, "PUT", "/queues/hooks", client, json={"pattern": ".*"})).json
        first = (await ask(bus, "PUT", "/queues/hooks", client, json=asked)).json
        same = (await ask(bus, "PUT", "/queues/hooks", client, json=asked)).json
        moved = (await ask(bus, "PUT", "/queues/hooks", client, json={**asked, "callback": CALLBACK + "moved"})).json
        gone = (await ask(bus, "PUT", "/queues/hooks", client, json={"pattern": ".*"})).json
        back = (await ask(bus, "PUT", "/queues/hooks", client, json=asked)).json

        assert first["secret"].startswith("whsec_")
        assert (first["secret_set"], first["headers"]) == (True, HEADERS)
        for other in (
            pulled,
            same,
            moved,
            gone,
            *await bus.get("/queues"),
            await bus.get("/queues/hooks", client),
        ):
            assert "secret" not in other
        assert {row["secret_rotated_at"] for row in (first, same, moved)} == {first["secret_rotated_at"]}
        assert "secret_set" not in gone
        # The callback is new again.
        assert back["secret"] not in {None, first["secret"]}


async def test_a_queue_that_is_given_to_another_client_has_another_secret(one: Topology):
    """The former owner knows the former one, and could sign on."""
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        asked = {"pattern": ".*", "callback": CALLBACK}
        owner = next(row["token"] for row in await bus.get("/api_tokens") if row["name"] == "bob")
        first = (await ask(bus, "PUT", "/queues/hooks", ann, json=asked)).json
        [before] = await registry.queues(bus.partitions.home, ["hooks"])

        by_root = (await ask(bus, "PUT", "/queues/hooks", json=asked)).json
        given = (await ask(bus, "PUT", "/queues/hooks", json={**asked, "owner": owner})).json
        kept = (await ask(bus, "PUT", "/queues/hooks", bob, json=asked)).json

        [after] = await registry.queues(bus.partitions.home, ["hooks"])
        assert after.signing is not None
        assert (before.signing and before.signing.secret, after.signing.secret) == (first["secret"], given["secret"])
        assert first["secret"] != given["secret"]
        assert after.signing.former == ()
        assert "secret" not in by_root
        assert "secret" not in kept


async def test_a_queue_of_an_earlier_version_stays_unsigned_when_it_is_put_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        asked = {"pattern": ".*", "callback": CALLBACK}
        await ask(bus, "PUT", "/queues/hooks", json=asked)
        [queue] = await registry.queues(bus.partitions.home, ["hooks"])
        home = bus.partitions.home
        kept = await home.command("HGET", home.key("queues"), "hooks")
        old = kept.replace(registry_part(kept), b"")
        await home.command("HSET", home.key("queues"), "hooks", old)
        async with another_web(bus) as url:
            put = (await ask(bus, "PUT", "/queues/hooks", json={**asked, "lease_ms": 5000}, url=url)).json
            rotated = await ask(bus, "POST", "/queues/hooks/rotate-secret", url=url)

        assert queue.signing is not None
        assert (put["secret_set"], put["secret_rotated_at"]) == (False, None)
        assert "secret" not in put
        assert rotated.json["former_until"] is None


def registry_part(record: bytes) -> bytes:
    """What a record holds of signing."""
    begin = record.index(b',"signing":')
    return record[begin : record.index(b"}", begin) + 1]


async def test_headers_are_shown_to_their_owner_alone_and_kept_until_others_are_given(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets", headers=HEADERS)
        await ask(bus, "PUT", "/queues/hooks", client, json={"pattern": ".*", "callback": CALLBACK, "headers": HEADERS})
        await bus.subscribe(client, CALLBACK, "widgets")

        [mine] = await bus.get("/subscriptions", client)
        assert mine["headers"] == HEADERS
        assert (await bus.get("/queues/hooks", client))["headers"] == HEADERS
        assert "headers" not in (await bus.get("/subscriptions", ROOT_KEY))[0]
        assert "headers" not in (await bus.get("/queues/hooks", ROOT_KEY))
        assert "headers" not in (await bus.get("/queues", ROOT_KEY))[0]
        await bus.subscribe(client, CALLBACK, "widgets", headers={})
        assert (await bus.get("/subscriptions", client))[0]["headers"] == {}


async def test_a_header_that_is_not_allowed_is_refused_by_name_and_changes_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        for headers in ({"Webhook-Id": "hidden-value"}, {"X-Key": "hidden-value\r\nHost: a"}, {"X-Key": 7}):
            body = {"topics": ["widgets"], "callback": CALLBACK, "pattern": ".*", "headers": headers}
            subscribed = await ask(bus, "POST", "/subscription", client, json=without(body, "pattern"))
            put = await ask(bus, "PUT", "/queues/hooks", client, json=without(body, "topics"))
            for refused in (subscribed, put):
                assert refused.status == 400
                assert next(iter(headers)) in refused.detail or "headers" in refused.detail
                assert "hidden-value" not in refused.detail

        assert await bus.get("/subscriptions", client) == []
        assert await bus.get("/queues", client) == []


def without(body: dict[str, object], field: str) -> dict[str, object]:
    return {name: value for name, value in body.items() if name != field}


async def test_rotations_at_the_same_time_lose_no_secret(one: Topology):
    """Each answer's secret signs, in whichever order they came."""
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        async with another_web(bus) as other:
            path, body = "/subscriber/rotate-secret", {"overlap_s": 60}
            asked = [ask(bus, "POST", path, client, json=body, url=url) for url in (None, other, None, other)]
            answers = await asyncio.gather(*asked)
        [id_] = [answer.json["receiver"] for answer in answers[:1]]
        kept = await bus.partitions.home.command("HGET", bus.partitions.home.key(f"subscriber:{id_}"), "signing")

        assert [answer.status for answer in answers] == [200] * 4
        assert all(answer.json["secret"].encode() in kept for answer in answers)


async def test_another_client_can_not_rotate(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client, other = await bus.token("client"), await bus.token("other")
        await bus.subscribe(client, CALLBACK, "widgets")
        await bus.publish(client, [an_event(1)])
        [mine] = await bus.get("/subscriptions", client)

        for action in ("rotate-secret", "test"):
            assert (await ask(bus, "POST", f"/subscribers/{mine['subscriber']}/{action}", other)).status == 404
        assert (await bus.get("/subscriptions", client))[0]["secret_set"] is False
