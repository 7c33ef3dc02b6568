"""A queue's name may become another client's, who is not shown what the former owner's queue left."""

from typing import Any

import pytest

from conftest import Topology
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues import view
from doubledecker.store import notices, queue_contents, queues, registry
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.queues import LeasedMessage
from harness import ROOT_KEY, TestBus, a_bus, an_event
from receiver import Receiver
from web.asking import ask
from web.test_attempts import attempts
from worker.test_deliver import _until

PATTERN = ".*:widgets:.*"
NOBODY = "http://127.0.0.1:9/"


async def put(bus: TestBus, secret: str, callback: str | None = None, **fields: object) -> dict[str, Any]:
    body = {"pattern": PATTERN, "callback": callback, "timeout": 0, **fields}
    answer = await ask(bus, "PUT", "/queues/hooks", secret, json=body)
    assert answer.status in {200, 201}, answer.body
    return dict(answer.json)


async def destroy(bus: TestBus, secret: str) -> None:
    assert (await ask(bus, "DELETE", "/queues/hooks?discard=1", secret)).status == 204


async def client(bus: TestBus, name: str) -> str:
    """The public id of a client."""
    return str(next(row["token"] for row in await bus.get("/api_tokens") if row["name"] == name))


async def history(bus: TestBus, secret: str, event: str) -> dict[str, object]:
    """All that the routes of a queue show of what was."""
    shown = (await ask(bus, "GET", "/queues/hooks", secret)).json
    return {
        "attempts": await attempts(bus, "/queues/hooks/attempts", secret),
        "of_event": await attempts(bus, f"/attempts?event={event}", secret),
        "dead": (await ask(bus, "GET", "/queues/hooks/dead", secret)).json["messages"],
        "jobs": (await ask(bus, "GET", "/queues/hooks/dead/jobs", secret)).json,
        "counters": {name: count for name, count in shown["counters"].items() if count},
        "held": [shown[name] for name in ("waiting", "in_flight", "delayed", "dead")],
        "stands": [shown[name] for name in ("failures", "refusals", "last_attempted_at")],
    }


NOTHING = {
    "attempts": [],
    "of_event": [],
    "dead": [],
    "jobs": [],
    "counters": {},
    "held": [0, 0, 0, 0],
    "stands": [0, 0, None],
}


async def a_past(bus: TestBus, secret: str) -> tuple[str, str, str]:
    """A queue with attempts, a dead letter and an ended job; returns the ids of an event, an attempt and the job."""
    [id_, _] = await bus.publish(secret, [an_event(), an_event(tenant="purged")])
    await _until(lambda: dead(bus, secret), lambda letters: len(letters) == 2)
    attempt = next(each for each in await attempts(bus, "/queues/hooks/attempts", secret) if id_ in each["events"])
    asked = {"rate_per_s": 1000, "tenant": "purged"}
    job = (await ask(bus, "POST", "/queues/hooks/dead/purge", secret, json=asked)).json["id"]
    await _until(lambda: bus.get("/queues/hooks/dead/jobs", secret), lambda jobs: jobs[0]["state"] == "done")
    return id_, str(attempt["id"]), str(job)


async def dead(bus: TestBus, secret: str) -> list[dict[str, Any]]:
    return list((await ask(bus, "GET", "/queues/hooks/dead", secret)).json["messages"])


async def test_who_takes_the_name_of_a_deleted_queue_is_shown_nothing_of_it(topology: Topology):
    async with a_bus(topology) as bus, Receiver(plan=lambda _: 500) as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann, hook.url, attempts_max=1)
        event, attempt, job = await a_past(bus, ann)
        await destroy(bus, ann)

        await put(bus, bob, NOBODY)

        assert await history(bus, bob, event) == NOTHING
        again = await ask(bus, "POST", "/queues/hooks/resend", bob, json={"attempt": attempt})
        assert again.status == 404
        assert (await ask(bus, "GET", f"/queues/hooks/dead/jobs/{job}", bob)).status == 404
        assert await attempts(bus, f"/attempts?event={event}", ann) == []
        assert [row["id"] for row in await attempts(bus, f"/attempts?event={event}")][-1:] == [attempt]


async def test_one_who_has_a_name_again_sees_the_attempts_of_the_own_queue(one: Topology):
    async with a_bus(one) as bus, Receiver() as hook:
        ann = await bus.token("ann")
        await put(bus, ann, hook.url)
        [event] = await bus.publish(ann, [an_event()])
        [found] = await _until(lambda: attempts(bus, "/queues/hooks/attempts", ann), bool)
        await destroy(bus, ann)
        await put(bus, ann, hook.url)

        assert await attempts(bus, "/queues/hooks/attempts", ann) == [found]
        again = await ask(bus, "POST", "/queues/hooks/resend", ann, json={"attempt": found["id"]})
        assert (again.status, again.json["events"]) == (202, [event])


async def test_who_is_given_a_queue_gets_what_it_holds_and_not_how_it_fared(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 500) as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann, hook.url, attempts_max=1)
        event, attempt, job = await a_past(bus, ann)
        letters = await dead(bus, ann)

        await put(bus, ROOT_KEY, hook.url, attempts_max=1, owner=await client(bus, "bob"))

        found = await history(bus, bob, event)
        assert found["dead"] == letters
        assert (found["attempts"], found["of_event"], found["jobs"]) == ([], [], [])
        assert found["stands"] == [0, 0, None]
        assert (await ask(bus, "POST", "/queues/hooks/resend", bob, json={"attempt": attempt})).status == 404
        assert (await ask(bus, "GET", f"/queues/hooks/dead/jobs/{job}", bob)).status == 404


@pytest.mark.slow
async def test_a_job_of_a_former_owner_does_not_keep_the_next_from_a_job(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 500) as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann, hook.url, attempts_max=1)
        await bus.publish(ann, [an_event(n) for n in range(5)])
        await _until(lambda: dead(bus, ann), lambda letters: len(letters) == 5)
        asked = {"rate_per_s": 0.01}
        job = (await ask(bus, "POST", "/queues/hooks/dead/purge", ann, json=asked)).json["id"]
        await _until(lambda: dead(bus, ann), lambda letters: len(letters) == 4)
        await put(bus, ROOT_KEY, hook.url, attempts_max=1, owner=await client(bus, "bob"))

        begun = await ask(bus, "POST", "/queues/hooks/dead/purge", bob, json={"rate_per_s": 1000})

        assert begun.status == 202
        assert job not in [each["id"] for each in (await ask(bus, "GET", "/queues/hooks/dead/jobs", bob)).json]
        await _until(lambda: dead(bus, bob), lambda letters: not letters)


async def test_what_a_process_left_that_died_while_it_deleted_a_queue_is_nobodys(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann)
        await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(20)])
        pulled = await ask(bus, "POST", "/queues/hooks/pull", ann, json={"max": 5})
        rejected = {"messages": [_held(each) for each in pulled.json["messages"]], "reject": True}
        assert (await ask(bus, "POST", "/queues/hooks/nack", ann, json=rejected)).status == 200
        # As one leaves it that dies right after the first step.
        [queue] = await registry.queues(bus.partitions.home, ["hooks"])
        assert await registry.delete_queue(bus.partitions.home, queue, discard=True) > 0

        await put(bus, bob, NOBODY)

        assert await history(bus, bob, "none") == NOTHING
        for partition in bus.partitions.all:
            left = await partition.command("KEYS", partition.key("queue:*"))
            assert [key for key in left if b":former:" not in key and b":owner:" not in key] == []
            assert await partition.command("KEYS", partition.key("dead:*")) == []


async def test_who_still_holds_a_message_of_a_deleted_queue_settles_none_of_its_successor(one: Topology):
    """Ids are numbers; those of the queue that has the name go on where the former one's ended."""
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann)
        await bus.publish(ann, [an_event()])
        [held] = (await ask(bus, "POST", "/queues/hooks/pull", ann, json={})).json["messages"]
        [former] = await registry.queues(bus.partitions.home, ["hooks"])
        await destroy(bus, ann)
        await put(bus, bob)
        [id_] = await bus.publish(ann, [an_event()])
        [pulled] = (await ask(bus, "POST", "/queues/hooks/pull", bob, json={})).json["messages"]

        # As a worker does that was calling the former queue's callback meanwhile.
        acked = await queues.ack(bus.partitions.home, former, [LeasedMessage(held["id"], held["attempt"])])

        assert acked == []
        assert pulled["event"]["id"] == id_
        settled = await ask(bus, "POST", "/queues/hooks/ack", bob, json={"messages": [_held(pulled)]})
        assert settled.json["ids"] == [pulled["id"]]


async def test_one_who_deletes_a_queue_late_leaves_its_successor_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann)
        seen = await registry.version(bus.partitions.home)
        await destroy(bus, ann)
        await put(bus, bob)
        await bus.publish(bob, [an_event()])

        assert not await queue_contents.destroy(bus.partitions.home, "hooks", version=seen)

        assert (await bus.get("/queues/hooks", bob))["waiting"] == 1


async def test_a_deletion_that_is_late_leaves_the_queue_that_has_the_name_alone(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await put(bus, ann)
        real, is_late = registry.delete_queue, False

        async def late(home: Partition, queue: RegisteredQueue, *, discard: bool) -> int:
            nonlocal is_late
            if not is_late:
                is_late = True
                await destroy(bus, ann)
                await put(bus, bob)
                await bus.publish(bob, [an_event()])
            return await real(home, queue, discard=discard)

        monkeypatch.setattr(registry, "delete_queue", late)
        answer = await ask(bus, "DELETE", "/queues/hooks", ann)

        assert (is_late, answer.status) == (True, 404)
        assert (await bus.get("/queues/hooks", bob))["waiting"] == 1


async def test_a_notice_that_waits_is_not_published_to_the_next_owner(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        home = bus.partitions.home
        for receiver in ("@hooks", "@other"):
            fields = {"type": "receiver.failing", "receiver": receiver, "why": "failed 500", "failures": 1, "since": 1}
            await home.command("XADD", home.key("notices"), "*", *(word for pair in fields.items() for word in pair))
        await put(bus, ann, NOBODY)
        assert [each.receiver for each in await notices.read(home, count=10)] == ["@other"]


async def test_another_owner_has_another_uuid(one: Topology):
    """The former owner knows the former one, and could go on posting with it."""
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        first = (await put(bus, ann, NOBODY, uuid="known"))["uuid"]
        kept = (await put(bus, ann, NOBODY))["uuid"]

        await put(bus, ROOT_KEY, NOBODY, owner=await client(bus, "bob"))
        given = (await bus.get("/queues/hooks", bob))["uuid"]
        await put(bus, ROOT_KEY, NOBODY)
        again = (await put(bus, bob, NOBODY))["uuid"]
        await put(bus, ROOT_KEY, NOBODY, owner=await client(bus, "ann"), uuid="chosen")

        assert (first, kept) == ("known", "known")
        assert len(given) == 36
        assert again == given
        assert (await bus.get("/queues/hooks", ann))["uuid"] == "chosen"


def _held(message: dict[str, Any]) -> dict[str, Any]:
    return {"id": message["id"], "attempt": message["attempt"]}


async def test_a_message_that_comes_in_while_its_queue_is_deleted_stays_with_it(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    """Between the look at what a queue holds and its deletion messages came in, and were destroyed with it."""
    async with a_bus(topology, workers=0) as bus:
        ann = await bus.token("ann")
        await put(bus, ann)
        look, seen = view.look, 0

        async def slow(partitions: Partitions, queue: RegisteredQueue) -> view.QueueOverview:
            nonlocal seen
            overview = await look(partitions, queue)
            seen += 1
            if seen == 1:
                await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(3)])
            return overview

        monkeypatch.setattr(view, "look", slow)
        answer = await ask(bus, "DELETE", "/queues/hooks", ann)

        assert (seen, answer.status) == (1, 409)
        assert (await bus.get("/queues/hooks", ann))["waiting"] == 3
        assert (await ask(bus, "DELETE", "/queues/hooks?discard=1", ann)).status == 204
        await bus.publish(ann, [an_event()])
