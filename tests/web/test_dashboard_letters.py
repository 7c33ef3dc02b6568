"""Dead letters and the audit trail on pages: who sees which, what is done, and what is recorded of it."""

import gc
import re
from typing import Any

import aiohttp
import msgspec

from conftest import Topology
from doubledecker.dashboard.dead_letters import LetterRows
from doubledecker.store import dead_letters
from harness import TestBus, a_bus, within
from letters import a_letter
from signing_in import a_browser, hidden_fields
from web.asking import ask

HOSTILE = "\"'><img src=x onerror=alert(2)><script>alert(1)</script>"
CONFIRMED = ("redrive", "purge")


async def page(http: aiohttp.ClientSession, bus: TestBus, path: str) -> tuple[int, str]:
    async with http.get(f"{bus.url}/dashboard{path}", allow_redirects=False) as response:
        return response.status, await response.text()


async def confirm(http: aiohttp.ClientSession, bus: TestBus, path: str, **fields: str) -> tuple[int, str]:
    """Open the page that asks, and send its form."""
    status, text = await page(http, bus, path)
    assert status == 200, text
    form = [*re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text.partition("<main")[2])]
    async with http.post(
        f"{bus.url}/dashboard{path.partition('?')[0]}", data=[*form, *fields.items()], allow_redirects=False
    ) as response:
        return response.status, response.headers.get("Location", "") or await response.text()


async def a_receiver(bus: TestBus, name: str, letters: int = 0, **fields: object) -> tuple[str, str]:
    """A client's secret, and its subscriber with so many letters."""
    secret = await bus.token(name)
    await bus.subscribe(secret, "https://shop.example/", "orders")
    [row] = await bus.get("/subscribers", secret)
    if letters:
        made = [a_letter(number, **fields) for number in range(letters)]
        await dead_letters.add(bus.partitions.home, row["subscriber"], made)
    return secret, row["subscriber"]


async def count(bus: TestBus, receiver: str) -> int:
    return int((await ask(bus, "GET", f"/subscribers/{receiver}/dead")).json["count"])


async def records(bus: TestBus) -> list[dict[str, Any]]:
    return list((await ask(bus, "GET", "/audit")).json["records"])


async def test_letters_are_grouped_listed_in_pages_and_filtered_by_the_address(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, mine = await a_receiver(bus, "mine", 60)
        await dead_letters.add(bus.partitions.home, mine, [a_letter(99, status=404, reason="rejected")])
        async with a_browser(bus, secret) as http:
            _, all_of_it = await page(http, bus, "/dead")
            _, first = await page(http, bus, f"/dead/{mine}")
            _, some = await page(http, bus, f"/dead/{mine}?status=404")
            after = re.search(r"\?(after=[0-9-]+)", first)
            _, second = await page(http, bus, f"/dead/{mine}?{after[1] if after else ''}")
            wrong, _ = await page(http, bus, f"/dead/{mine}?status=many")

        rows = [len(re.findall(r'type="checkbox"', text)) for text in (first, second, some)]
        assert rows == [50, 11, 1]
        assert wrong == 400
        assert f"/dashboard/dead/{mine}" in all_of_it
        assert "rejected <b>1</b>" in all_of_it


async def test_letters_are_redriven_one_some_or_all_that_fit_and_the_trail_says_so(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, mine = await a_receiver(bus, "mine", 5)
        async with a_browser(bus, secret) as http:
            _, text = await page(http, bus, f"/dead/{mine}")
            ids = re.findall(r'name="id" value="([^"]+)"', text)
            some = await confirm(http, bus, f"/dead/{mine}/redrive?id={ids[0]}&id={ids[1]}")
            left = await count(bus, mine)
            gone = await confirm(http, bus, f"/dead/{mine}/purge?status=500")
            _, after = await page(http, bus, gone[1].removeprefix("/dashboard"))
        found = await records(bus)

    assert some == (303, f"/dashboard/dead/{mine}?redriven=2&of=2")
    assert (left, gone[0]) == (3, 303)
    assert "3 of 3 dead letters are purged." in after
    assert [(row["actor_name"], row["action"], row["target"], row["count"]) for row in found[:2]] == [
        ("mine", "dead_letters.purged", mine, 3),
        ("mine", "dead_letters.redriven", mine, 2),
    ]
    assert found[0]["address"] == "127.0.0.1"


async def test_what_died_after_it_was_asked_is_left(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        _, mine = await a_receiver(bus, "mine", 2)
        _, text = await page(http, bus, f"/dead/{mine}/purge")
        await dead_letters.add(bus.partitions.home, mine, [a_letter(9)])
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text.partition("<main")[2]))
        await http.post(f"{bus.url}/dashboard/dead/{mine}/purge", data=form, allow_redirects=False)

        assert form["to"]
        assert await count(bus, mine) == 1


async def test_a_job_shows_how_far_it_is_and_is_cancelled(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        _, mine = await a_receiver(bus, "mine", 3)
        begun = await confirm(http, bus, f"/dead/{mine}/redrive", rate_per_s="0.1")
        wrong = await confirm(http, bus, f"/dead/{mine}/redrive", rate_per_s="soon")
        _, text = await page(http, bus, f"/dead/{mine}")
        [job] = set(re.findall(rf"/dashboard/dead/{mine}/(jobs/[^\"]+)", text))
        ended = await confirm(http, bus, f"/dead/{mine}/{job}")
        _, after = await page(http, bus, f"/dead/{mine}")

    assert (begun, wrong[0]) == ((303, f"/dashboard/dead/{mine}"), 400)
    assert "0 of 3" in text
    assert ended[0] == 303
    assert "cancelled" in after


async def test_a_client_sees_and_touches_only_its_own_letters(one: Topology):
    async with a_bus(one, workers=0) as bus:
        _, theirs = await a_receiver(bus, "theirs", 2)
        secret, mine = await a_receiver(bus, "mine", 1)
        letter = (await ask(bus, "GET", f"/subscribers/{theirs}/dead")).json["messages"][0]["id"]
        async with a_browser(bus, secret) as http:
            _, seen = await page(http, bus, "/dead")
            paths = ["", f"/{letter}", "/redrive", "/purge", f"/purge?id={letter}", "/jobs/none"]
            statuses = [(await page(http, bus, f"/dead/{theirs}{path}"))[0] for path in paths]
            form = hidden_fields((await page(http, bus, f"/dead/{mine}/purge"))[1])
            for action in CONFIRMED:
                at = f"{bus.url}/dashboard/dead/{theirs}/{action}"
                statuses.append((await http.post(at, data=form, allow_redirects=False)).status)

        assert set(statuses) == {404}
        assert theirs not in seen
        assert await count(bus, theirs) == 2


async def test_what_a_token_may_not_do_it_does_not_do_here(one: Topology):
    async with a_bus(one, workers=0) as bus:
        _, mine = await a_receiver(bus, "mine", 2)
        for actions, looks, asks in ((["publish"], 403, 403), (["read-only"], 404, 403), (["search"], 404, 403)):
            made = await ask(bus, "POST", "/api_tokens", json={"name": actions[0], "scopes": {"actions": actions}})
            async with a_browser(bus, made.json["token"]) as http:
                _, home = await page(http, bus, "")
                form = hidden_fields(home)
                statuses = [(await page(http, bus, f"/dead/{mine}{path}"))[0] for path in ("", "/purge")]
                at = f"{bus.url}/dashboard/dead/{mine}/purge"
                posted = (await http.post(at, data=form, allow_redirects=False)).status

            assert (*statuses, posted) == (looks, asks, 403), actions
            assert (">Dead letters</a>" in home) == (looks != 403)


async def test_a_form_of_another_session_purges_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http, a_browser(bus) as other:
        _, mine = await a_receiver(bus, "mine", 2)
        theirs = hidden_fields((await page(other, bus, ""))[1])
        for form in ({}, theirs, {"form_token": "0" * 64}):
            at = f"{bus.url}/dashboard/dead/{mine}/purge"
            assert (await http.post(at, data=form, allow_redirects=False)).status == 403
        async with aiohttp.ClientSession() as nobody:
            assert (await nobody.post(at, data=theirs, allow_redirects=False)).status == 303

        assert await count(bus, mine) == 2


async def test_what_an_answer_or_an_event_holds_is_text(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        told: dict[str, Any] = {"answer": HOSTILE, "answer_headers": (HOSTILE,), "detail": HOSTILE}
        _, mine = await a_receiver(bus, "mine", 1, topic=HOSTILE, tenant=HOSTILE, **told)
        letter = (await ask(bus, "GET", f"/subscribers/{mine}/dead")).json["messages"][0]["id"]
        texts = [(await page(http, bus, path))[1] for path in ("/dead", f"/dead/{mine}", f"/dead/{mine}/{letter}")]

        for text in texts:
            assert "<script>alert" not in text
            assert "<img" not in text
        assert texts[2].count("&lt;img") >= 5


async def test_a_subscription_with_a_name_has_its_page(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("mine")
        await ask(bus, "PUT", "/subscriptions/bills", secret, json={"topics": ["a"], "callback": "https://a.example/"})
        [row] = await bus.get("/subscribers", secret)
        await dead_letters.add(bus.partitions.home, row["subscriber"], [a_letter(1)])
        async with a_browser(bus, secret) as http:
            _, text = await page(http, bus, "/dead")
            [link] = re.findall(r'href="/dashboard(/dead/[^"]+)"', text)
            # The slash of its id is part of its name.
            async with http.get(bus.url + "/dashboard" + link) as response:
                status = response.status

        assert "%2F" in link
        assert status == 200


async def test_the_audit_page_lists_a_clients_own_actions_and_all_for_root(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("mine")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        async with a_browser(bus, secret) as http, a_browser(bus) as root:
            _, own = await page(http, bus, "/audit")
            _, whole = await page(root, bus, "/audit")
            _, some = await page(root, bus, "/audit?action=queue.created")
            _, none = await page(root, bus, "/audit?target=nothing")
            wrong, _ = await page(root, bus, "/audit?action=Nonsense")

        assert ("queue.created" in own, "token.created" in own) == (True, False)
        assert ("queue.created" in whole, "token.created" in whole) == (True, True)
        assert ("queue.created</a>" in some, "token.created</a>" in some) == (True, False)
        assert "Nothing fits" in none
        assert wrong == 400


async def test_a_page_that_shows_nothing_new_is_not_streamed(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        async with http.get(f"{bus.url}/dashboard/audit", headers={"Accept": "text/event-stream"}) as response:
            text = await within(response.text(), 5)

        assert "data-live" not in text


async def test_a_session_that_only_looks_changes_nothing_whatever_its_token_may(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus, only_looks="on") as http:
        _, mine = await a_receiver(bus, "mine", 2)
        _, text = await page(http, bus, f"/dead/{mine}")
        statuses = []
        for path in (f"/dead/{mine}/purge", "/pipeline/erase", "/pipeline/replay", "/events/e1/resend"):
            async with http.post(f"{bus.url}/dashboard{path}", data=hidden_fields(text)) as response:
                statuses.append(response.status)

        assert statuses == [403] * 4
        assert "only looks" in text
        assert "Purge" not in text
        assert await count(bus, mine) == 2


async def test_a_letter_shows_its_events_numbers_as_they_were_written(one: Topology):
    written = b'{"topic":"orders","type":"paid","t":1,"id":"e1","tenant":"acme","data":0.10000000000000000000000001}'
    async with a_bus(one, workers=0) as bus:
        secret, client = await a_receiver(bus, "shop")
        await dead_letters.add(bus.partitions.home, client, [a_letter(1, event=written)])
        async with a_browser(bus, secret) as http:
            _, text = await page(http, bus, f"/dead/{client}/0-{1:020}")

            assert "0.10000000000000000000000001" in text


def test_a_list_of_letters_makes_nothing_of_what_their_events_carry():
    event = {"id": "e1", "data": [[] for _ in range(1_000)]}
    texts = dict.fromkeys(("id", "topic", "tenant", "reason", "why"), "")
    row = {**texts, "attempts": 1, "died_at": 1, "status": 500, "event": event}
    answer = msgspec.json.encode({"count": 1, "messages": [row], "after": None})
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        read = msgspec.json.decode(answer, type=LetterRows)
        made = len(gc.get_objects()) - before
    finally:
        gc.enable()

    assert read.messages[0].event.id == "e1"
    assert made < 10


async def test_the_overview_leads_to_each_letter(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        await a_receiver(bus, "mine", 1)
        _, text = await page(http, bus, "")
        [link] = re.findall(r'<th scope="row" class="id"><a href="/dashboard([^"]+)"', text)
        status, letter = await page(http, bus, link)

    assert status == 200
    assert "Last answer" in letter
