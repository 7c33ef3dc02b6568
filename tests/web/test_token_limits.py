"""Tokens of some topics or tenants: what they publish, and what they get on each way out."""

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace

import pytest

from conftest import Topology
from doubledecker.store import dead_letters
from harness import TestBus, a_bus, an_event, within
from letters import a_letter
from receiver import Receiver
from streams import a_stream
from web.asking import ask
from web.test_scopes import make, patch

SOME = [("orders", "acme"), ("orders", "beta"), ("mails", "acme"), ("mails", "beta")]


async def publish_some(bus: TestBus) -> None:
    publisher = await bus.token("publisher")
    await bus.publish(publisher, [an_event(n, topic, tenant=tenant) for n, (topic, tenant) in enumerate(SOME)])


def seen(events: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(event["topic"], event["tenant"]) for event in events}


@pytest.mark.parametrize(
    ("scopes", "allowed", "published"),
    [
        ({"tenants": ["acme"]}, {("orders", "acme"), ("mails", "acme")}, 2),
        ({"topics": ["orders"]}, {("orders", "acme"), ("orders", "beta")}, 0),
        ({"topics": ["m*"], "tenants": ["acme", "other"]}, {("mails", "acme")}, 1),
        ({"topics": []}, set(), 0),
    ],
)
async def test_a_limited_token_publishes_and_gets_what_it_is_limited_to(one: Topology, scopes, allowed, published: int):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", **scopes)
        await ask(bus, "PUT", "/queues/mine", limited, json={"pattern": ".*"})
        await publish_some(bus)
        pulled = (await ask(bus, "POST", "/queues/mine/pull", limited, json={"max": 9})).json["messages"]
        tested = (await ask(bus, "POST", "/filters/test", limited, json={"filter": {"type": ["update"]}})).json
        mine = [an_event(topic=f"{topic}2", tenant=tenant) for topic, tenant in SOME]
        answer = await ask(bus, "POST", "/events", limited, json=mine)

    assert seen([message["event"] for message in pulled]) == allowed
    assert seen(tested["events"]) == allowed
    assert len(answer.json.get("ids", [])) == published
    assert all("this token may not publish" in each["why"] for each in answer.json["refused"])


async def test_a_topic_beyond_the_limits_is_refused_when_subscribing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", topics=["orders"])
        body = {"topics": ["orders", "mails"], "callback": "https://mail.example/"}
        answer = await ask(bus, "POST", "/subscription", limited, json=body)
        bulk = await ask(bus, "POST", "/subscription", limited, json={**body, "topics": ["orders"], "tier": "bulk"})

    assert answer.detail == "this token may not subscribe to topic 'mails'; its topics are orders"
    assert (answer.status, bulk.status) == (403, 403)


async def test_limits_are_joined_with_a_filter_and_hold_at_once_when_they_change(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "limited")
        wanted = {"pattern": ".*", "filter": {"topic": [{"prefix": "o"}]}}
        await ask(bus, "PUT", "/queues/mine", made["token"], json=wanted)
        await patch(bus, made["id"], {"scopes": {"tenants": ["beta"]}})
        await publish_some(bus)
        pulled = (await ask(bus, "POST", "/queues/mine/pull", made["token"], json={"max": 9})).json["messages"]

    assert seen([message["event"] for message in pulled]) == {("orders", "beta")}


async def test_a_limited_client_gets_notices_of_its_own_receivers(one: Topology):
    async with a_bus(one) as bus:
        limited = await bus.token("limited", tenants=["acme"])
        await ask(bus, "PUT", "/queues/notices", limited, json={"pattern": r".*:doubledecker\.receivers:.*"})
        await bus.subscribe(limited, "http://127.0.0.1:9/", "orders", max=1)
        await publish_some(bus)
        pull = {"max": 1, "wait_ms": 10_000}
        pulled = (await within(ask(bus, "POST", "/queues/notices/pull", limited, json=pull), 20)).json["messages"]

    assert [message["event"]["topic"] for message in pulled] == ["doubledecker.receivers"]


async def test_a_stream_has_what_its_token_is_limited_to_past_and_present(one: Topology):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", tenants=["beta"])
        await publish_some(bus)
        async with a_stream(bus.url, limited, **{"from": "earliest"}) as stream:
            past = await stream.events(2)
            later = await bus.token("later")
            await bus.publish(later, [an_event(topic="later", tenant=tenant) for tenant in ("acme", "beta")])
            [present] = await stream.events(1)

    assert seen(past) == {("orders", "beta"), ("mails", "beta")}
    assert (present["topic"], present["tenant"]) == ("later", "beta")


@pytest.mark.parametrize(
    ("change", "reason"), [({"scopes": {"tenants": ["beta"]}}, "changed"), ({"expires_in_s": 1}, "revoked")]
)
async def test_a_stream_ends_when_its_token_changes_or_expires(one: Topology, change, reason: str):
    async with a_bus(one, workers=0, heartbeat_s=0.1) as bus:
        made = await make(bus, "limited")
        async with a_stream(bus.url, made["token"]) as stream:
            await patch(bus, made["id"], change)
            [frame] = await stream.until_ended()

    assert (frame.name, frame.data["reason"]) == ("dropped", reason)


async def test_topics_and_metrics_show_a_limited_token_its_own_part(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await publish_some(bus)
        by_topic, by_tenant = await bus.token("by_topic", topics=["m*"]), await bus.token("by_tenant", tenants=["acme"])
        shown = [(await ask(bus, "GET", "/topics", each)).json for each in (by_topic, by_tenant)]
        statuses = [
            (await ask(bus, "GET", path, secret)).status
            for path, secret in (("/topics/orders", by_topic), ("/metrics", by_tenant), ("/metrics", by_topic))
        ]

    assert [[(row["name"], row["events"]) for row in rows] for rows in shown] == [
        [("mails", 2)],
        [("mails", None), ("orders", None)],
    ]
    assert statuses == [403, 403, 403]


async def test_what_a_receiver_got_before_its_token_was_limited_is_not_shown(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "mail")
        secret = made["token"]
        await ask(bus, "PUT", "/queues/mine", secret, json={"pattern": ".*:orders:.*"})
        await publish_some(bus)
        home = bus.partitions.home
        former = [replace(a_letter(n), tenant=name) for n, name in enumerate(("acme", "beta"))]
        # What dies in the millisecond of the limit is shown.
        home.shift_ms = -1000
        await dead_letters.add(home, "@mine", former)
        home.shift_ms = 0
        await patch(bus, made["id"], {"scopes": {"tenants": ["beta"]}})
        await dead_letters.add(home, "@mine", [replace(a_letter(9), tenant="beta")])
        paths = ("", "/messages?tenant=acme", "/messages?tenant=beta", "/dead", "/dead?tenant=acme", "/facets/acme")
        answers = [await ask(bus, "GET", f"/queues/mine{path}", secret) for path in paths]

    assert [answer.status for answer in answers] == [200, 403, 200, 200, 403, 403]
    assert [facet["tenant"] for facet in answers[0].json["facets"]] == ["beta"]
    assert seen([row["event"] for row in answers[2].json["messages"]]) == {("orders", "beta")}
    assert [(row["id"], row["tenant"]) for row in answers[3].json["messages"]] == [(a_letter(9).id, "beta")]
    assert answers[3].json["count"] == 1


async def test_an_event_beyond_the_limits_is_not_sent_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", tenants=["beta"])
        await bus.subscribe(limited, "https://mail.example/", "orders")
        publisher = await bus.token("publisher")
        ids = await bus.publish(publisher, [an_event(topic="orders", tenant=name) for name in ("acme", "beta")])
        statuses = [(await ask(bus, "POST", "/subscriber/resend", limited, json={"event": id_})).status for id_ in ids]

    assert statuses == [404, 202]


async def test_a_replay_beyond_the_limits_is_refused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        limited = await bus.token("limited", tenants=["beta"], topics=["orders"])
        await ask(bus, "PUT", "/queues/mine", limited, json={"pattern": ".*"})
        asked = [
            {"to_queue": "mine", "tenant": "acme"},
            {"to_queue": "mine", "topic": "mails"},
            {"to_topic": "mails"},
            {"to_queue": "mine"},
        ]
        statuses = [(await ask(bus, "POST", "/replays", limited, json=each)).status for each in asked]

    assert statuses == [403, 403, 403, 202]


async def test_two_tenants_under_load_get_no_byte_of_each_other(topology: Topology):
    """In any order and at any pace: whatever a token gets is its own tenant's, and it gets all of that."""
    names, published = ("acme", "beta"), Counter[str]()
    async with a_bus(topology) as bus, contextlib.AsyncExitStack() as opened:
        receivers = {name: await opened.enter_async_context(Receiver()) for name in names}
        secrets = {name: await bus.token(f"of-{name}", tenants=[name]) for name in names}
        publishers = {name: await bus.token(f"from-{name}") for name in names}
        for name in names:
            await bus.subscribe(secrets[name], receivers[name].url, *names, timeout=0, max=10)
            await ask(bus, "PUT", f"/queues/{name}", secrets[name], json={"pattern": ".*"})
        streams = {name: await opened.enter_async_context(a_stream(bus.url, secrets[name])) for name in names}

        async def publish(topic: str) -> None:
            for n in range(30):
                tenants = (topic, names[n % 2])
                await bus.publish(publishers[topic], [an_event(n, topic, tenant=each) for each in tenants])
                published.update(tenants)

        await asyncio.gather(*map(publish, names))
        for name in names:
            await receivers[name].until_events(published[name])
            tested = await ask(bus, "POST", "/filters/test", secrets[name], json={"filter": {"type": ["update"]}})
            got = [
                await streams[name].events(published[name]),
                await drained(bus, name, secrets[name], published[name]),
                receivers[name].events,
            ]
            assert [Counter(map(str, (event["tenant"] for event in way))) for way in got] == [
                {name: published[name]}
            ] * 3
            assert {event["tenant"] for event in tested.json["events"]} == {name}


async def drained(bus: TestBus, queue: str, secret: str, count: int) -> list[dict[str, object]]:
    """All that a queue has, when it has so many at least, and then nothing for a moment."""
    found: list[dict[str, object]] = []
    more = None
    while more is None or more or len(found) < count:
        pull = {"max": 200, "wait_ms": 200}
        more = (await ask(bus, "POST", f"/queues/{queue}/pull", secret, json=pull)).json["messages"]
        found += [message["event"] for message in more]
    return found


async def test_a_pull_that_waits_ends_when_its_token_expires(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus, "worker")
        await ask(bus, "PUT", "/queues/mine", made["token"], json={"pattern": ".*"})
        pull = {"max": 1, "wait_ms": 20_000}
        waiting = asyncio.create_task(ask(bus, "POST", "/queues/mine/pull", made["token"], json=pull))
        await patch(bus, made["id"], {"expires_in_s": 1})
        answer = await within(waiting, 15)

    assert (answer.status, "expired" in answer.detail) == (401, True)
