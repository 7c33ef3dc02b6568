"""Tokens of some topics or tenants: what they publish, and what they get on each way out."""

import pytest

from conftest import Topology
from harness import TestBus, a_bus, an_event, within
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
