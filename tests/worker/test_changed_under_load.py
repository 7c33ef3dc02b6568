"""Changing a subscription while events come: nothing is lost, and each change holds from when it is answered."""

import asyncio

from conftest import Topology
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask

EVENTS, TOGETHER = 600, 20
MATCHING = {"type": ["update", "create"]}
# Each is true of every event that is published, so that whatever was accepted has to arrive.
CHANGES = [
    {"topics": ["load", "other"]},
    {"filter": MATCHING},
    {"format": "json"},
    {"headers": {"X-Key": "new"}},
    {"topics": ["load"], "filter": None},
    {"format": None, "headers": None},
]


async def test_nothing_is_lost_while_topics_filter_format_callback_and_secret_change(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver() as first, Receiver() as second:
        ann, shop = await bus.token("ann"), await bus.token("shop")
        wanted = {"topics": ["load"], "callback": first.url, "timeout": 1, "max": 10}
        assert (await ask(bus, "PUT", "/subscriptions/mail", ann, json=wanted)).status == 201
        accepted: set[str] = set()

        async def publish() -> None:
            for start in range(0, EVENTS, TOGETHER):
                some = [an_event(n, topic="load", tenant=f"t{n % 7}") for n in range(start, start + TOGETHER)]
                accepted.update(await bus.publish(shop, some))

        async def change() -> None:
            urls = [second.url, first.url]
            while not publishing.done():
                for asked in CHANGES:
                    answer = await ask(bus, "PATCH", "/subscriptions/mail", ann, json=asked)
                    assert answer.status == 200, answer.body
                urls.append(moved := urls.pop(0))
                await ask(bus, "PATCH", "/subscriptions/mail", ann, json={"callback": moved})
                await ask(bus, "POST", "/subscriptions/mail/rotate-secret", ann, json={"overlap_s": 0})

        publishing = asyncio.create_task(publish())
        await change()
        await publishing
        async with asyncio.timeout(60):
            while not accepted <= {*first.ids, *second.ids}:
                await asyncio.sleep(0.02)

        assert len(accepted) == EVENTS
        assert {*first.ids, *second.ids} == accepted


async def test_what_waits_is_sent_as_the_subscription_is_at_the_attempt(one: Topology):
    """Topics and filter are those of when it was accepted."""
    async with a_bus(one) as bus, Receiver() as former, Receiver() as latter:
        ann, shop = await bus.token("ann"), await bus.token("shop")
        wanted = {"topics": ["load"], "callback": former.url, "timeout": 0}
        await ask(bus, "PUT", "/subscriptions/mail", ann, json=wanted)
        await ask(bus, "POST", "/subscriptions/mail/pause", ann)
        ids = await bus.publish(shop, [an_event(n, topic="load") for n in range(3)])
        changes = {"callback": latter.url, "topics": ["other"], "filter": {"type": ["none"]}, "headers": {"X-Key": "k"}}
        await ask(bus, "PATCH", "/subscriptions/mail", ann, json=changes)
        await bus.publish(shop, [an_event(9, topic="load")])
        await ask(bus, "POST", "/subscriptions/mail/resume", ann)

        await latter.until_events(3)
        assert (former.ids, sorted(latter.ids)) == ([], sorted(ids))
        assert latter.batches[0].headers["X-Key"] == "k"
