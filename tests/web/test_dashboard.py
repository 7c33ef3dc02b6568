"""The dashboard over HTTP: who gets in, who sees what, what every page forbids, and what watches it."""

import asyncio
import json
import re

import aiohttp
import pytest
from yarl import URL

from conftest import Topology
from doubledecker.store import dead_letters, sessions
from harness import ROOT_KEY, a_bus, an_event, within
from letters import a_letter
from signing_in import HTML, a_browser, a_login_form, hidden_fields
from web.asking import ask

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


async def page(http: aiohttp.ClientSession, url: str, path: str = "/dashboard") -> tuple[int, str]:
    async with http.get(url + path, allow_redirects=False) as response:
        return response.status, await response.text()


async def test_without_a_session_a_page_leads_to_signing_in(one: Topology):
    async with a_bus(one, workers=0) as bus:
        home = await bus.http.get(f"{bus.url}/", headers=HTML, allow_redirects=False)
        response = await bus.http.get(f"{bus.url}/dashboard", allow_redirects=False)

        assert (home.status, home.headers["Location"]) == (303, "/dashboard")
        assert (response.status, response.headers["Location"]) == (303, "/dashboard/login")
        assert (await ask(bus, "GET", "/")).status == 404


async def test_a_token_begins_a_session_whose_cookie_is_not_the_token(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        [cookie] = [each for each in http.cookie_jar if each.key == "doubledecker-session"]

        assert (await page(http, bus.url))[0] == 200
        assert ROOT_KEY not in cookie.value
        assert cookie["httponly"]
        assert cookie["samesite"] == "strict"
        keys = await bus.partitions.home.command("KEYS", "*")
        assert not [key for key in keys if cookie.value.encode() in key]


async def test_behind_a_proxy_that_is_known_and_speaks_https_the_cookie_is_secure(one: Topology):
    async with a_bus(one, workers=0, trusted_proxies="127.0.0.0/8") as bus:
        for proto, is_secure in (("https", True), ("http", False)):
            headers = {"X-Forwarded-Proto": proto}
            async with bus.http.get(f"{bus.url}/dashboard/login", headers=headers) as response:
                assert bool(response.cookies["doubledecker-visitor"]["secure"]) == is_secure
    async with a_bus(one, workers=0) as bus:
        response = await bus.http.get(f"{bus.url}/dashboard/login", headers={"X-Forwarded-Proto": "https"})
        assert not response.cookies["doubledecker-visitor"]["secure"]


@pytest.mark.parametrize("how", ["revoked", "rotated", "signed out"])
async def test_a_session_ends_with_its_token(one: Topology, how: str):
    async with a_bus(one, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        async with a_browser(bus, made["token"]) as http:
            _, text = await page(http, bus.url)
            if how == "revoked":
                await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
            elif how == "rotated":
                await ask(bus, "POST", f"/api_tokens/{made['id']}/rotate", json={"overlap_s": 0})
            else:
                await http.post(f"{bus.url}/dashboard/logout", data=hidden_fields(text), allow_redirects=False)

            assert (await page(http, bus.url))[0] == 303


async def test_a_code_signs_root_in_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await sessions.keep_code(bus.partitions.home, "the-code")
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http, aiohttp.ClientSession() as other:
            first, text = await page(http, bus.url, "/login?code=the-code")
            second, refusal = await page(other, bus.url, "/login?code=the-code")
            status, _ = await page(http, bus.url)

        assert (first, second, status) == (200, 401, 200)
        assert "/dashboard" in text
        assert "was used, or is too old" in refusal


async def test_a_form_that_is_not_of_this_visitor_is_refused(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        for path in ("login", "logout"):
            for form in ({}, {"form_token": "0" * 64}, await a_login_form(bus)):
                given = {**form, "token": ROOT_KEY}
                async with http.post(f"{bus.url}/dashboard/{path}", data=given) as response:
                    assert response.status == 403

        assert (await page(http, bus.url))[0] == 200


async def test_tries_of_an_address_are_bounded_whatever_a_header_says(one: Topology):
    async with a_bus(one, workers=0) as bus:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            statuses = []
            # While these are made, some more become due.
            while len(statuses) < 100 and 429 not in statuses:
                number = len(statuses)
                form = await a_login_form(bus, http) | {"token": f"guess-{number}"}
                headers = {"X-Forwarded-For": f"192.0.2.{number}"}
                async with http.post(f"{bus.url}/dashboard/login", data=form, headers=headers) as response:
                    statuses.append(response.status)

        assert statuses[:30] == [401] * 30
        assert statuses[-1] == 429


async def test_behind_a_proxy_tries_count_for_the_address_that_it_names(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("doubledecker.web.sessions.ADDRESS_TRIES_MAX", 1)
    async with a_bus(one, workers=0, trusted_proxies="127.0.0.0/8") as bus:
        statuses = []
        for address in ("2001:db8::1", "2001:db8::2", "192.0.2.7"):
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
                form = await a_login_form(bus, http) | {"token": f"guess-{address}"}
                headers = {"X-Forwarded-For": f"192.0.2.1, {address}"}
                async with http.post(f"{bus.url}/dashboard/login", data=form, headers=headers) as response:
                    statuses.append(response.status)

        # Addresses of one network of IPv6 count as one.
        assert statuses == [401, 429, 401]


async def test_whatever_page_is_asked_for_is_the_one_that_follows_signing_in(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for path in ("/dashboard/dead/shop-1%2Fbilling", "/dashboard/queues/%E2%82%AC", "/dashboard/queues/%00%0D%0Ax"):
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
                asked = URL(bus.url + path, encoded=True)
                async with http.get(asked, headers=HTML, allow_redirects=False) as response:
                    login = URL(bus.url + response.headers["Location"], encoded=True)
                async with http.get(login) as response:
                    form = hidden_fields(await response.text()) | {"token": ROOT_KEY}
                answer = await http.post(f"{bus.url}/dashboard/login", data=form, allow_redirects=False)
                assert answer.headers["Location"] == path


async def test_after_signing_in_a_browser_is_not_led_elsewhere(one: Topology):
    async with a_bus(one, workers=0) as bus:
        elsewhere = ("https://evil.example/", "//evil.example", "/dashboard//evil.example", "/dashboard\\evil")
        for wanted in (
            *elsewhere,
            "/dashboard/../events",
            "/dashboard/%2e%2E/events",
            "/dashboard/中",
            "/dashboard/\r\nx",
        ):
            jar = aiohttp.CookieJar(unsafe=True)
            async with aiohttp.ClientSession(cookie_jar=jar) as http:
                form = await a_login_form(bus, http) | {"token": ROOT_KEY, "next": wanted}
                answer = await http.post(f"{bus.url}/dashboard/login", data=form, allow_redirects=False)
                assert answer.headers["Location"] == "/dashboard"


async def test_every_answer_forbids_scripts_and_frames_of_others(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        for path in ("/dashboard", "/dashboard/login", "/dashboard/nowhere", "/dashboard/assets/live.js", "/login"):
            async with http.get(bus.url + path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'self'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
        _, text = await page(http, bus.url)
        assert re.findall(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|<style", text) == []
        assert re.findall(r'(?:src|href|action)="(?![/#?])', text) == []


async def test_a_client_sees_its_own_receivers_and_letters_and_nobody_elses(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mine, other = await bus.token("mine"), await bus.token("other")
        for secret in (mine, other):
            await bus.subscribe(secret, "https://shop.example/", "orders")
        await ask(bus, "PUT", "/queues/theirs", other, json={"pattern": ".*", "callback": "https://shop.example/q"})
        [token] = [row["subscriber"] for row in await bus.get("/subscribers", other)]
        await dead_letters.add(bus.partitions.home, token, [a_letter(1)])
        async with a_browser(bus, mine) as http, a_browser(bus) as root:
            (_, seen), (_, all_of_it) = await page(http, bus.url), await page(root, bus.url)

        assert "mine-" in seen
        assert "other-" not in seen
        assert "@theirs" not in seen
        assert {"mine-", "other-", "@theirs"} <= {word for word in ("mine-", "other-", "@theirs") if word in all_of_it}


PAGES = ("", "/subscribers", "/subscribers/{mine}", "/subscribers/@jobs", "/queues", "/queues/jobs", "/system")


async def test_a_subscription_with_a_name_has_a_page_that_lists_lead_to(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        wanted = {"topics": ["orders"], "callback": "http://127.0.0.1:9/"}
        await ask(bus, "PUT", "/subscriptions/billing", made["token"], json=wanted)
        async with a_browser(bus, made["token"]) as http:
            link = f"/dashboard/subscribers/{made['id']}%2Fbilling"

            for path in ("/dashboard", "/dashboard/subscribers"):
                assert f'"{link}"' in (await page(http, bus.url, path))[1]
            async with http.get(URL(bus.url + link, encoded=True)) as response:
                assert response.status == 200


async def test_every_page_shows_what_there_is(one: Topology):
    async with a_bus(one) as bus, a_browser(bus) as http:
        secret = await bus.token("shop")
        await bus.subscribe(secret, "http://127.0.0.1:9/", "orders")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*", "callback": "http://127.0.0.1:9/"})
        await bus.publish(secret, [an_event(n, topic="orders", tenant="acme") for n in range(3)])
        [row] = await bus.get("/subscribers", secret)
        found = {path: await page(http, bus.url, "/dashboard" + path.format(mine=row["subscriber"])) for path in PAGES}

        assert {path: status for path, (status, _) in found.items() if status != 200} == {}
        assert "acme" in found["/queues/jobs"][1]
        assert "http://127.0.0.1:9/" in found["/subscribers/{mine}"][1]
        assert (await page(http, bus.url, "/dashboard/queues/none"))[0] == 404


async def test_a_page_is_for_those_who_may_see_what_it_shows(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "scopes": {"actions": ["publish"]}})
        secret = made.json["token"]
        async with a_browser(bus, secret) as http:
            statuses = [(await page(http, bus.url, f"/dashboard{path}"))[0] for path in ("", "/subscribers", "/queues")]

        assert statuses == [200, 403, 403]


async def test_a_token_that_is_limited_sees_no_numbers_of_all_topics(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await ask(bus, "POST", "/api_tokens", json={"name": "shop", "scopes": {"topics": ["orders"]}})
        async with a_browser(bus, made.json["token"]) as http:
            status, text = await page(http, bus.url)
            system, _ = await page(http, bus.url, "/dashboard/system")

        assert (status, system) == (200, 403)
        assert "Backlog" in text
        assert "Published" not in text
        assert "Throughput" not in text


async def test_a_long_list_is_cut_into_pages_and_searched_on_the_server(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        for number in range(60):
            await ask(bus, "PUT", f"/queues/q{number:02}", json={"pattern": ".*"})
        texts = [
            (await page(http, bus.url, f"/dashboard/queues?{query}"))[1] for query in ("", "page=2", "q=q3", "page=9x")
        ]

        rows = [len(re.findall(r'href="/dashboard/queues/q\d\d"', text)) for text in texts]
        assert rows == [50, 10, 10, 50]


async def test_what_others_wrote_is_text(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(secret, "https://shop.example/", "orders")
        [token] = [row["subscriber"] for row in await bus.get("/subscribers", secret)]
        event = json.dumps({**an_event(1), "id": HOSTILE}).encode()
        letter = a_letter(1, detail=HOSTILE, topic=HOSTILE, tenant=HOSTILE, event=event)
        await dead_letters.add(bus.partitions.home, token, [letter])
        async with a_browser(bus) as http:
            _, text = await page(http, bus.url)

        assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
        assert "<script>alert" not in text
        assert "<img" not in text


async def test_whoever_watches_gets_the_parts_that_changed_until_the_process_stops(one: Topology):
    async with a_bus(one) as bus:
        secret = await bus.token("shop")
        async with a_browser(bus) as http:
            accept = {"Accept": "text/event-stream"}
            async with http.get(f"{bus.url}/dashboard", headers=accept) as response:
                first = await within(blocks(response), 5)
                await bus.subscribe(secret, "https://shop.example/", "orders")
                later = await within(until(response, "live_receivers"), 10)
        assert {"live_tiles", "live_throughput", "live_receivers", "live_dead"} <= first.keys()
        assert "shop" in later["live_receivers"]
        assert "live_dead" not in later


async def test_a_process_that_stops_waits_for_no_viewer(one: Topology):
    viewers = []
    async with asyncio.timeout(20):
        async with aiohttp.ClientSession() as http:
            async with a_bus(one, workers=0) as bus, a_browser(bus) as browser:
                headers = {"Accept": "text/event-stream"}
                cookies = {each.key: each.value for each in browser.cookie_jar}
                for _ in range(3):
                    viewers.append(await http.get(f"{bus.url}/dashboard", headers=headers, cookies=cookies))
                    await blocks(viewers[-1])
            # The block above waits for the server to end; a viewer that held it up would let the time run out.
            assert [await viewer.content.read() for viewer in viewers] == [b"\n"] * 3


async def test_a_client_watches_a_bounded_number_of_pages(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("doubledecker.web.watching.CLIENT_VIEWERS_MAX", 1)
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        accept = {"Accept": "text/event-stream"}
        first = await http.get(f"{bus.url}/dashboard", headers=accept)
        await blocks(first)
        second = await http.get(f"{bus.url}/dashboard", headers=accept)
        assert second.status == 429
        first.close()


async def blocks(response: aiohttp.ClientResponse) -> dict[str, str]:
    """The next parts that a stream brings."""
    async for line in response.content:
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))
    raise AssertionError("the stream has ended")


async def until(response: aiohttp.ClientResponse, name: str) -> dict[str, str]:
    while True:
        found = await blocks(response)
        if name in found:
            return found


def test_the_files_of_the_dashboard_are_in_the_package():
    from doubledecker.dashboard import assets

    assert {"dashboard.css", "live.js", "icon.svg"} <= assets.known().keys()
