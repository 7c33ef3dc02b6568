"""Topics that several clients publish on: their owner and root say which, and what the topic is for."""

import pytest

from conftest import Topology
from harness import ROOT_KEY, TestBus, a_bus, an_event
from web.asking import another_web, ask, everything, journal

EVENT = {"type": "create", "url": "https://shop.example/orders/1"}


async def clients(bus: TestBus, *names: str) -> list[dict[str, str]]:
    return [(await ask(bus, "POST", "/api_tokens", json={"name": name})).json for name in names]


async def test_whom_the_owner_names_may_publish_too_and_change_nothing(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        shop, till, other = await clients(bus, "shop", "till", "other")
        made = await ask(bus, "PUT", "/topics/orders", shop["token"], json={"publishers": [till["id"]]})
        for secret in (shop["token"], till["token"]):
            await bus.publish(secret, [an_event(n, topic="orders", tenant=f"t{n}") for n in range(3)])
        whole = await ask(bus, "POST", "/events?all=1", till["token"], json=[an_event(9, topic="orders")])
        replayed = await ask(bus, "POST", "/replays", till["token"], json={"to_topic": "orders"})
        refused = [
            await ask(bus, "POST", "/topics/orders", other["token"], json=EVENT),
            await ask(bus, "POST", "/events?all=1", other["token"], json=an_event(topic="orders")),
            await ask(bus, "POST", "/replays", other["token"], json={"to_topic": "orders"}),
            await ask(bus, "PUT", "/topics/orders", till["token"], json={"description": "mine"}),
            await ask(bus, "DELETE", "/topics/orders", till["token"]),
        ]
        shown = await bus.get("/topics/orders", other["token"])

        assert (made.status, whole.status, replayed.status) == (201, 202, 202)
        assert [answer.status for answer in refused] == [403] * 5
        assert shown == {
            "name": "orders",
            "publisher": "shop",
            "publisher_id": shop["id"],
            "events": 7,
            "description": "",
            "publishers": [till["id"]],
        }
        assert await bus.get("/topics") == [shown]


async def test_what_is_not_named_stays_and_root_changes_what_is_anothers(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, till = await clients(bus, "shop", "till")
        await ask(
            bus, "PUT", "/topics/orders", shop["token"], json={"publishers": [till["id"]], "description": "Orders"}
        )
        kept = await ask(bus, "PUT", "/topics/orders", ROOT_KEY, json={"publishers": None})
        emptied = await ask(bus, "PUT", "/topics/orders", ROOT_KEY, json={"publishers": [], "description": "Paid"})
        refused = await ask(bus, "POST", "/topics/orders", till["token"], json=EVENT)

        assert (kept.status, kept.json["description"], kept.json["publishers"]) == (200, "Orders", [till["id"]])
        assert (emptied.json["publisher"], emptied.json["description"], emptied.json["publishers"]) == (
            "shop",
            "Paid",
            [],
        )
        assert refused.status == 403


async def test_who_may_publish_stays_when_a_topic_is_given_and_ends_with_the_topic_or_the_client(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop, till, web = await clients(bus, "shop", "till", "web")
        await ask(bus, "PUT", "/topics/orders", shop["token"], json={"publishers": [till["id"], web["id"]]})
        await ask(bus, "POST", "/topics/orders/give", json={"to": web["id"]})
        statuses = [
            (await ask(bus, "POST", "/topics/orders", each["token"], json=EVENT)).status for each in (shop, till, web)
        ]
        await ask(bus, "DELETE", f"/api_tokens/{till['id']}")
        shown = await bus.get("/topics/orders")
        await ask(bus, "DELETE", "/topics/orders", web["token"])
        await ask(bus, "POST", "/topics/orders", shop["token"], json=EVENT)
        after = await bus.get("/topics/orders")

        assert statuses == [403, 204, 204]
        assert (shown["publisher"], shown["publishers"]) == ("web", [web["id"]])
        assert (after["publisher"], after["publishers"]) == ("shop", [])


async def test_a_topic_that_may_not_be_so_is_refused_and_nothing_is_kept(one: Topology):
    async with a_bus(one, workers=0, client_topics_max=1) as bus:
        shop, _ = await clients(bus, "shop", "till")
        await ask(bus, "POST", "/topics/orders", shop["token"], json=EVENT)
        before = await everything(bus)
        tried = [
            (shop["token"], "orders", {"publishers": ["till"]}, 400, "no client has that id"),
            (shop["token"], "orders", {"publishers": [shop["id"]] * 101}, 400, "at most 100"),
            (shop["token"], "orders", {"description": "x" * 501}, 400, "has 501 characters; at most 500"),
            (shop["token"], "orders", {"owner": "till"}, 400, "its fields are publishers, description"),
            (shop["token"], "7 orders", {}, 400, "the topic is"),
            (shop["token"], "letters", {}, 429, "topics of this client"),
            (shop["token"], "doubledecker.receivers", {}, 403, "reserved"),
            (ROOT_KEY, "letters", {}, 404, "root owns none"),
        ]
        for secret, name, body, status, said in tried:
            answer = await ask(bus, "PUT", f"/topics/{name}", secret, json=body)
            assert (answer.status, said in answer.detail.replace("CLIENT_TOPICS", "client_topics")) == (status, True), (
                name
            )

        assert (await ask(bus, "GET", "/topics/letters")).status == 404
        changed = {key for key, value in (await everything(bus)).items() if before.get(key) != value}
        assert all("changes" in str(key) for key in changed)


@pytest.mark.parametrize("query", ["", "?all=1"])
async def test_who_may_no_longer_publish_is_refused_by_every_process_at_once(one: Topology, query: str):
    """The other web process has a copy in which the client may."""
    async with a_bus(one, workers=0) as bus, another_web(bus) as url:
        shop, till = await clients(bus, "shop", "till")
        await ask(bus, "PUT", "/topics/orders", shop["token"], json={"publishers": [till["id"]]})
        event = an_event(1, topic="orders")
        first = await ask(bus, "POST", f"/events{query}", till["token"], json=event, url=url)
        await ask(bus, "PUT", "/topics/orders", shop["token"], json={"publishers": []})
        second = await ask(bus, "POST", f"/events{query}", till["token"], json=event, url=url)

        assert (first.status, second.status) == (202, 403)
        assert len(await journal(bus)) == 1
