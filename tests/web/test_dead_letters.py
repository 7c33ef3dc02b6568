"""Dead letters over HTTP: of subscribers and of queues alike, to their owners and root alone."""

import asyncio
from typing import Any

import pytest

from conftest import Topology
from doubledecker.bus import dead_letters as letters_of
from doubledecker.store import dead_letters
from harness import ROOT_KEY, TestBus, a_bus, an_event
from letters import a_letter
from receiver import Receiver
from web.asking import ask
from worker.test_deliver import _until
from worker.test_poison import refuse

QUICK = {"backoff_base_ms": 20, "backoff_cap_ms": 200}


async def say(bus: TestBus, method: str, path: str, secret: str, body: object = None, *, status: int = 200) -> Any:
    answer = await ask(bus, method, path, secret, json=body)
    assert answer.status == status, answer.body
    return answer.json


async def listed(bus: TestBus, path: str, secret: str, query: str = "") -> list[dict[str, Any]]:
    return list((await say(bus, "GET", f"{path}{query}", secret))["messages"])


async def a_subscriber(bus: TestBus, receiver: Receiver, **options: object) -> tuple[str, str]:
    """Its secret and its id."""
    secret = await bus.token("mail")
    await bus.subscribe(secret, receiver.url, "widgets", **{"timeout": 0, "max": 10, **options})
    return secret, (await bus.get("/subscribers", secret))[0]["subscriber"]


async def add(bus: TestBus, receiver: str, count: int) -> None:
    """Letters in every partition, of some topics, tenants and statuses."""
    for partition in bus.partitions.all:
        own = [
            a_letter(n, id=f"{partition.index}-x{n}", topic=f"t{n % 2}", tenant=f"a{n % 3}", status=500 + n % 2)
            for n in range(partition.index, count, len(bus.partitions.all))
        ]
        await dead_letters.add(partition, receiver, own)


@pytest.mark.parametrize("kind", ["subscriber", "queue"])
async def test_what_is_given_up_is_redriven_once_the_receiver_is_mended(topology: Topology, kind: str):
    """1 poison in 100."""
    async with a_bus(topology, **QUICK) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-37"}), 422)
        if kind == "subscriber":
            secret, _ = await a_subscriber(bus, receiver, retry=[10, 10], max=100)
            path = "/subscriber/dead"
        else:
            secret, path = await bus.token("owner"), "/queues/pushed/dead"
            asked = {"pattern": ".*:widgets:.*", "callback": receiver.url, "attempts_max": 3, "retry": [10], "max": 100}
            await say(bus, "PUT", "/queues/pushed", secret, asked, status=201)
        publisher = await bus.token("p")
        await bus.publish(publisher, [an_event(n, id=f"id-{n}") for n in range(100)])
        [letter] = await _until(lambda: listed(bus, path, secret), lambda rows: len(rows) == 1, within_s=20)
        assert (letter["status"], letter["reason"], letter["event"]["id"]) == (422, "attempts", "id-37")
        assert (letter["redriven"], letter["topic"], letter["tenant"]) == (0, "widgets", "default")

        refuse(receiver, frozenset(), 422)
        answer = await say(bus, "POST", f"{path}/redrive", secret, {})

        assert {**answer, "until": ""} == {"count": 1, "messages": 1, "dry_run": False, "until": ""}
        await receiver.until_events(100, within_s=10)
        assert sorted({*receiver.ids}) == sorted(f"id-{n}" for n in range(100))
        [again] = [event for batch in receiver.batches for event in batch.events if event["id"] == "id-37"]
        assert again == {**letter["event"], "redriven": 1}
        assert await listed(bus, path, secret) == []


async def test_an_event_that_dies_again_says_how_often_it_was_redriven(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver(plan=lambda _: 422) as receiver:
        secret, _ = await a_subscriber(bus, receiver, retry={"attempts_max": 1})
        await bus.publish(secret, [an_event(1)])
        for times in range(3):
            [letter] = await _until(lambda: listed(bus, "/subscriber/dead", secret), lambda rows: len(rows) == 1)
            assert (letter["redriven"], letter["event"].get("redriven", 0)) == (times, times)
            await say(bus, "POST", "/subscriber/dead/redrive", secret, {"ids": [letter["id"]]})


async def test_letters_are_chosen_by_all_their_values_in_pages_while_some_leave(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 60)
        everything = {each["id"]: each for each in await listed(bus, "/subscriber/dead", secret, "?limit=1000")}
        assert len(everything) == 60

        for query, keep in (
            ("topic=t1", lambda row: row["topic"] == "t1"),
            ("tenant=a2&status=500", lambda row: (row["tenant"], row["status"]) == ("a2", 500)),
            ("reason=age", lambda _: False),
            ("to=2020-01-01T00:00:00Z", lambda _: False),
            ("from=2020-01-01T00:00:00Z", lambda _: True),
        ):
            answer = await say(bus, "GET", f"/subscribers/{token}/dead?{query}&limit=1000", ROOT_KEY)
            wanted = [id_ for id_, row in everything.items() if keep(row)]
            assert ([row["id"] for row in answer["messages"]], answer["count"]) == (wanted, len(wanted))
            assert answer["after"] is None

        found, after = list[str](), ""
        while after is not None:
            answer = await say(bus, "GET", f"/subscriber/dead?limit=7{after and '&after='}{after}", secret)
            found += [row["id"] for row in answer["messages"]]
            after = answer["after"]
            # Of those that were listed and of those that were not yet.
            gone = {"ids": [found[-1], *[id_ for id_ in everything if id_ not in found][3:4]]}
            await say(bus, "POST", "/subscriber/dead/purge", secret, gone)
        kept = {row["id"] for row in await listed(bus, "/subscriber/dead", secret, "?limit=1000")}
        assert len(found) == len(set(found))
        assert kept <= set(found)


async def test_the_letters_of_an_event_are_picked_from_each_page(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 30)

        query = "/subscriber/dead?event=e17&topic=t1&limit=4"
        pages = [await say(bus, "GET", query, secret)]
        while pages[-1]["after"]:
            pages.append(await say(bus, "GET", f"{query}&after={pages[-1]['after']}", secret))

        found = [letter for page in pages for letter in page["messages"]]
        assert [letter["event"]["id"] for letter in found] == ["e17"]
        assert {page["count"] for page in pages} == {15}


async def test_a_count_comes_before_what_is_done_and_one_request_does_a_bounded_piece(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(letters_of, "SETTLED_MAX", 10)
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 24)
        path = "/subscriber/dead/redrive"

        counted = await say(bus, "POST", path, secret, {"topic": "t1", "dry_run": True})
        done = [await say(bus, "POST", path, secret, {}) for _ in range(4)]

        assert {**counted, "until": ""} == {"count": 12, "messages": 12, "dry_run": True, "until": ""}
        assert [(each["count"], each["messages"]) for each in done] == [(24, 10), (14, 10), (4, 4), (0, 0)]
        [row] = await bus.get("/subscribers", secret)
        assert row["events"]["queued"] == 24


async def test_a_job_redrives_at_a_rate_shows_how_far_it_is_and_takes_none_that_died_later(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 30)

        job = await say(bus, "POST", "/subscriber/dead/redrive", secret, {"rate_per_s": 1000}, status=202)
        # Surely in a later millisecond than the one up to which letters are meant.
        bus.partitions.home.shift_ms += 10
        await dead_letters.add(bus.partitions.home, token, [a_letter(99, id="0-later")])
        at = f"/subscriber/dead/jobs/{job['id']}"
        ended = await _until(lambda: say(bus, "GET", at, secret), lambda row: row["state"] != "running")

        assert (job["count"], job["state"], job["ended_at"]) == (30, "running", None)
        assert (ended["done"], ended["state"]) == (30, "done")
        assert [row["id"] for row in await listed(bus, "/subscriber/dead", secret)] == ["0-later"]
        await receiver.until_events(30)
        assert [row["id"] for row in await say(bus, "GET", "/subscriber/dead/jobs", secret)] == [job["id"]]


async def test_what_is_redriven_counts_as_its_owners_publishes(one: Topology):
    """A receiver that failed all again had them go round as fast as requests came."""
    async with a_bus(one, workers=0, client_events_per_s=1) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 30)
        first = await say(bus, "POST", "/subscriber/dead/redrive", secret, {"topic": "t1"})
        own, named = {"topic": "t0"}, {"ids": ["0-x2"]}

        refused = [await ask(bus, "POST", "/subscriber/dead/redrive", secret, json=body) for body in (own, named)]

        assert first["messages"] == 15
        for answer in refused:
            assert answer.status == 429
            assert "DOUBLEDECKER_CLIENT_EVENTS_PER_S" in answer.detail
            assert int(answer.headers["Retry-After"]) > 1
        assert (await ask(bus, "POST", "/events", secret, json=[an_event()])).status == 429
        counted = await say(bus, "POST", "/subscriber/dead/redrive", secret, {**own, "dry_run": True})
        assert counted["messages"] == 15
        assert (await say(bus, "POST", "/subscriber/dead/purge", secret, own))["messages"] == 15


async def test_a_job_over_no_letters_is_done_and_not_kept(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret, _ = await a_subscriber(bus, receiver)

        job = await say(bus, "POST", "/subscriber/dead/purge", secret, {"rate_per_s": 0.01}, status=202)

        assert (job["state"], job["count"]) == ("done", 0)
        assert await say(bus, "GET", "/subscriber/dead/jobs", secret) == []


async def test_a_job_is_cancelled_and_what_it_did_stays_done(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, token, 30)
        job = await say(bus, "POST", "/subscriber/dead/purge", secret, {"rate_per_s": 0.5, "topic": "t0"}, status=202)
        at = f"/subscriber/dead/jobs/{job['id']}"
        await _until(lambda: say(bus, "GET", at, secret), lambda row: row["done"] == 1)

        cancelled = await say(bus, "DELETE", at, secret)

        assert (cancelled["state"], cancelled["count"], cancelled["done"]) == ("cancelled", 15, 1)
        await say(bus, "POST", "/subscriber/dead/purge", secret, {"rate_per_s": 0.5}, status=202)


async def test_letters_are_their_owners_and_roots_alone(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        other = await bus.token("other")
        await say(bus, "PUT", "/queues/jobs", secret, {"pattern": ".*:widgets:.*"}, status=201)
        for whose, prefix in ((token, f"/subscribers/{token}"), ("@jobs", "/queues/jobs")):
            await add(bus, whose, 3)
            for who, status in ((secret, 200), (ROOT_KEY, 200), (other, 404)):
                await say(bus, "GET", f"{prefix}/dead", who, status=status)
                await say(bus, "GET", f"{prefix}/dead/0-x1", who, status=status)
                for action in ("redrive", "purge"):
                    await say(bus, "POST", f"{prefix}/dead/{action}", who, {"dry_run": True}, status=status)
        await say(bus, "GET", "/subscriber/dead", other, status=404)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?colour=red", "its parameters are topic"),
        ("?status=99", "it must be an HTTP status"),
        ("?status=1000", "it must be an HTTP status"),
        ("?after=x", "the `after` of the page before"),
        ("?from=yesterday", "write it like"),
        ("?limit=0", "from 1 to 1000"),
        ("?topic=t1:x", "the topic is 't1:x'"),
        ("?tenant=a:b", "tenant is 'a:b'"),
        ("?reason=boredom", "reason is 'boredom'; it must be attempts or age or rejected or lease"),
    ],
)
async def test_a_filter_that_is_none_is_400(one: Topology, query: str, said: str):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret, _ = await a_subscriber(bus, receiver)

        assert said in (await say(bus, "GET", f"/subscriber/dead{query}", secret, status=400))["detail"]


async def test_no_filter_reaches_letters_of_a_client_whose_id_begins_with_the_owners(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await add(bus, f"{token}:topic:x-00000001", 4)
        stolen = "x-00000001:topic:t1"

        await say(bus, "GET", f"/subscriber/dead?topic={stolen}", secret, status=400)
        for chosen in ({"topic": stolen}, {"tenant": stolen}, {"reason": stolen, "ids": []}):
            await say(bus, "POST", "/subscriber/dead/purge", secret, {**chosen, "dry_run": True}, status=400)


async def test_letters_are_found_by_their_status(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await dead_letters.add(bus.partitions.home, token, [a_letter(n, status=598 + n) for n in range(2)])
        path, chosen = "/subscriber/dead/purge", {"status": 599, "dry_run": True}

        [found] = await listed(bus, "/subscriber/dead", secret, "?status=599")
        by_id = await say(bus, "POST", path, secret, {**chosen, "ids": [a_letter(n).id for n in (0, 1, 1)]})

        assert (found["status"], by_id["count"]) == (599, 1)
        assert (await say(bus, "POST", path, secret, chosen))["count"] == 1
        for status in (42, 600, 999):
            await say(bus, "POST", path, secret, {"status": status}, status=400)
            answer = await say(bus, "GET", f"/subscriber/dead?status={status}", secret, status=400)
            assert "HTTP status" in answer["detail"]


async def test_whoever_goes_takes_their_letters_along(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        secret, token = await a_subscriber(bus, receiver)
        await say(bus, "PUT", "/queues/jobs", secret, {"pattern": ".*:widgets:.*"}, status=201)
        await add(bus, token, 9)
        await add(bus, "@jobs", 9)

        await ask(bus, "DELETE", "/subscriber", secret)
        await ask(bus, "DELETE", "/queues/jobs?discard=1", secret)

        async with asyncio.timeout(5):
            while any([await dead_letters.sizes(partition) for partition in bus.partitions.all]):
                await asyncio.sleep(0.05)
