"""Dead letters, events, the pipeline and the audit trail in a real browser; skipped where there is none."""

import pytest
from axe_playwright_python.async_playwright import Axe

from conftest import Topology
from doubledecker import clock
from doubledecker.model.step import RunReport, StepReport
from doubledecker.store import pipeline
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS
from harness import TestBus, a_bus, an_event
from web.test_browser import HOSTILE, LOOKS, SHOTS, Watched, a_chromium, fill, signed_in
from web.test_dashboard_pipeline import count

pytestmark = pytest.mark.slow


async def check(watched: Watched, name: str) -> dict[str, list[str]]:
    """What the page that is shown has wrong; it is kept as a picture."""
    page = watched.page
    SHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
    wrong = {
        each["id"]: [node["html"] for node in each["nodes"]] for each in (await Axe().run(page)).response["violations"]
    }
    if not await page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        wrong["wide"] = [await page.title()]
    if await page.evaluate("window.wasRun") is not None:
        wrong["script"] = [await page.title()]
    return {f"{name} {id_}": nodes for id_, nodes in wrong.items()}


@pytest.mark.parametrize("look", LOOKS)
async def test_letters_are_looked_at_ticked_and_redriven(one: Topology, look: str):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus, **LOOKS[look]) as watched:
        await fill(bus)
        page = watched.page
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Dead letters").click()
        wrong = await check(watched, f"{look}_dead")
        await page.get_by_role("link", name="shop").click()
        wrong |= await check(watched, f"{look}_dead_receiver")
        await page.get_by_role("link", name="e1", exact=True).click()
        wrong |= await check(watched, f"{look}_dead_letter")
        await page.go_back()
        await page.get_by_label("Letter of event e1").check()
        await page.get_by_role("button", name="Redrive those ticked").click()
        wrong |= await check(watched, f"{look}_dead_ask")
        await page.get_by_role("button", name="Redrive 1").click()
        await page.get_by_text("1 of 1 dead letters are redriven").wait_for()
        await page.get_by_role("link", name="Audit").click()
        await page.get_by_role("link", name="dead_letters.redriven").wait_for()
        wrong |= await check(watched, f"{look}_audit")

    assert wrong == {}
    assert watched.wrong == []


async def test_without_javascript_all_that_fit_are_purged(one: Topology):
    async with a_bus(one) as bus, a_chromium() as browser:
        await fill(bus)
        async with signed_in(browser, bus, java_script_enabled=False) as watched:
            page = watched.page
            await page.goto(f"{bus.url}/dashboard/dead")
            await page.get_by_role("link", name="shop").click()
            await page.get_by_role("link", name="500 9").click()
            await page.get_by_role("link", name="Purge all that fit 9").click()
            await page.get_by_role("button", name="Purge 9").click()
            await page.get_by_text("9 of 9 dead letters are purged").wait_for()

            assert await page.get_by_role("row").count() == 0


@pytest.mark.parametrize("look", LOOKS)
async def test_an_event_is_found_followed_and_sent_again(one: Topology, look: str):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus, **LOOKS[look]) as watched:
        await fill(bus)
        secret = await bus.token("writer")
        [id_] = await bus.publish(secret, [an_event(1, topic="mails", data={"note": HOSTILE})])
        page = watched.page
        await page.get_by_role("searchbox", name="Event id").fill("mails")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/events?topic=mails")
        wrong = await check(watched, f"{look}_events")
        await page.get_by_role("searchbox", name="Event id").fill("sho")
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        wrong |= await check(watched, f"{look}_search")
        await page.get_by_role("searchbox", name="Event id").fill(id_)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Copy as curl").wait_for()
        wrong |= await check(watched, f"{look}_event")
        await page.get_by_role("link", name="Send again").click()
        wrong |= await check(watched, f"{look}_resend")
        await page.get_by_label("Subscriber, or @ and a queue").fill("@jobs")
        await page.get_by_role("button", name="Send 1 event").click()
        await page.get_by_text("It waits for that receiver again").wait_for()

    assert wrong == {}
    assert watched.wrong == []


@pytest.mark.parametrize("look", LOOKS)
async def test_a_replay_is_asked_for_and_an_erasure_is_typed(one: Topology, look: str):
    async with a_bus(one) as bus, a_chromium() as browser, signed_in(browser, bus, **LOOKS[look]) as watched:
        await fill(bus)
        await run_a_pipeline(bus)
        page = watched.page
        await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Pipeline").click()
        wrong = await check(watched, f"{look}_pipeline")
        await page.get_by_role("link", name="Replay events").click()
        wrong |= await check(watched, f"{look}_replay_ask")
        await page.get_by_label("To a").select_option("queue")
        await page.get_by_label("Its id or name").fill("jobs")
        await page.get_by_role("button", name="Count them").click()
        await count(bus, REPLAYS, page.url)
        # The page shows by itself that it is counted.
        await page.get_by_role("button", name="Send 7 events again").click()
        await page.get_by_role("button", name="Cancel").wait_for()
        wrong |= await check(watched, f"{look}_replay")
        await page.goto(f"{bus.url}/dashboard/pipeline/erase")
        wrong |= await check(watched, f"{look}_erase_ask")
        await page.get_by_label("Of the tenant").fill("t1")
        await page.get_by_role("button", name="Count them").click()
        await count(bus, ERASURES, page.url)
        await page.goto(page.url)
        wrong |= await check(watched, f"{look}_erasure")
        await page.get_by_label("Type t1 to confirm").fill("t1")
        await page.get_by_role("button", name="Erase 7 events for good").click()
        await page.get_by_role("heading", name="Erasure", exact=False).wait_for()

    assert wrong == {}
    assert watched.wrong == []


async def run_a_pipeline(bus: TestBus) -> None:
    """Reports as those of a pipeline that has landed something."""
    now_ms = clock.now_ms()
    await pipeline.report_run(bus.partitions.home, RunReport("running", at=now_ms, began_at=now_ms, master="local[2]"))
    landed = {"rows": 554_400, "rows_last": 900, "took_ms": 310, "table_rows": 554_400, "table_files": 30}
    for name in ("events", "attempts"):
        report = StepReport("working", at=now_ms, table_bytes=91_000_000, **landed)
        await pipeline.report_step(bus.partitions.home, name, report)
    failing = StepReport("failing", at=now_ms, error=HOSTILE, refused=3)
    await pipeline.report_step(bus.partitions.home, "source:shop", failing)
