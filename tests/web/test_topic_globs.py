"""Subscriptions to topics by glob, over HTTP."""

import pytest

from conftest import Topology
from harness import a_bus, an_event
from web.asking import ask

CALLBACK = "https://mail.example/"


async def test_a_glob_takes_the_topics_there_are_and_those_to_come_and_outlives_each(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, mail = await bus.token("shop"), await bus.token("mail")
        await bus.publish(shop, [an_event(0, topic="orders.paid")])
        await bus.subscribe(mail, CALLBACK, "orders.*", "orders.paid")
        for tenant in range(3):
            topics = ("orders.paid", "orders.sent", "letters")
            await bus.publish(shop, [an_event(n, topic=topic, tenant=tenant) for n, topic in enumerate(topics)])
        [row] = await bus.get("/subscribers", mail)
        deleted = [await ask(bus, "DELETE", f"/topics/orders.{name}", shop) for name in ("paid", "sent")]
        await bus.publish(shop, [an_event(9, topic="orders.sent")])
        [after] = await bus.get("/subscribers", mail)
        left = [await ask(bus, "DELETE", "/subscriber/topics/orders.*", mail) for _ in range(2)]
        await bus.publish(shop, [an_event(10, topic="orders.sent")])
        [ended] = await bus.get("/subscribers", mail)

        assert (row["topics"], row["events"]["queued"]) == (["orders.*", "orders.paid"], 6)
        assert [answer.headers["Ended-Subscriptions"] for answer in deleted] == ["1", "0"]
        assert (after["topics"], after["events"]["queued"]) == (["orders.*"], 7)
        assert [answer.status for answer in left] == [204, 404]
        assert (ended["topics"], ended["events"]["queued"]) == ([], 7)


@pytest.mark.parametrize(
    ("topics", "more", "status", "said"),
    [
        (["orders.[ab]*"], {}, 400, "a name, or a glob like orders.*, must match"),
        (["orders.*"], {"tier": "bulk"}, 400, "the glob 'orders.*', which a subscriber of tier bulk cannot have"),
        ([f"*{n}*{n}*" for n in range(20)], {}, 429, "steps of compiled patterns of this client"),
    ],
)
async def test_a_glob_that_may_not_be_is_refused(one: Topology, topics: list[str], more: dict, status: int, said: str):
    async with a_bus(one, workers=0, client_pattern_steps_max=200) as bus:
        mail = await bus.token("mail")
        answer = await ask(bus, "POST", "/subscription", mail, json={"topics": topics, "callback": CALLBACK, **more})

        assert answer.status == status
        assert said in answer.detail
        assert await bus.get("/subscribers") == []


async def test_globs_count_with_the_patterns_of_a_clients_queues(one: Topology):
    async with a_bus(one, workers=0, client_pattern_steps_max=40) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "orders.*", "letters")
        refused = await ask(bus, "PUT", "/queues/jobs", mail, json={"pattern": ".*:orders:.*"})
        await bus.subscribe(mail, CALLBACK, "letters")
        taken = await ask(bus, "PUT", "/queues/jobs", mail, json={"pattern": ".*:orders:.*"})

        assert (refused.status, taken.status) == (429, 201)
