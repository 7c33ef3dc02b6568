"""Reserved topics: nobody publishes on them, owns one or replays into one, whichever way it is tried."""

import pytest

from conftest import Topology
from doubledecker.store import registry
from harness import ROOT_KEY, a_bus, an_event
from web.asking import ask, journal

TOPIC = "doubledecker.receivers"
LATER = "doubledecker.anything"


@pytest.mark.parametrize("topic", [TOPIC, LATER, "doubledecker."])
async def test_no_client_publishes_on_a_reserved_topic_or_owns_one(one: Topology, topic: str):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        tried = [
            await ask(bus, "POST", f"/topics/{topic}", shop, json={"type": "noop", "url": "https://a.example/"}),
            await ask(bus, "POST", "/events", shop, json=an_event(topic=topic)),
            await ask(bus, "POST", "/events", shop, json=[an_event(topic=topic)]),
            await ask(bus, "POST", "/events?all=1", shop, json=[an_event(topic="orders"), an_event(topic=topic)]),
            await ask(bus, "POST", "/replays", shop, json={"to_topic": topic}),
            await ask(bus, "POST", "/replays", ROOT_KEY, json={"to_topic": topic}),
            await ask(bus, "POST", f"/topics/{topic}/give", ROOT_KEY, json={"to": "shop-12345678"}),
        ]
        mixed = await ask(bus, "POST", "/events", shop, json=[an_event(topic="orders"), an_event(topic=topic)])

        assert [answer.status for answer in tried] == [403] * 7
        assert all("reserved" in answer.body.decode() for answer in tried)
        assert mixed.status == 202
        assert [each["index"] for each in mixed.json["refused"]] == [1]
        assert [event["topic"] for event in await journal(bus)] == ["orders"]
        assert [each["name"] for each in await bus.get("/topics")] == ["orders"]


async def test_a_topic_that_an_older_bus_gave_away_is_listed_closed_and_can_be_deleted(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        [token] = await bus.get("/api_tokens")
        await registry.claim_topics(bus.partitions.home, [LATER, "orders"], publisher=token["token"])
        found = await registry.topics_like(bus.partitions.home, "doubledecker.*")
        refused = await ask(bus, "POST", "/events", shop, json=an_event(topic=LATER))
        listed = [each["name"] for each in await bus.get("/topics")]
        deleted = await ask(bus, "DELETE", f"/topics/{LATER}", shop)

        assert found == [LATER]
        assert refused.status == 403
        assert listed == [LATER, "orders"]
        assert deleted.status == 204
