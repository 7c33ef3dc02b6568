"""Sending past events to one receiver again: to it alone, marked, and once for each idempotency key."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import json

from conftest import Topology
from doubledecker.store import journal
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from receiver import Receiver
from web.asking import Answer, ask, waiting
from web.test_attempts import attempts
from worker.test_deliver import _until

NOBODY = "http://127.0.0.1:9/"


async def resend(bus: TestBus, secret: str, body: object, at: str = "/subscriber", key: str = "") -> Answer:
    headers = {"Idempotency-Key": key} if key else {}
    return await ask(bus, "POST", f"{at}/resend", secret, json=body, headers=headers)


async def test_an_event_is_sent_to_one_receiver_again_and_says_so(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as hook, Receiver() as other:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, hook.url, "widgets", timeout=0)
        await bus.subscribe(bob, other.url, "widgets", timeout=0)
        event = an_event(1, tenant="acme", key="k", data={"n": 1.50})
        [id_] = await bus.publish(bob, [event])
        await hook.until_events(1)
        await other.until_events(1)

        answer = await resend(bus, ann, {"event": id_})
        await hook.until_events(2)

        first, again = hook.events
        token = answer.json["receiver"]
        assert (answer.status, answer.json) == (202, {"receiver": token, "events": [id_], "missing": [], "refused": []})
        assert token.startswith("ann-")
        assert again == {**first, "replay": "resend"}
        assert b'"data":{"n": 1.5}' in hook.batches[1].body
        assert len(other.events) == 1
        assert (await resend(bus, ROOT_KEY, {"event": id_}, f"/subscribers/{token}")).status == 202
        assert (await resend(bus, bob, {"event": id_}, f"/subscribers/{token}")).status == 404
        await hook.until_events(3)


async def test_the_events_of_an_attempt_are_sent_again_in_order(one: Topology):
    """Ids that publishers gave tell no time; the attempt does."""
    async with a_bus(one) as bus, Receiver() as hook:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        queue = {"pattern": ".*", "callback": hook.url, "timeout": 0, "max": 10}
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json=queue)).status == 201
        await bus.publish(bob, [an_event(n, id=f"mine-{n}", tenant="t") for n in range(3)])
        await hook.until_events(3)
        found = await _until(lambda: attempts(bus, "/queues/hooks/attempts", ann), bool)
        last = found[-1]

        answer = await resend(bus, ann, {"attempt": last["id"]}, "/queues/hooks")
        await hook.until_events(3 + last["event_count"])
        single = await resend(bus, ann, {"event": "mine-2"}, "/queues/hooks")

        assert answer.json == {"receiver": "@hooks", "events": last["events"], "missing": [], "refused": []}
        assert hook.ids[3 : 3 + last["event_count"]] == last["events"]
        assert single.status == 202
        await hook.until_events(4 + last["event_count"])
        assert await _ids_waiting(bus) == []
        await bus.subscribe(bob, hook.url, "other")
        assert (await resend(bus, bob, {"attempt": last["id"]})).status == 404
        assert (await resend(bus, bob, {"attempt": last["id"]}, "/queues/hooks")).status == 404


async def test_only_events_that_the_receiver_gets_are_sent_again_whoever_else_uses_their_id(topology: Topology):
    """An id is its publisher's: anybody can give it to an event of another topic, in any partition."""
    async with a_bus(topology) as bus, Receiver() as hook, Receiver() as queued:
        ann, eve = await bus.token("ann"), await bus.token("eve")
        await bus.subscribe(ann, hook.url, "orders", timeout=0)
        queue = {"pattern": ".*:orders:.*", "callback": queued.url, "timeout": 0}
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json=queue)).status == 201
        ids = [f"evt-{n}" for n in range(4)]
        await bus.publish(eve, [an_event(topic="evil", id=id_, key=f"e{id_}") for id_ in ids])
        await bus.publish(ann, [an_event(topic="orders", id=id_, key=id_) for id_ in ids])
        await bus.publish(eve, [an_event(topic="evil", id="alone"), *_on("evil", ids, tenant="t")])
        await hook.until_events(4)
        await queued.until_events(4)
        carried = await _until(lambda: attempts(bus, "/subscriber/attempts", ann), _have_all(4))

        for n, id_ in enumerate(ids):
            assert (await resend(bus, ann, {"event": id_})).json["events"] == [id_]
            assert (await resend(bus, ROOT_KEY, {"event": id_}, "/queues/hooks")).json["events"] == [id_]
            await hook.until_events(5 + n)
            await queued.until_events(5 + n)
        for attempt in carried:
            answer = await resend(bus, ann, {"attempt": attempt["id"]})
            assert (answer.json["events"], answer.json["missing"]) == (attempt["events"], [])
        await hook.until_events(12)
        assert {event["topic"] for event in hook.events + queued.events} == {"orders"}
        assert (await resend(bus, ann, {"event": "alone"})).status == 404
        assert (await resend(bus, ann, {"event": "alone"}, "/queues/hooks")).status == 404


async def test_an_id_that_several_events_of_a_receiver_have_is_409_until_a_topic_is_named(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, NOBODY, "orders", "bills")
        await bus.publish(ann, _on("orders", ["same"]))
        await bus.publish(bob, _on("bills", ["same"]))

        unclear = await resend(bus, ann, {"event": "same"})
        named = await resend(bus, ann, {"event": "same", "topic": "bills"})

        assert unclear.status == 409
        assert "on bills, orders" in unclear.detail
        assert '"topic"' in unclear.detail
        assert (named.status, named.json["events"]) == (202, ["same"])
        assert [event["topic"] for event in await waiting(bus) if "replay" in event] == ["bills"]
        assert (await resend(bus, ann, {"event": "same", "topic": "others"})).status == 404


def _on(topic: str, ids: list[str], **fields: object) -> list[dict[str, object]]:
    return [an_event(topic=topic, id=id_, **fields) for id_ in ids]


def _have_all(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda rows: sum(row["event_count"] for row in rows) == count


async def test_of_cloud_events_with_one_id_the_one_whose_source_is_named_is_sent_again(one: Topology):
    """The newest was sent, whichever was meant."""
    async with a_bus(one) as bus, Receiver() as hook:
        ann = await bus.token("ann")
        await bus.subscribe(ann, hook.url, "widgets", timeout=0)
        for source in ("/a", "/b"):
            event = {"specversion": "1.0", "id": "1", "source": source, "type": "paid", "topic": "widgets"}
            headers = {**basic(ann), "Content-Type": "application/cloudevents+json"}
            async with bus.http.post(f"{bus.url}/events", data=json.encode(event), headers=headers) as published:
                assert published.ok
        await hook.until_events(2)

        unclear = await resend(bus, ann, {"event": "1"})
        named = await resend(bus, ann, {"event": "1", "source": "/a"})
        unknown = await resend(bus, ann, {"event": "1", "source": "/c"})
        await hook.until_events(3)

        assert (unclear.status, named.status, unknown.status) == (409, 202, 404)
        assert "of the sources /a, /b" in unclear.json["detail"]
        assert hook.events[2]["cloudevent"] == {"source": "/a"}


async def test_a_request_that_is_repeated_under_its_key_sends_once(topology: Topology):
    """Whatever process answers it, and wherever the first one died."""
    async with a_bus(topology, workers=0) as bus:
        ann = await bus.token("ann")
        await bus.subscribe(ann, NOBODY, "widgets")
        ids = await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(4)])
        for _ in range(3):
            assert (await resend(bus, ann, {"event": ids[0]}, key="once")).status == 202
        for key in ("", "", "another"):
            assert (await resend(bus, ann, {"event": ids[1]}, key=key)).status == 202
        assert (await resend(bus, ann, {"event": ids[1]}, key="once")).status == 202

        again = [event["id"] for event in await waiting(bus) if "replay" in event]
        assert sorted(again) == sorted([ids[0], *[ids[1]] * 4])
        [row] = await bus.get("/subscribers", ann)
        assert row["events"]["queued"] == 9
        queue = {"pattern": ".*", "callback": NOBODY, "max_length": 1}
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json=queue)).status == 201
        for key, status in (("once", 202), ("more", 429), ("once", 202)):
            assert (await resend(bus, ann, {"event": ids[2]}, "/queues/hooks", key)).status == status
        found = await bus.get("/queues/hooks", ann)
        assert (found["waiting"], found["counters"]["dropped"]) == (1, 0)


async def test_a_queue_takes_as_many_as_it_has_room_for_and_names_the_others(one: Topology):
    """Also for root: what it sends to a client's queue is that client's."""
    async with a_bus(one, workers=1) as bus, Receiver() as hook:
        ann = await bus.token("ann")
        queue = {"pattern": ".*", "callback": hook.url, "timeout": 0, "max": 10}
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json=queue)).status == 201
        await ask(bus, "POST", "/queues/hooks/pause", ann)
        ids = await bus.publish(ann, [an_event(n) for n in range(3)])
        await ask(bus, "POST", "/queues/hooks/resume", ann)
        await hook.until_events(3)
        [attempt] = await _until(lambda: attempts(bus, "/queues/hooks/attempts", ann), bool)
        await ask(bus, "POST", "/queues/hooks/pause", ann)
        assert (await ask(bus, "PUT", "/queues/hooks", ann, json={**queue, "max_length": 2})).status == 200

        some = await resend(bus, ann, {"attempt": attempt["id"]}, "/queues/hooks")
        none = await resend(bus, ROOT_KEY, {"event": ids[0]}, "/queues/hooks")

        assert (some.status, some.json["events"], some.json["refused"]) == (202, ids[:2], ids[2:])
        assert none.status == 429
        assert "queue 'hooks' is full" in none.detail


async def test_what_is_not_found_says_where_it_was_looked_for(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        await bus.subscribe(ann, NOBODY, "widgets")
        unknown = await resend(bus, ann, {"event": "nowhere"})
        old = await resend(bus, ann, {"event": "0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"})
        both = await resend(bus, ann, {"event": "a", "attempt": "1-0-0"})
        gone = await resend(bus, ann, {"attempt": "1-0-0"})

        for answer in (unknown, old):
            assert answer.status == 404
            assert "journal" in answer.detail
            assert "doubledecker replay --receiver ann-" in answer.detail
        assert (both.status, gone.status) == (400, 404)


async def test_a_name_that_no_topic_can_have_is_400_before_anything_is_looked_for(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        asked = {"event": "evt-1", "topic": "a:b"}
        answer = await ask(bus, "POST", "/subscriber/resend", ann, json=asked)

        assert (answer.status, "the topic is 'a:b'" in answer.detail) == (400, True)


async def test_what_others_publish_hides_no_event_that_came_just_before_or_was_attempted(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """The look began with the oldest of ten minutes, and ended before it came to what was wanted."""
    monkeypatch.setattr(journal, "_FIND_PAGES_MAX", 2)
    monkeypatch.setattr(journal, "_FIND_COUNT", 1)
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, NOBODY, "widgets")
        for n in range(10):
            await bus.publish(bob, [an_event(n, topic="flood")])
        await bus.publish(bob, [an_event(1, id="just-now")])
        newest = await resend(bus, ann, {"event": "just-now"})
        for n in range(10):
            await bus.publish(bob, [an_event(n, topic="flood")])
        hidden = await resend(bus, ann, {"event": "just-now"})

        assert (newest.status, newest.json["events"]) == (202, ["just-now"])
        assert (hidden.status, "ended before it had come to the end" in hidden.detail) == (404, True)


async def test_what_an_erasure_is_about_is_not_sent_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        await bus.subscribe(ann, NOBODY, "widgets")
        erased, kept = await bus.publish(ann, [an_event(1, tenant="acme"), an_event(2, tenant="other")])
        await ask(bus, "POST", "/erasures", json={"tenant": "other", "dry_run": True})
        assert (await ask(bus, "POST", "/erasures", json={"tenant": "acme"})).status == 202

        assert (await resend(bus, ann, {"event": erased})).status == 404
        assert (await resend(bus, ann, {"event": kept})).status == 202


async def test_a_notification_is_sent_to_receivers_of_its_audience_alone(one: Topology):
    async with a_bus(one) as bus, Receiver(plan=lambda _: 500) as bad:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, bad.url, "widgets", "doubledecker.receivers", timeout=0)
        await bus.subscribe(bob, NOBODY, "gadgets", "doubledecker.receivers")
        queue = {"pattern": ".*:doubledecker.receivers:.*"}
        assert (await ask(bus, "PUT", "/queues/told", ann, json=queue)).status == 201
        await bus.publish(ann, [an_event()])
        shown: Any = await _until(lambda: bus.get("/queues/told/messages", ann), lambda found: found["messages"])
        id_ = shown["messages"][0]["event"]["id"]

        assert (await resend(bus, bob, {"event": id_})).status == 404
        assert (await resend(bus, ann, {"event": id_})).status == 202


async def _ids_waiting(bus: TestBus) -> list[object]:
    return [event["id"] for event in await waiting(bus)]
