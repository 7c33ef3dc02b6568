"""Attempts over HTTP: of a receiver and of an event, newest first, to their owners and root alone."""

from typing import Any

import pytest

from conftest import Topology
from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import LetterBounds
from doubledecker.model.routing import Registry
from doubledecker.store import dead_letters as kept
from doubledecker.store import registry
from harness import ROOT_KEY, TestBus, a_bus, an_event
from letters import a_letter
from receiver import Receiver
from web.asking import ask
from worker.test_deliver import _until


async def attempts(bus: TestBus, path: str, secret: str = ROOT_KEY) -> list[dict[str, Any]]:
    answer = await ask(bus, "GET", path, secret)
    assert answer.status == 200, answer.body
    return list(answer.json["attempts"])


async def walk(bus: TestBus, path: str, secret: str, *, limit: int) -> list[dict[str, Any]]:
    found, before = list[dict[str, Any]](), ""
    while True:
        answer = await ask(bus, "GET", f"{path}?limit={limit}{before}", secret)
        assert len(answer.json["attempts"]) <= limit
        found += answer.json["attempts"]
        if answer.json["before"] is None:
            return found
        before = f"&before={answer.json['before']}"


async def test_a_client_finds_the_attempts_at_its_receivers_with_all_that_is_known(topology: Topology):
    plan = {1: 500, 2: 503}
    async with a_bus(topology) as bus, Receiver(plan=lambda n: plan.get(n, 204)) as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, hook.url, "widgets", timeout=0, max=10)
        [id_] = await bus.publish(bob, [an_event(tenant="acme")])
        await hook.until_events(1)
        found = await _until(lambda: attempts(bus, "/subscriber/attempts", ann), lambda rows: len(rows) == 3)

        assert [(row["attempt"], row["outcome"], row["status"]) for row in found] == [
            (3, "delivered", 204),
            (2, "refused", 503),
            (1, "refused", 500),
        ]
        [body] = [batch.body for batch in hook.batches]
        assert {row["bytes"] for row in found} == {len(body)}
        assert [row["detail"] for row in found] == ["", "Service Unavailable", "Internal Server Error"]
        assert [row["retry_ms"] is None for row in found] == [True, False, False]
        assert {(tuple(row["events"]), row["event_count"]) for row in found} == {((id_,), 1)}
        token = found[0]["receiver"]
        for path, secret in (
            (f"/subscribers/{token}/attempts", ann),
            (f"/subscribers/{token}/attempts", ROOT_KEY),
            (f"/attempts?event={id_}", ann),
            (f"/attempts?event={id_}", ROOT_KEY),
        ):
            assert await attempts(bus, path, secret) == found
        assert await attempts(bus, f"/attempts?event={id_}", bob) == []
        assert (await ask(bus, "GET", f"/subscribers/{token}/attempts", bob)).status == 404
        assert await walk(bus, "/subscriber/attempts", ann, limit=1) == found
        answer = await ask(bus, "GET", "/subscriber/attempts", ann)
        assert (answer.json["before"], answer.json["older"]) == (None, "")


async def test_dead_letters_that_were_dropped_are_shown_to_the_owner_of_their_queue(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        body = {"pattern": ".*", "callback": "http://127.0.0.1:9/"}
        assert (await ask(bus, "PUT", "/queues/jobs", ann, json=body)).status == 201
        await kept.add(bus.partitions.home, "@jobs", [a_letter(1), a_letter(2)])
        known = Registry()
        await registry.refresh(bus.partitions.home, known)
        await dead_letters.drop_beyond(bus.partitions, known, LetterBounds(1, 2**40))

        [found] = await attempts(bus, "/queues/jobs/attempts", ann)

        assert (found["outcome"], found["events"], found["attempt"]) == ("dropped", ["e1"], 0)
        assert await attempts(bus, "/attempts?event=e1", ann) == [found]
        assert await attempts(bus, "/attempts?event=e1", bob) == []


async def test_attempts_at_a_queues_callback_are_its_owners_too(one: Topology):
    async with a_bus(one) as bus, Receiver() as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        body = {"pattern": ".*", "callback": hook.url, "timeout": 0}
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json=body)).status == 201
        assert (await ask(bus, "PUT", "/queues/pulled", ann, json={"pattern": ".*:none:.*"})).status == 201
        [id_] = await bus.publish(bob, [an_event()])
        await hook.until_events(1)
        [found] = await _until(lambda: attempts(bus, "/queues/hooks/attempts", ann), bool)

        assert (found["receiver"], found["events"]) == ("@hooks", [id_])
        assert await attempts(bus, f"/attempts?event={id_}", ann) == [found]
        assert await attempts(bus, f"/attempts?event={id_}", bob) == []
        assert (await ask(bus, "GET", "/queues/hooks/attempts", bob)).status == 404
        assert (await ask(bus, "GET", "/queues/pulled/attempts", ann)).status == 409


async def test_attempts_are_chosen_by_outcome_status_and_time(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as hook:
        ann = await bus.token("ann")
        await bus.subscribe(ann, hook.url, "widgets", timeout=0)
        await bus.publish(ann, [an_event()])
        found = await _until(lambda: attempts(bus, "/subscriber/attempts", ann), lambda rows: len(rows) == 2)

        async def chosen(query: str) -> list[dict[str, Any]]:
            return await attempts(bus, f"/subscriber/attempts?{query}", ann)

        assert await chosen("outcome=failed") == await chosen("outcome=refused") == [found[1]]
        assert await chosen("status=200") == await chosen("outcome=delivered&status=200") == [found[0]]
        assert await chosen(f"before={found[0]['id']}") == [found[1]]
        assert await chosen("from=2026-01-01&to=2100-01-01") == found
        assert await chosen("to=2026-01-01") == await chosen("from=2100-01-01") == []


@pytest.mark.parametrize(
    "query",
    [
        "outcome=bad",
        "status=x",
        "status=1000",
        "status=600",
        "from=then",
        "before=1",
        "limit=0",
        "limit=1001",
        "colour=red",
    ],
)
async def test_a_query_that_cannot_be_meant_is_400_and_says_what_is_allowed(one: Topology, query: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "GET", f"/attempts?event=e&{query}", ROOT_KEY)

        assert answer.status == 400
        assert query.partition("=")[0] in answer.detail


async def test_without_a_lake_the_answer_says_that_older_attempts_are_not_kept(one: Topology):
    async with a_bus(one, workers=0) as bus:
        home = bus.partitions.home
        await home.command("HSET", home.key("journal"), "attempts_trimmed", "5-0")
        kept = await ask(bus, "GET", "/attempts?event=e")
        await home.command("HSET", home.key("journal"), "archive", "lake")
        elsewhere = await ask(bus, "GET", "/attempts?event=e")

        assert "not kept" in kept.json["older"]
        assert "DOUBLEDECKER_LAKE" in elsewhere.json["older"]
        assert (await ask(bus, "GET", "/attempts")).status == 400
