"""Queues over HTTP: registering, pulling, settling, ruling facets, dead letters; who may; what bad input gets."""

import asyncio
import json
import time
from dataclasses import replace
from uuid import UUID

import aiohttp
import pytest
from yarl import URL

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.store import queue_contents, registry
from doubledecker.web import queues
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic, within
from web.asking import another_web

_STRANGE_IDS = ("", "x", "7-1", "0-1", "-1-1", "0-x", "9" * 5000 + "-1")


async def ask(
    bus: TestBus, secret: str, method: str, path: str, body: object = None, *, status: int = 200
) -> dict[str, object]:
    """Send a request, check the status, return the body."""
    async with bus.http.request(method, bus.url + path, json=body, headers=basic(secret)) as response:
        text = await response.text()
        assert response.status == status, text
        return await response.json(content_type=None) if text else {}


async def pull(bus: TestBus, secret: str, name: str = "jobs", **asked: object) -> list[dict]:
    return (await ask(bus, secret, "POST", f"/queues/{name}/pull", asked))["messages"]


def named(messages: list[dict]) -> dict[str, object]:
    return {"messages": [{"id": each["id"], "attempt": each["attempt"]} for each in messages]}


class TestRegistering:
    async def test_a_new_queue_is_201_a_changed_one_200_and_both_show(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            first = await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*:jobs:.*"}, status=201)
            second = await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": "a:.*:.*", "attempts_max": 3})

            assert (first["pattern"], first["attempts_max"]) == ([".*:jobs:.*"], 10)
            assert (second["pattern"], second["attempts_max"]) == (["a:.*:.*"], 3)
            [listed] = await ask(bus, secret, "GET", "/queues")
            assert {**listed, **second} == listed

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({}, "pattern"),
            ({"pattern": "(a"}, "missing )"),
            ({"pattern": r"(a)\1"}, "back-references"),
            ({"pattern": "(?=a)"}, "look-around"),
            ({"pattern": ""}, "the pattern is empty"),
            ({"pattern": [".*", ""]}, "the pattern is empty"),
            ({"pattern": "email_event"}, "'.*email_event.*' matches those that contain it"),
            ({"pattern": [".*:a:b", "a b"]}, "'a b' matches no tenant:topic:type"),
            ({"pattern": "a" * 513}, "512"),
            ({"pattern": "[a-z]{1,1000}"}, "too large"),
            ({"pattern": r"(\pL|\pN|\pP){1,40}.*"}, "too large: over a thousand steps, at most 500"),
            ({"pattern": []}, "from 1 to 20"),
            ({"pattern": ["a"] * 0 + [f"a{n}" for n in range(21)]}, "from 1 to 20"),
            ({"pattern": "a", "lease_ms": 99}, "from 100 to"),
            ({"pattern": "a", "attempts_max": 0}, "from 1 to"),
            ({"pattern": "a", "charge": "weight"}, "time or count"),
            ({"pattern": "a", "overflow": "explode"}, "drop_oldest or refuse"),
            ({"pattern": "a", "max_length": 0}, "from 1 to"),
            ({"pattern": "a", "owner": "someone"}, "admin alone"),
            ({"pattern": "a", "callback": "ftp://x.example"}, "callback"),
            ({"pattern": "a", "colour": "red"}, "colour"),
        ],
    )
    async def test_bad_input_is_400_and_says_what_is_allowed(self, one: Topology, body: object, said: str):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            answer = await ask(bus, secret, "PUT", "/queues/jobs", body, status=400)

            assert said in answer["detail"]
            assert await ask(bus, secret, "GET", "/queues") == []

    async def test_a_queue_that_is_put_as_it_is_changes_nothing_and_no_pattern_is_checked_again(
        self, one: Topology, monkeypatch: pytest.MonkeyPatch
    ):
        checked: list[str] = []
        check = queues.check_pattern
        monkeypatch.setattr(queues, "check_pattern", lambda pattern: (checked.append(pattern), check(pattern)))
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            wanted = {"pattern": [".*:jobs:.*", "a:.*"], "callback": "https://jobs.example/"}
            await ask(bus, secret, "PUT", "/queues/jobs", wanted, status=201)
            before = await registry.version(bus.partitions.home)
            await ask(bus, secret, "PUT", "/queues/jobs", wanted)
            same = await registry.version(bus.partitions.home)
            await ask(bus, secret, "PUT", "/queues/jobs", {**wanted, "pattern": ["a:.*", "b:.*"]})

            assert same == before
            assert checked == [".*:jobs:.*", "a:.*", "b:.*"]

    async def test_a_uuid_is_random_unless_given_stays_and_is_shown_to_the_owner_alone(self, one: Topology):
        """It was the queue's name: whoever knew it could post to the callback as the bus does."""
        wanted = {"pattern": ".*:jobs:.*", "callback": "https://jobs.example/"}
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            first = await ask(bus, secret, "PUT", "/queues/jobs", wanted, status=201)
            again = await ask(bus, secret, "PUT", "/queues/jobs", wanted)
            silent = await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*:jobs:.*"})
            back = await ask(bus, secret, "PUT", "/queues/jobs", wanted)
            mine = await ask(bus, secret, "GET", "/queues/jobs")
            [listed] = await ask(bus, ROOT_KEY, "GET", "/queues")
            as_root = await ask(bus, ROOT_KEY, "PUT", "/queues/own", wanted, status=201)
            given = await ask(bus, secret, "PUT", "/queues/jobs", {**wanted, "uuid": "mine"})

            assert UUID(first["uuid"]).version == 4
            assert "uuid" not in silent
            assert {each["uuid"] for each in (first, again, back, mine)} == {first["uuid"]}
            assert ("uuid" in listed, listed["uuid_set"]) == (False, True)
            assert as_root["uuid"] not in {first["uuid"], "own"}
            assert given["uuid"] == "mine"

    async def test_a_uuid_that_is_the_queue_s_name_stays(self, one: Topology):
        """Version 0.1.0 kept none, and the name was the credential."""
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            wanted = {"pattern": ".*:jobs:.*", "callback": "https://jobs.example/"}
            await ask(bus, secret, "PUT", "/queues/jobs", wanted, status=201)
            home = bus.partitions.home
            record = json.loads(await home.command("HGET", home.key("queues"), "jobs"))
            del record["uuid"]
            await home.command("HSET", home.key("queues"), "jobs", json.dumps(record, separators=(",", ":")))
            async with another_web(bus) as url:
                old = replace(bus, url=url)
                again = await ask(old, secret, "PUT", "/queues/jobs", {**wanted, "max": 7})

            assert (again["uuid"], again["uuid_set"], again["max"]) == ("jobs", False, 7)

    @pytest.mark.parametrize("name", ["Bad%20Name", "%2E", "%2e%2e"])
    async def test_a_bad_name_is_400(self, one: Topology, name: str):
        async with a_bus(one, workers=0) as bus:
            url = URL(f"{bus.url}/queues/{name}", encoded=True)
            async with bus.http.put(url, json={"pattern": "a"}, headers=basic(ROOT_KEY)) as response:
                detail = (await response.json())["detail"]

            assert response.status == 400
            assert "[a-z0-9_.-]{1,64}, and be neither . nor .." in detail

    async def test_a_tenant_whose_facet_no_url_could_name_is_400(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": "a:.*"}, status=201)
            url = URL(f"{bus.url}/queues/jobs/facets/%2e%2e", encoded=True)
            async with bus.http.patch(url, json={"weight": 2}, headers=basic(ROOT_KEY)) as response:
                detail = (await response.json())["detail"]

            assert response.status == 400
            assert "tenant is '..'" in detail

    async def test_a_queue_is_its_owners_and_roots_alone(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mine, other = await bus.token("mine"), await bus.token("other")
            await ask(bus, mine, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            for method, path in [
                ("PUT", "/queues/jobs"),
                ("GET", "/queues/jobs"),
                ("DELETE", "/queues/jobs"),
                ("POST", "/queues/jobs/pull"),
                ("PATCH", "/queues/jobs/facets/a"),
                ("POST", "/queues/jobs/purge"),
            ]:
                await ask(bus, other, method, path, {"pattern": ".*"} if method == "PUT" else {}, status=403)
            await ask(bus, other, "GET", "/queues/jobs/dead", status=404)
            assert await ask(bus, other, "GET", "/queues") == []
            changed = await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": "b:.*"})
            assert changed["owner"].startswith("mine-")
            await ask(bus, mine, "GET", "/queues/jobs")

    @pytest.mark.parametrize("owner", ["shopp-12345678", "mine", "x" * 100_000])
    async def test_root_gives_a_queue_to_clients_that_there_are(self, one: Topology, owner: str):
        async with a_bus(one, workers=0) as bus:
            await bus.token("mine")
            [mine] = [each["token"] for each in await bus.get("/api_tokens")]
            asked = {"pattern": ".*", "owner": owner}
            refused = await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", asked, status=400)
            given = await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {**asked, "owner": mine}, status=201)
            taken = await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {**asked, "owner": "root"})

            assert refused["detail"] == f"owner is {owner[:80]!r}; no client has that id, GET /api_tokens lists them"
            assert (given["owner"], taken["owner"]) == (mine, "root")

    async def test_an_unknown_queue_is_404_everywhere(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/pull"), ("POST", "/ack"), ("GET", "/dead")]:
                answer = await ask(bus, ROOT_KEY, method, f"/queues/nothing{path}", {}, status=404)
                assert "nothing" in answer["detail"]


class TestPulling:
    async def test_an_event_is_pulled_once_acked_and_gone(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": "acme:widgets:.*"}, status=201)
            ids = await bus.publish(secret, [an_event(1, tenant="acme"), an_event(2, tenant="other")])
            [message] = await pull(bus, secret, max=10)

            assert (message["event"]["id"], message["tenant"], message["attempt"]) == (ids[0], "acme", 1)
            assert message["lease_until"] > time.time() * 1000 + 20_000
            assert await pull(bus, secret, max=10) == []
            settled = await ask(bus, secret, "POST", "/queues/jobs/ack", named([message]))
            assert settled == {"ids": [message["id"]], "lost": []}
            assert await ask(bus, secret, "POST", "/queues/jobs/ack", named([message])) == {
                "ids": [],
                "lost": [message["id"]],
            }
            shown = await ask(bus, secret, "GET", "/queues/jobs")
            assert (shown["waiting"], shown["in_flight"]) == (0, 0)
            assert (shown["counters"]["pulled"], shown["counters"]["acked"]) == (1, 1)

    async def test_a_waiting_pull_gets_what_is_published_next(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            waiting = asyncio.create_task(pull(bus, secret, wait_ms=20_000))
            await asyncio.sleep(0.3)
            [id_] = await bus.publish(secret, [an_event(1)])

            async with asyncio.timeout(10):
                [message] = await waiting
            assert message["event"]["id"] == id_

    async def test_a_wait_ends_empty_handed(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)

            assert await pull(bus, secret, wait_ms=200) == []

    async def test_what_a_client_that_went_away_would_have_got_is_there_for_the_next(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*", "lease_ms": 60_000}, status=201)
            with pytest.raises(TimeoutError):
                await bus.http.post(
                    f"{bus.url}/queues/jobs/pull",
                    json={"wait_ms": 20_000},
                    headers=basic(secret),
                    timeout=aiohttp.ClientTimeout(total=0.3),
                )
            await asyncio.sleep(0.2)
            await bus.publish(secret, [an_event(1)])

            assert len(await pull(bus, secret, wait_ms=5_000)) == 1

    async def test_nack_and_extend_answer_which_were_still_theirs(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(n) for n in range(3)])
            first, second, third = await pull(bus, secret, max=3)
            extended = await ask(bus, secret, "POST", "/queues/jobs/extend", {**named([first]), "lease_ms": 600_000})
            nacked = await ask(bus, secret, "POST", "/queues/jobs/nack", named([second, {**third, "attempt": 9}]))

            assert extended["ids"] == [first["id"]]
            assert extended["lease_until"] > time.time() * 1000 + 500_000
            assert nacked == {"ids": [second["id"]], "lost": [third["id"]]}
            [again] = await pull(bus, secret, max=3)
            assert (again["id"], again["attempt"]) == (second["id"], 2)

    @pytest.mark.parametrize(
        ("path", "body", "said"),
        [
            ("pull", {"max": 0}, "from 1 to 200"),
            ("pull", {"max": 201}, "from 1 to 200"),
            ("pull", {"wait_ms": 30_001}, "from 0 to 30000"),
            ("pull", {"lease_ms": 1}, "from 100 to"),
            ("pull", {"maximum": 1}, "maximum"),
            ("ack", {}, "messages"),
            ("ack", {"messages": [{"id": "0-1"}]}, "attempt"),
            ("ack", {"messages": [{"id": "0-1", "attempt": 1}] * 1001}, "1000"),
            ("nack", {"messages": [{"id": "0-1", "attempt": 1, "delay_ms": -1}]}, "delay_ms is -1"),
            ("extend", {"messages": [], "lease_ms": 1}, "from 100 to"),
            ("dead/redrive", {"ids": "0-1"}, "array"),
        ],
    )
    async def test_bad_input_is_400(self, one: Topology, path: str, body: object, said: str):
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            answer = await ask(bus, ROOT_KEY, "POST", f"/queues/jobs/{path}", body, status=400)

            assert said in answer["detail"]

    async def test_ids_that_are_none_are_lost_not_errors(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            body = {"messages": [{"id": id_, "attempt": 1} for id_ in _STRANGE_IDS]}
            answer = await ask(bus, ROOT_KEY, "POST", "/queues/jobs/ack", body)

            assert answer["ids"] == []
            assert len(answer["lost"]) == len(_STRANGE_IDS)


class TestRightsDuringAWait:
    async def test_a_token_revoked_during_the_wait_gets_nothing(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mine, waiting = await self._waiting(bus, status=401)
            await ask(bus, ROOT_KEY, "DELETE", f"/api_tokens/{mine}", status=204)
            await bus.publish(await bus.token("shop"), [an_event(1)])

            assert "revoked" in (await within(waiting, 5))["detail"]
            assert len(await pull(bus, ROOT_KEY)) == 1

    async def test_a_queue_made_anew_by_another_is_not_the_waiting_ones(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mine, waiting = await self._waiting(bus, status=403)
            other = await bus.token("other")
            await ask(bus, mine, "DELETE", "/queues/jobs", status=204)
            await ask(bus, other, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)

            await self._goes_to(other, bus, waiting)

    async def test_a_queue_that_root_gave_away_is_not_the_waiting_ones(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            _, waiting = await self._waiting(bus, status=403)
            other = await bus.token("other")
            [owner] = [each["token"] for each in await bus.get("/api_tokens") if each["name"] == "other"]
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*", "owner": owner})

            await self._goes_to(other, bus, waiting)

    async def test_the_end_of_a_queue_ends_the_wait_soon(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mine, waiting = await self._waiting(bus, status=404)
            await ask(bus, mine, "DELETE", "/queues/jobs", status=204)

            assert "no queue named" in (await within(waiting, 5))["detail"]

    async def test_the_terms_are_those_of_the_queue_as_it_is_when_a_message_comes(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            mine, waiting = await self._waiting(bus, status=200)
            await ask(bus, mine, "PUT", "/queues/jobs", {"pattern": ".*", "lease_ms": 3_600_000})
            await bus.publish(mine, [an_event(1)])

            [message] = (await within(waiting, 5))["messages"]
            assert message["lease_until"] > time.time() * 1000 + 3_000_000

    async def _goes_to(self, owner: str, bus: TestBus, waiting: "asyncio.Task[dict]") -> None:
        """What is published next is the owner's, and whoever was waiting before is told why it is not theirs."""
        await bus.publish(owner, [an_event(1)])

        assert "another client" in (await within(waiting, 5))["detail"]
        assert len(await pull(bus, owner)) == 1

    async def _waiting(self, bus: TestBus, *, status: int) -> tuple[str, "asyncio.Task[dict]"]:
        """A client whose pull really waits, for much longer than the test, and will be answered so."""
        secret = await bus.token("consumer")
        await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
        asked = {"wait_ms": 30_000}
        waiting = asyncio.create_task(ask(bus, secret, "POST", "/queues/jobs/pull", asked, status=status))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        return secret, waiting


class TestFacets:
    async def test_a_paused_tenant_waits_and_a_resumed_one_is_served(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            rule = await ask(bus, secret, "PATCH", "/queues/jobs/facets/acme", {"paused": True, "weight": 2.5})
            assert rule == {"weight": 2.5, "concurrency": None, "rate_per_s": None, "paused": True}
            await bus.publish(secret, [an_event(1, tenant="acme")])
            assert await pull(bus, secret, max=5) == []
            facet = await ask(bus, secret, "GET", "/queues/jobs/facets/acme")
            assert (facet["waiting"], facet["paused"], facet["share"]) == (1, True, 0.0)

            waiting = asyncio.create_task(pull(bus, secret, wait_ms=20_000))
            await asyncio.sleep(0.2)
            await ask(bus, secret, "PATCH", "/queues/jobs/facets/acme", {"paused": False})
            async with asyncio.timeout(10):
                assert [each["tenant"] for each in await waiting] == ["acme"]

    async def test_shares_follow_the_weights_of_those_who_wait(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await ask(bus, secret, "PATCH", "/queues/jobs/facets/b", {"weight": 3})
            await bus.publish(secret, [an_event(n, tenant=tenant) for n, tenant in enumerate("aab")])
            shown = await ask(bus, secret, "GET", "/queues/jobs")

            assert [(row["tenant"], row["waiting"], row["share"]) for row in shown["facets"]] == [
                ("a", 2, 0.25),
                ("b", 1, 0.75),
            ]

    @pytest.mark.parametrize(
        "body", [{"weight": 0}, {"concurrency": 0}, {"rate_per_s": -1}, {"weight": "much"}, {"wight": 1}]
    )
    async def test_bad_rules_are_400(self, one: Topology, body: object):
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await ask(bus, ROOT_KEY, "PATCH", "/queues/jobs/facets/a", body, status=400)

    async def test_null_ends_a_bound(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await ask(bus, ROOT_KEY, "PATCH", "/queues/jobs/facets/a", {"concurrency": 2, "rate_per_s": 5})
            rule = await ask(bus, ROOT_KEY, "PATCH", "/queues/jobs/facets/a", {"concurrency": None})

            assert (rule["concurrency"], rule["rate_per_s"]) == (None, 5.0)


class TestWhatItHolds:
    @pytest.mark.parametrize("number", ["0", "1001", "many", "9" * 5000])
    @pytest.mark.parametrize("path", ["?facets=", "/dead?limit=", "/messages?limit="])
    async def test_a_limit_that_is_none_is_400(self, one: Topology, path: str, number: str):
        """One of thousands of digits was 500."""
        async with a_bus(one, workers=0) as bus:
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            answer = await ask(bus, ROOT_KEY, "GET", f"/queues/jobs{path}{number}", status=400)

            assert answer["detail"].startswith(path.strip("=").partition("?")[2])
            assert "it must be from 1 to 1000" in answer["detail"]

    async def test_dead_letters_are_listed_looked_at_redriven_and_purged(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*:widgets:.*", "attempts_max": 1}, status=201)
            await bus.publish(secret, [an_event(n, tenant=f"t{n}") for n in range(4)])
            messages = await pull(bus, secret, max=10)
            await ask(bus, secret, "POST", "/queues/jobs/nack", {**named(messages), "why": "no such customer"})

            listed = await ask(bus, secret, "GET", "/queues/jobs/dead")
            assert listed["count"] == 4
            letter = listed["messages"][0]
            assert (letter["attempts"], letter["why"]) == (1, "no such customer")
            assert (await ask(bus, secret, "GET", "/queues/jobs/dead?tenant=t2"))["count"] == 1
            twice = {"ids": [letter["id"]] * 2, "dry_run": True}
            assert (await ask(bus, secret, "POST", "/queues/jobs/dead/redrive", twice))["messages"] == 1
            assert await ask(bus, secret, "GET", f"/queues/jobs/dead/{letter['id']}") == letter
            [found] = (await ask(bus, secret, "GET", "/queues/jobs/dead?tenant=t2"))["messages"]
            counted = await ask(bus, secret, "POST", "/queues/jobs/dead/redrive", {"tenant": "t2", "dry_run": True})
            assert {**counted, "until": ""} == {"count": 1, "messages": 1, "dry_run": True, "until": ""}
            done = await ask(bus, secret, "POST", "/queues/jobs/dead/redrive", {"ids": [found["id"]]})
            assert {**done, "until": ""} == {"count": 1, "messages": 1, "dry_run": False, "until": ""}
            [again] = await pull(bus, secret, max=10)
            # Counted on: whoever held it before it died cannot settle it now.
            assert (again["id"], again["attempt"]) == (found["id"], 2)
            assert (await ask(bus, secret, "POST", "/queues/jobs/dead/purge", {}))["messages"] == 3
            await ask(bus, secret, "GET", f"/queues/jobs/dead/{letter['id']}", status=404)

    async def test_who_has_the_most_waiting_is_shown_also_among_many(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(n, tenant=f"t{n}") for n in range(150)])
            await bus.publish(secret, [an_event(n, tenant="zzz") for n in range(5)])
            shown = await ask(bus, secret, "GET", "/queues/jobs")
            assert [(row["tenant"], row["waiting"]) for row in shown["facets"][:1]] == [("zzz", 5)]
            assert len(shown["facets"]) == 100

    async def test_a_purge_counts_first_and_takes_only_the_tenants(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(n, tenant=f"t{n % 3}") for n in range(9)])
            peeked = await ask(bus, secret, "GET", "/queues/jobs/messages?tenant=t1&limit=2")
            assert [each["tenant"] for each in peeked["messages"]] == ["t1", "t1"]
            counted = await ask(bus, secret, "POST", "/queues/jobs/purge", {"tenant": "t1", "dry_run": True})
            assert counted == {"messages": 3, "dry_run": True}
            assert (await ask(bus, secret, "POST", "/queues/jobs/purge", {"tenant": "t1"}))["messages"] == 3
            assert {each["tenant"] for each in await pull(bus, secret, max=10)} == {"t0", "t2"}

    async def test_a_purge_of_what_waits_takes_no_ids(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(1)])
            answer = await ask(bus, secret, "POST", "/queues/jobs/purge", {"ids": ["0-9"]}, status=400)
            assert "'ids'" in answer["detail"]
            assert (await ask(bus, secret, "GET", "/queues/jobs"))["waiting"] == 1

    async def test_a_purge_counts_what_comes_back_later_as_it_destroys_it(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(n, tenant=f"t{n % 2}") for n in range(6)])
            pulled = [{"id": each["id"], "attempt": each["attempt"]} for each in await pull(bus, secret, max=4)]
            await ask(bus, secret, "POST", "/queues/jobs/nack", {"messages": pulled, "delay_ms": 60_000})
            counted = await ask(bus, secret, "POST", "/queues/jobs/purge", {"tenant": "t1", "dry_run": True})
            assert counted == {"messages": 3, "dry_run": True}
            assert (await ask(bus, secret, "POST", "/queues/jobs/purge", {"tenant": "t1"}))["messages"] == 3
            assert (await ask(bus, secret, "POST", "/queues/jobs/purge", {"dry_run": True}))["messages"] == 3

    async def test_a_queue_that_holds_messages_is_deleted_only_when_asked_to_discard_them(self, topology: Topology):
        async with a_bus(topology) as bus:
            secret = await bus.token("consumer")
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            await bus.publish(secret, [an_event(n, tenant=f"t{n}") for n in range(3)])
            answer = await ask(bus, secret, "DELETE", "/queues/jobs", status=409)
            assert "3 waiting" in answer["detail"]
            await ask(bus, secret, "DELETE", "/queues/jobs?discard=1", status=204)
            await ask(bus, secret, "GET", "/queues/jobs", status=404)
            await ask(bus, secret, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
            assert await pull(bus, secret, max=10) == []


class TestFullQueues:
    async def test_a_queue_that_refuses_refuses_the_events_that_do_not_fit(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("publisher")
            body = {"pattern": ".*", "max_length": 2, "overflow": "refuse"}
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", body, status=201)
            answer = await ask(bus, secret, "POST", "/events", [an_event(n) for n in range(3)], status=202)

            assert len(answer["ids"]) == 2
            [refused] = answer["refused"]
            assert refused["index"] == 2
            assert refused["why"] == (
                "queue 'jobs' is full, and set to refuse; consume or purge what it holds, raise its max_length or "
                "facet_max_length, or let it drop the oldest (overflow)"
            )
            await ask(bus, secret, "POST", "/events", an_event(4), status=429)
            await ask(bus, secret, "POST", "/events?all=1", [an_event(5), an_event(6)], status=429)
            topic = {"type": "create", "url": "https://example.org/1"}
            await ask(bus, secret, "POST", "/topics/widgets", topic, status=429)

    async def test_a_queue_that_drops_keeps_the_newest(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("publisher")
            await ask(bus, ROOT_KEY, "PUT", "/queues/jobs", {"pattern": ".*", "facet_max_length": 2}, status=201)
            ids = await bus.publish(secret, [an_event(n) for n in range(5)])

            messages = await pull(bus, ROOT_KEY, max=10)
            assert [each["event"]["id"] for each in messages] == ids[3:]
            shown = await ask(bus, ROOT_KEY, "GET", "/queues/jobs")
            assert shown["counters"]["dropped"] == 3


async def test_a_list_ends_after_some_megabytes_and_redriving_does_not(one: Topology):
    count = 160
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await ask(bus, shop, "PUT", "/queues/jobs", {"pattern": ".*"}, status=201)
        for part in range(2):
            await bus.publish(shop, [an_event(part, data="x" * 60_000) for _ in range(count // 2)])
        peeked = (await ask(bus, shop, "GET", "/queues/jobs/messages?limit=1000"))["messages"]
        pulled = (await ask(bus, shop, "POST", "/queues/jobs/pull", {"max": 200}))["messages"]
        held = [{"id": message["id"], "attempt": message["attempt"]} for message in pulled]
        await ask(bus, shop, "POST", "/queues/jobs/nack", {"messages": held, "reject": True})
        dead = await ask(bus, shop, "GET", "/queues/jobs/dead?limit=1000")
        counted = await ask(bus, shop, "POST", "/queues/jobs/dead/redrive", {"dry_run": True})
        redriven = await ask(bus, shop, "POST", "/queues/jobs/dead/redrive", {})

        assert len(pulled) == count
        assert [row["id"] for row in peeked] == [message["id"] for message in pulled][: len(peeked)]
        assert 8_000_000 < len(peeked) * 60_000 < 8_388_608
        assert (dead["count"], len(dead["messages"])) == (count, len(peeked))
        assert (counted["messages"], redriven["messages"]) == (count, count)


async def test_who_had_a_queue_gets_and_settles_nothing_of_it_by_an_old_copy_of_the_registry(topology: Topology):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as stale:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        for secret in (ann, bob):
            await bus.http.put(f"{bus.url}/queues/jobs", json={"pattern": ".*"}, headers=basic(secret))
            await bus.publish(secret, [an_event(n, f"of_{secret[:2]}", tenant=f"t{n}") for n in range(9)])
            if secret == ann:
                await stale.registry.refresh()
                former = stale.registry.snapshot.queues["jobs"]
                held = (await stale.rings.pull(former, most=4)).messages
                await bus.http.delete(f"{bus.url}/queues/jobs?discard=1", headers=basic(ann))

        pulled = await stale.rings.pull(former, most=50)
        assert (len(held), pulled.messages) == (4, ())
        assert await stale.rings.ack(former, held) == []
        assert await queue_contents.purge(stale.partitions.home, former, "t1") == 0
        async with bus.http.post(f"{bus.url}/queues/jobs/pull", json={"max": 50}, headers=basic(bob)) as response:
            assert len((await response.json())["messages"]) == 9
