"""The dashboard in a real browser: that of the machine, which is never fetched.

What is not there cannot be tested: without a chromium, or where it does not start, these tests are skipped and say so.
On Debian `apt-get install chromium fonts-dejavu-core` brings one.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Error, Page, async_playwright

from conftest import Topology
from doubledecker.store import dead_letters
from harness import ROOT_KEY, TestBus, a_bus, an_event
from letters import a_letter
from web.asking import ask

pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
# Looked at before a change of the pages is called done.
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
LOOKS = {
    "light": {"viewport": {"width": 1360, "height": 1000}},
    "dark": {"viewport": {"width": 1360, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
}
PATHS = ("", "/subscribers", "/subscribers/@jobs", "/queues", "/queues/jobs", "/system")
# Runs if any of it is taken for a script, an attribute or an element.
HOSTILE = '"\'><img src=x onerror="window.wasRun=1"><script>window.wasRun=1</script>'


@asynccontextmanager
async def a_chromium() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(NAMES)} is installed, and CHROMIUM is not set")
    async with async_playwright() as playwright:
        try:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"{CHROMIUM} does not start: {str(error).splitlines()[0]}")
        yield browser
        await browser.close()


class Watched:
    """A page, and what went wrong on it or was asked for elsewhere."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.on("console", lambda said: self.wrong.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else self.wrong.append(asked.url))


@asynccontextmanager
async def signed_in(browser: Browser, bus: TestBus, secret: str = ROOT_KEY, **look: object) -> AsyncIterator[Watched]:
    context = await browser.new_context(**look)  # type: ignore[arg-type]
    watched = Watched(await context.new_page(), bus.url)
    await watched.page.goto(f"{bus.url}/")
    await watched.page.get_by_label("Token").fill(secret)
    await watched.page.get_by_role("button", name="Sign in").click()
    await watched.page.wait_for_url(f"{bus.url}/dashboard")
    yield watched
    await context.close()


async def fill(bus: TestBus) -> None:
    """Something to see on every page, with names and texts that are not meant well."""
    secret = await bus.token("shop")
    await bus.subscribe(secret, "http://127.0.0.1:9/", "orders")
    await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*", "callback": "http://127.0.0.1:9/", "max": 1})
    await bus.publish(secret, [an_event(n, topic="orders", tenant=f"t{n % 3}") for n in range(30)])
    [row] = await bus.get("/subscribers", secret)
    letters = [a_letter(number, detail=HOSTILE, topic=HOSTILE) for number in range(9)]
    await dead_letters.add(bus.partitions.home, row["subscriber"], letters)


@pytest.mark.parametrize("look", LOOKS)
async def test_every_page_is_whole_quiet_and_readable(one: Topology, look: str):
    SHOTS.mkdir(parents=True, exist_ok=True)
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus, **LOOKS[look]) as watched:
        await fill(bus)
        page, unreadable = watched.page, {}
        for path in PATHS:
            await page.goto(f"{bus.url}/dashboard{path}")
            await page.locator("#live-state[data-state=live]").wait_for()
            found = await Axe().run(page)
            wrong = found.response["violations"]
            unreadable |= {f"{path} {each['id']}": [node["html"] for node in each["nodes"]] for each in wrong}
            await page.screenshot(path=SHOTS / f"{look}{path.replace('/', '_')}.png", full_page=True)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert await page.evaluate("window.wasRun") is None

        assert unreadable == {}
        assert watched.wrong == []


async def test_a_page_that_is_watched_changes_by_itself_and_keeps_the_focus(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus) as watched:
        await fill(bus)
        await watched.page.locator("#live_receivers a").first.focus()
        before = await watched.page.evaluate("document.activeElement.textContent")
        await bus.subscribe(await bus.token("newcomer"), "http://127.0.0.1:9/", "orders")
        await watched.page.get_by_role("link", name="newcomer").wait_for()

        assert await watched.page.evaluate("document.activeElement.closest('#live_receivers') !== null")
        assert before
        assert watched.wrong == []


async def test_without_javascript_a_page_shows_the_same(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser:
        await fill(bus)
        async with signed_in(browser, bus, java_script_enabled=False) as watched:
            await watched.page.get_by_role("link", name="shop").wait_for()
            await watched.page.get_by_role("link", name="Queues").click()
            await watched.page.get_by_role("link", name="jobs").click()

            assert await watched.page.get_by_role("row", name="t1").count() == 1
            assert await watched.page.locator("svg.bar").count() > 0


async def test_a_session_that_ends_says_so_and_asks_to_sign_in(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "shop"})).json
        async with signed_in(browser, bus, made["token"]) as watched:
            await watched.page.locator("#live-state[data-state=live]").wait_for()
            await ask(bus, "DELETE", f"/api_tokens/{made['id']}")
            await watched.page.locator("#live-state[data-state=ended]").wait_for()
            await watched.page.reload()

            await watched.page.get_by_label("Token").wait_for()


async def test_everything_is_reached_by_keyboard(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus) as watched:
        page = watched.page
        await page.keyboard.press("Tab")
        first = await page.evaluate("document.activeElement.textContent")
        for _ in range(3):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/dashboard/subscribers")

        assert first == "Skip to content"


async def test_a_plot_is_read_under_the_pointer(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus) as watched:
        await fill(bus)
        area = watched.page.locator("#live_throughput svg.area")
        await area.wait_for(timeout=20_000)
        box = await area.bounding_box()
        assert box is not None
        await watched.page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 20)
        readout = watched.page.locator(".readout")
        await readout.wait_for()

        assert "Delivered" in await readout.inner_text()
        assert "/s" in await readout.inner_text()
        assert watched.wrong == []
