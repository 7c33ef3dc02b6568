"""The audit trail over HTTP: who did what, how many, from where; seen by root, and by a client of itself."""

from typing import Any

import pytest

from conftest import Topology
from doubledecker.assembly.settings import Settings
from doubledecker.bus import audit as trail
from doubledecker.errors import BusAway
from doubledecker.store import audit, dead_letters
from doubledecker.web import auditing, origins
from harness import ROOT_KEY, TestBus, a_bus
from letters import a_letter
from web.asking import an_app, ask

Row = dict[str, Any]


async def recorded(bus: TestBus, query: str = "", secret: str = ROOT_KEY) -> list[Row]:
    answer = await ask(bus, "GET", f"/audit{query}", secret)
    assert answer.status == 200, answer.body
    return list(answer.json["records"])


def test_every_route_that_may_change_something_is_recorded_or_named_as_one_that_is_not():
    routes = [f"{method} {path}" for path, row in an_app(Settings(root_key="r")).table.routes.items() for method in row]
    changing = {at for at in routes if not at.startswith("GET ")}
    named = auditing._ACTIONS.keys() | {f"{each}" for each in auditing.UNRECORDED}

    assert {at for at in changing if not auditing.action_of(at)} == auditing.UNRECORDED, "see web/auditing.py"
    assert named <= changing
    assert not any(auditing.action_of(at) for at in routes if at.startswith("GET "))


async def test_a_record_says_who_did_what_to_what_how_many_and_from_where(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        said = {"X-Request-Id": "r-1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        await ask(bus, "PUT", "/queues/jobs", ann, json={"pattern": ".*"}, headers=said)
        await ask(bus, "PUT", "/queues/jobs", ann, json={"pattern": ".*", "lease_ms": 5000})
        await dead_letters.add(bus.partitions.home, "@jobs", [a_letter(1), a_letter(2)])
        await ask(bus, "POST", "/queues/jobs/dead/purge", json={"dry_run": True})
        await ask(bus, "POST", "/queues/jobs/dead/purge", json={})
        await ask(bus, "DELETE", "/queues/none", ann)
        await ask(bus, "POST", "/erasures", json={"tenant": "acme"})
        found = await recorded(bus)

    made = found[-2]
    assert [(row["actor_name"], row["action"], row["count"], row["status"]) for row in found] == [
        ("root", "erasure.asked", None, 202),
        ("root", "dead_letters.purged", 2, 200),
        ("ann", "queue.changed", None, 200),
        ("ann", "queue.created", None, 201),
        ("root", "token.created", None, 201),
    ]
    assert [row["target"] for row in found[1:4]] == ["@jobs", "jobs", "jobs"]
    assert found[0]["detail"] == "tenant=acme"
    assert found[-1]["target"] == made["actor"]
    assert {row["outcome"] for row in found} == {"done"}
    assert (made["address"], made["proxy"], made["request_id"]) == ("127.0.0.1", "", "r-1")
    assert made["traceparent"] == said["traceparent"]
    assert found[2]["fields"] == ["pattern", "lease_ms"]


async def test_no_secret_is_recorded(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        body = {"topics": ["t"], "callback": "http://127.0.0.1:9/", "headers": {"X-Key": "hidden-1"}, "secret": True}
        await ask(bus, "POST", "/subscriber", ann, json=body)
        rotated = (await ask(bus, "POST", f"/api_tokens/{ann}/rotate", json={"token": "hidden-2"})).json
        await ask(bus, "DELETE", "/api_tokens/hidden-2")
        await ask(bus, "DELETE", "/api_tokens/hidden-3")
        found = await recorded(bus)
        kept = await bus.partitions.home.command("XRANGE", bus.partitions.home.key("journal:audit"), "-", "+")

    assert [(row["action"], row["target"]) for row in found[:3]] == [
        ("token.deleted", ""),
        ("token.deleted", rotated["id"]),
        ("token.rotated", rotated["id"]),
    ]
    assert not [secret for secret in (ann, "hidden", ROOT_KEY) if secret in f"{kept} {found}"]


async def test_records_are_chosen_and_paged_and_a_client_sees_its_own(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        for name in ("a", "b"):
            for secret in (ann, bob):
                await ask(bus, "PUT", f"/queues/{name}{secret[:3]}", secret, json={"pattern": ".*"})
        whole = await recorded(bus)

        assert await recorded(bus, "?action=queue.created") == whole[:4]
        assert await recorded(bus, "?actor=bob") == await recorded(bus, f"?actor={whole[0]['actor']}") == whole[0:4:2]
        assert await recorded(bus, "?actor=root") == whole[4:]
        assert await recorded(bus, "?target=bann&action=queue.created") == [whole[1]]
        assert await recorded(bus, "?to=2026-01-01") == await recorded(bus, "?from=2100-01-01") == []
        assert await recorded(bus, secret=ann) == await recorded(bus, "?actor=ann") == whole[1:4:2]
        assert await recorded(bus, "?actor=bob", ann) == []
        first = await ask(bus, "GET", "/audit?limit=4")
        assert await recorded(bus, f"?before={first.json['before']}") == whole[4:]
        for wrong in ("?action=all", "?who=ann", "?before=x", "?from=soon", "?limit=0"):
            assert (await ask(bus, "GET", f"/audit{wrong}")).status == 400


async def test_what_is_denied_is_recorded_up_to_a_bound(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trail, "_DENIED_MAX", 2)
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        for _ in range(4):
            assert (await ask(bus, "POST", "/erasures", ann, json={"tenant": "acme"})).status == 403
        found = await recorded(bus, "?action=erasure.asked")

    assert [(row["actor_name"], row["outcome"], row["status"]) for row in found] == [("ann", "denied", 403)] * 2
    assert found[0]["detail"] == "this needs the root key, or a token with the action admin"


async def test_without_a_note_nothing_is_changed_and_a_note_without_an_end_becomes_a_record(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: object) -> None:
        raise BusAway("gone")

    async with a_bus(one, workers=0) as bus:
        with monkeypatch.context() as patch:
            patch.setattr(audit, "begin", away)
            assert (await ask(bus, "POST", "/api_tokens", json={"name": "ann"})).status == 503
        assert (await ask(bus, "GET", "/api_tokens")).status == 204
        with monkeypatch.context() as patch:
            patch.setattr(audit, "end", away)
            assert (await ask(bus, "POST", "/api_tokens", json={"name": "ann"})).status == 201
        assert await recorded(bus) == []
        assert await audit.end_left(bus.partitions.home, now_ms=0) == 0
        assert await audit.end_left(bus.partitions.home, now_ms=2**53) == 1
        assert await audit.end_left(bus.partitions.home, now_ms=2**53) == 0
        [row] = await recorded(bus)

    assert (row["action"], row["actor"], row["outcome"], row["status"]) == ("token.created", "root", "unknown", None)


def test_an_address_is_taken_from_trusted_proxies_alone():
    def whence(peer: str, *forwarded: str) -> tuple[str, str]:
        headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
        proxies = Settings(root_key="r", trusted_proxies="10.0.0.0/8,::1").proxies
        return origins.whence({"client": (peer, 1), "headers": headers}, proxies)

    assert whence("192.0.2.1", "198.51.100.7") == ("192.0.2.1", "")
    assert whence("10.0.0.1", "198.51.100.7") == ("198.51.100.7", "10.0.0.1")
    assert whence("::ffff:10.0.0.1", "forged, 198.51.100.7", "10.9.9.9") == ("198.51.100.7", "::ffff:10.0.0.1")
    assert whence("10.0.0.1", "198.51.100.7, unknown") == whence("10.0.0.1") == ("10.0.0.1", "")
