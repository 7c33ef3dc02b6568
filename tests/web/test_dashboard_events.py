"""Events on pages: the last ones, one's whole life, sending it again, the search; each caller what it may see."""

import asyncio
import re

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.event_search import EventSearch, EventsWanted
from doubledecker.model.token import Caller
from harness import a_bus, an_event
from signing_in import a_browser
from web.asking import ask
from web.test_dashboard_letters import HOSTILE, confirm, page, records


async def test_the_newest_are_listed_in_pages_and_filtered_by_the_address(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        ids = await bus.publish(secret, [an_event(n, topic="orders", tenant="acme") for n in range(70)])
        for number in range(20):
            await bus.publish(secret, [an_event(number, topic="mails", tenant="globex")])
        texts = [(await page(http, bus, f"/events{query}"))[1] for query in ("", "?topic=orders", "?tenant=none")]
        older = re.findall(r'href="(\?[^"]*before=[^"]+)" rel="next"', texts[1])
        _, rest = await page(http, bus, f"/events{older[0].replace('&amp;', '&')}")
        wrong, _ = await page(http, bus, "/events?before=x")

    listed = [re.findall(r'<a href="/dashboard/events/([^"]+)"', text) for text in (*texts, rest)]
    assert [len(each) for each in listed] == [50, 50, 0, 20]
    assert {*listed[1], *listed[3]} == set(ids)
    assert wrong == 400


async def test_an_events_page_tells_what_became_of_it(one: Topology):
    async with a_bus(one, workers=1) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        await bus.subscribe(secret, "http://127.0.0.1:9/", "orders")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        [id_] = await bus.publish(secret, [an_event(1, topic="orders", data={"note": "it's"})])
        _, text = await page(http, bus, f"/events/{id_}")
        _, unknown = await page(http, bus, "/events/evt-none")

    assert "@jobs" in text
    assert "Publishes one like it" in text
    assert "it&#39;&#34;&#39;&#34;&#39;s" in text  # a shell's quotes, escaped
    assert "nothing archives this bus" in text
    assert "doubledecker events show evt-none" in unknown


async def test_an_event_is_sent_again_and_the_trail_says_so(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, other = await bus.token("shop"), await bus.token("other")
        await bus.subscribe(secret, "https://shop.example/", "orders")
        [mine] = [row["subscriber"] for row in await bus.get("/subscribers", secret)]
        [id_] = await bus.publish(secret, [an_event(1, topic="orders")])
        async with a_browser(bus, secret) as http, a_browser(bus, other) as stranger:
            status, where = await confirm(http, bus, f"/events/{id_}/resend?topic=orders", receiver=mine)
            refused, _ = await confirm(stranger, bus, f"/events/{id_}/resend?topic=orders", receiver=mine)
        [row, *_] = await records(bus)

    assert (status, where) == (303, f"/dashboard/events/{id_}?sent=1")
    assert refused == 404
    assert (row["actor_name"], row["action"], row["target"], row["count"]) == ("shop", "receiver.resent", mine, 1)


async def test_a_token_sees_events_within_its_limits_and_what_waits_for_its_own(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(secret, "https://shop.example/", "orders")
        [order] = await bus.publish(secret, [an_event(1, topic="orders", tenant="acme")])
        [mail] = await bus.publish(secret, [an_event(2, topic="mails", tenant="acme")])
        seen = {}
        for name, scopes in {
            "any": {},
            "limited": {"topics": ["orders"]},
            "publisher": {"actions": ["publish"]},
            "looker": {"actions": ["read-only"]},
        }.items():
            made = await ask(bus, "POST", "/api_tokens", json={"name": name, "scopes": scopes})
            async with a_browser(bus, made.json["token"]) as http:
                found = [await page(http, bus, path) for path in ("/events", f"/events/{order}", f"/events/{mail}")]
                resend, _ = await page(http, bus, f"/events/{order}/resend")
            text = found[0][1]
            seen[name] = (order in text, mail in text, "Accepted <" in found[1][1], "Accepted <" in found[2][1])
            assert "shop-" not in found[1][1].partition("Waits now")[2]
            assert resend == (403 if name == "publisher" else 200), name

    assert seen == {
        "any": (True, True, True, True),
        "limited": (True, False, True, False),
        "publisher": (False, False, False, False),
        "looker": (True, True, True, True),
    }


async def test_notices_about_another_client_are_not_shown(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mine, other = await bus.token("mine"), await bus.token("other")
        await bus.subscribe(mine, "https://shop.example/", "orders")
        [row] = await bus.get("/subscribers", mine)
        await ask(bus, "POST", f"/subscribers/{row['subscriber']}/pause")
        async with a_browser(bus, other) as http:
            _, text = await page(http, bus, "/events")

    assert row["subscriber"] not in text


async def test_what_is_erased_is_not_shown(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        [id_] = await bus.publish(secret, [an_event(1, topic="orders", tenant="gone")])
        bus.partitions.home.shift_ms = 1_000
        await ask(bus, "POST", "/erasures", json={"tenant": "gone"})
        texts = [(await page(http, bus, path))[1] for path in ("/events", f"/events/{id_}")]

    assert f"/events/{id_}" not in texts[0]
    assert "No event with this id" in texts[1]


async def test_the_search_leads_to_what_is_named(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        await bus.subscribe(secret, "https://shop.example/", "orders")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        [id_] = await bus.publish(secret, [an_event(1, topic="orders")])
        [mine] = [row["subscriber"] for row in await bus.get("/subscribers", secret)]
        led = {}
        for text in ("orders", "jobs", "shop", mine, id_, "sho", HOSTILE, ""):
            at = f"{bus.url}/dashboard/search"
            async with http.get(at, params={"q": text}, allow_redirects=False) as response:
                led[text] = response.headers.get("Location", "") or await response.text()

    assert led["orders"] == "/dashboard/events?topic=orders"
    assert led["jobs"] == "/dashboard/queues/jobs"
    assert led["shop"] == led[mine] == f"/dashboard/subscribers/{mine}"
    assert f"/dashboard/subscribers/{mine}" in led["sho"]
    assert "<img" not in led[HOSTILE]


async def test_what_an_event_holds_is_text(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        hostile = an_event(1, topic="orders", data={HOSTILE: HOSTILE})
        ids = await bus.publish(secret, [hostile])
        texts = [(await page(http, bus, path))[1] for path in ("/events", f"/events/{ids[0]}")]

    assert "&lt;img" in texts[1]
    assert not any("<img" in text or "<script>alert" in text for text in texts)


async def test_a_client_that_looks_for_much_has_others_wait_for_one_look_at_most(one: Topology):
    order = []

    async def no_lake() -> None:
        return None

    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as parts:
        search = EventSearch(BusView(parts.partitions, parts.registry, parts.headroom.rules), no_lake)

        async def look(client: str) -> None:
            await search.newest(EventsWanted(Caller(client, client)), before=None, limit=1)
            order.append(client)

        await asyncio.gather(*(look("greedy") for _ in range(20)), look("modest"))

    assert order.index("modest") < 10
