"""The dashboard in a real browser while things fail: a store that stops, a server that is killed, twelve tabs."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import Browser, Page, expect

from horarium.clock import HOUR
from horarium.library.one_offs import Wanted, one_offs
from horarium.model.channels import UNTOLD, Untold
from horarium.model.records import Record, RecordChange
from horarium.node.backends import make_store
from horarium.operations.looking.forecasting import Forecast, Forecasting
from tests.dashboard.browsing import NARROW, PATIENCE_MS, WIDE, chromium
from tests.dashboard.test_browser import add_job, call, complete_a_run, every_page, fail_a_run
from tests.servers.live import LiveServer, live_server
from tests.servers.redis import Redis
from tests.waiting import until

WIDTHS = (1_440, 1_366, 1_280, 1_024, 768, 390, 320)
BEYOND = """() => {
  for (const one of document.querySelectorAll("main details")) one.open = true;
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    if (text.parentElement.closest("pre, code, textarea, option, svg")) continue;
    const wider = text.data
      .replace(/\\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?=, [A-Z])/g, "Wed")
      .replace(/\\b[A-Z][a-z]{2} \\d\\d?(?=, \\d\\d:)/g, "Mar 28")
      .replace(/\\bin \\d+ [smhd]( \\d+ [smhd])?\\b/g, "in 23 h 59 m");
    if (wider !== text.data) text.data = wider;
  }
  const wide = document.documentElement.clientWidth;
  const found = document.documentElement.scrollWidth > wide ? ["the page"] : [];
  for (const one of document.querySelectorAll("main :is(a, button, p, b, span, td, h1, h2, dd, input, select)")) {
    const box = one.getBoundingClientRect();
    if (!box.width || box.right <= wide + 1 || one.closest(".visually-hidden, [popover]")) continue;
    let scrolls = false;
    for (let up = one.parentElement; up; up = up.parentElement) scrolls ||= getComputedStyle(up).overflowX === "auto";
    if (!scrolls && !one.closest(".cut-text")) found.push(one.outerHTML.slice(0, 120));
  }
  return found;
}"""
"""What reaches beyond the right edge with the widest days and times: but in what scrolls, or says all in its title."""
TURNED = """() => [...document.querySelectorAll(".why")].map((one) => one.lastChild).filter((text) => {
  const place = text.nodeType === 3 ? text.data.indexOf("Last") : -1;
  const at = (from) => {
    const range = document.createRange();
    range.setStart(text, from);
    range.setEnd(text, from + 1);
    return range.getBoundingClientRect();
  };
  return place >= 0 && at(place).top === at(place + 3).top && at(place).left > at(place + 3).left;
}).length"""
"""Words after an error that run from right to left as it does."""
SMALL = """() => [...document.querySelectorAll(".heat td a")].map((one) => one.getBoundingClientRect())
  .filter((box) => box.width < 24 || box.height < 24).length"""
"""Hours of the forecast that a finger misses."""
APART = """() => new Set([...document.querySelectorAll(".actions > .btn")].map((one) => one.offsetTop)).size"""
"""Lines of the buttons beside the heading."""

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
expect.set_options(timeout=PATIENCE_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this file."""
    async with chromium() as launched:
        yield launched


async def opened(browser: Browser, url: str) -> Page:
    context = await browser.new_context(base_url=url, viewport=WIDE)
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    return page


async def test_a_store_that_stops_is_said_on_every_page_until_it_answers(browser: Browser) -> None:
    redis = Redis("redis")
    redis.start()
    server = LiveServer(store=redis.url, pages=True)
    server.start()
    try:
        add_job(server, "nightly")
        page = await opened(browser, server.url)
        await page.goto("/")
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        form = await page.context.new_page()
        await form.goto("/new-job")
        await form.get_by_label("Name", exact=True).fill("typed")
        await form.get_by_label("Rule", exact=True).fill("every day at 9am")
        await form.get_by_label("Queue", exact=True).last.fill("work")
        redis.kill()
        await expect(page.get_by_text(re.compile("Stale since .*: the store does not answer"))).to_be_visible()
        banner = page.get_by_role("note").filter(has_text=re.compile("As of .*: the store does not answer"))
        await expect(banner.get_by_role("button", name="Try now")).to_be_visible()
        await page.set_viewport_size(NARROW)
        narrow = page.get_by_role("banner").get_by_role("status")
        await expect(narrow).to_have_text(re.compile("Stale since .*: the store does not answer"))
        await page.set_viewport_size(WIDE)
        broken = await page.context.new_page()
        await broken.goto("/jobs")
        await expect(broken.get_by_role("heading", name="The store does not answer")).to_be_visible()
        await expect(broken.get_by_text("Live", exact=True)).to_have_count(0)
        await form.get_by_role("button", name="Create job").click()
        await expect(form.get_by_text("It was not saved", exact=False)).to_be_visible()
        await expect(form.get_by_label("Name", exact=True)).to_have_value("typed")
        redis.start()
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await expect(banner).to_be_hidden()
        await expect(broken.get_by_role("heading", name="Jobs")).to_be_visible()
        await form.get_by_role("button", name="Create job").click()
        await expect(form.get_by_role("heading", name="typed")).to_be_visible()
        await page.context.close()
    finally:
        server.stop()
        redis.stop()


async def test_twelve_tabs_of_one_browser_are_all_live(browser: Browser) -> None:
    with live_server(pages=True) as server:
        page = await opened(browser, server.url)
        tabs = [page, *[await page.context.new_page() for _ in range(11)]]
        for tab in tabs:
            await tab.goto("/jobs")
            await expect(tab.get_by_text("Live", exact=True)).to_be_visible()
        add_job(server, "seen-everywhere")
        for tab in tabs:
            await expect(tab.get_by_role("link", name="seen-everywhere")).to_be_visible()
        await tabs[0].goto("/runs")
        await tabs[0].close()
        add_job(server, "seen-after-the-first-was-closed")
        for tab in tabs[1:]:
            await expect(tab.get_by_role("link", name="seen-after-the-first-was-closed")).to_be_visible()
        await tabs[1].goto("/calendar")
        await until(lambda: tabs[1].evaluate("linked"))
        await expect(tabs[1].locator("#live"), "a page that does not look again").to_have_text(re.compile(r"^As of "))
        await page.context.close()


async def test_typed_text_outlives_a_session_and_a_server(browser: Browser) -> None:
    with live_server(["first-key-1234"], pages=True) as server:
        page = await opened(browser, server.url)
        await sign_in(page, "/new-job")
        await page.get_by_label("Name", exact=True).fill("kept")
        await page.get_by_label("Queue", exact=True).last.fill("work")
        await page.context.clear_cookies()
        await page.get_by_label("Rule", exact=True).press_sequentially("every day at 9am")
        await expect(page.get_by_text("Your session has ended.", exact=False)).to_be_visible()
        await expect(page.get_by_text("Not asked again yet", exact=False)).to_be_visible()
        await page.get_by_role("link", name="Sign in").click()
        await sign_in(page)
        await expect(page.get_by_label("Rule", exact=True)).to_have_value("every day at 9am")
        await expect(page.get_by_text("the text that you had typed", exact=False)).to_be_visible()
        await expect(page.get_by_role("region", name="Preview").get_by_text("Every day at 09:00")).to_be_visible()
        server.stop()
        await page.get_by_label("Rule", exact=True).fill("every day at 10am")
        await expect(page.get_by_text("Not asked again yet", exact=False)).to_be_visible()
        await expect(page.get_by_role("button", name="Copy command")).to_be_disabled()
        await page.get_by_role("button", name="Create job").click()
        await expect(page.get_by_text("the server does not answer", exact=False)).to_be_visible()
        await expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
        server.start_again()
        await page.reload()
        await sign_in(page)
        await expect(page.get_by_label("Name", exact=True)).to_have_value("kept")
        await page.get_by_role("button", name="Create job").click()
        await expect(page.get_by_role("heading", name="kept")).to_be_visible()
        await expect(page.get_by_text("10:00").first).to_be_visible()
        await page.goto("/new-job")
        await expect(page.get_by_label("Name", exact=True)).to_have_value("")
        await page.context.close()


async def test_no_form_with_text_is_sent_where_it_would_be_lost(browser: Browser) -> None:
    with live_server(["first-key-1234"], pages=True) as server:
        page = await opened(browser, server.url)
        await sign_in(page, "/plans")
        text = page.get_by_label("Definitions, as JSON")
        await text.fill('{"jobs": [')
        await page.context.clear_cookies()
        await page.get_by_role("button", name="Plan it").click()
        await expect(page.get_by_text("Your session has ended.", exact=False)).to_be_visible()
        await expect(text).to_have_value('{"jobs": [')
        async with page.context.expect_page() as tab:
            await page.get_by_role("link", name="Sign in").click()
        await sign_in(await tab.value)
        await expect((await tab.value).get_by_role("button", name="Sign out")).to_be_visible()
        await page.get_by_role("button", name="Plan it").click()
        await expect(page.get_by_text("is not JSON", exact=False)).to_be_visible()
        await expect(text).to_have_value('{"jobs": [')
        await text.fill('{"jobs": []}')
        server.stop()
        await page.get_by_role("button", name="Plan it").click()
        await expect(page.get_by_text("Not sent: the server does not answer.", exact=False)).to_be_visible()
        await expect(text).to_have_value('{"jobs": []}')
        server.start_again()
        await page.context.close()


async def test_a_page_whose_session_has_ended_keeps_what_was_typed_in_it(browser: Browser) -> None:
    with live_server(["first-key-1234"], pages=True) as server:
        page = await opened(browser, server.url)
        await sign_in(page, "/holds")
        await expect(page.locator("#live")).to_have_text("Live")
        reason = page.get_by_label("Held because")
        await reason.fill("moving house")
        await page.context.clear_cookies()
        await page.evaluate("look()")
        await expect(page.locator("#live")).to_have_text(re.compile("Stale since .*: your session has ended"))
        await expect(reason).to_have_value("moving house")
        await reason.fill("")
        await page.evaluate("void look()")  # it leaves the page: there is no end to wait for
        await expect(page.get_by_role("heading", name="Sign in to Horarium")).to_be_visible()
        await page.context.close()


async def test_a_refused_form_stays_with_what_was_typed_and_says_why(browser: Browser) -> None:
    with live_server(pages=True) as server:
        add_job(server, "nightly")
        page = await opened(browser, server.url)
        await page.goto("/jobs/nightly")
        await page.get_by_role("button", name="More").click()
        begin = page.get_by_label("Backfill", exact=False)
        await begin.fill("2190-01-01T00:00")
        await page.get_by_label("up to", exact=True).fill("2190-01-02T00:00")
        await page.get_by_role("button", name="Run what is missing").click()
        await expect(page.get_by_text("Not done: start: lies ahead", exact=False)).to_be_visible()
        await expect(begin).to_have_value("2190-01-01T00:00")
        name = page.get_by_label("Delete it", exact=False)
        await name.fill("nightlx")
        await page.get_by_role("button", name="Delete nightly").click()
        await expect(page.get_by_text("Not done: type the job's name", exact=False)).to_be_visible()
        await expect(name).to_have_value("nightlx")
        await name.fill("nightly")
        await page.get_by_role("button", name="Delete nightly").click()
        await expect(page).to_have_url(re.compile("/jobs($|[?])"))
        await page.goto("/holds")
        await page.get_by_label("Which").fill("q")
        await page.get_by_label("Hold", exact=True).select_option("labels")
        await page.get_by_label("Held because").fill("moving")
        await page.get_by_role("button", name="Hold it").click()
        await expect(page.get_by_text("labels are written as", exact=False)).to_be_visible()
        await expect(page.get_by_label("Held because")).to_have_value("moving")
        await page.get_by_label("Which").fill("team=a")
        await page.get_by_role("button", name="Hold it").click()
        await expect(page.get_by_text("Held: ", exact=False)).to_be_visible()
        await page.context.close()


async def sign_in(page: Page, path: str = "") -> None:
    if path:
        await page.goto(path)
    await page.get_by_label("Key", exact=False).first.fill("first-key-1234")
    await page.get_by_role("button", name="Sign in", exact=False).click()


async def test_a_refused_form_puts_the_focus_on_its_first_fault(browser: Browser) -> None:
    with live_server(pages=True) as server:
        page = await opened(browser, server.url)
        await page.goto("/new-job")
        await page.get_by_label("Rule", exact=True).fill("every day at 9am")
        await page.get_by_role("button", name="Create job").click()
        await expect(page.get_by_label("Name", exact=True)).to_be_focused()
        await page.get_by_label("Name", exact=True).fill("mended")
        await page.get_by_label("Queue", exact=True).last.fill("work")
        await page.get_by_role("button", name="Create job").click()
        await expect(page.get_by_role("heading", name="mended")).to_be_visible()
        assert call(server, "GET", "/jobs/mended")["name"] == "mended"
        await page.context.close()


async def test_what_is_heard_while_one_types_is_the_rule_alone(browser: Browser) -> None:
    with live_server(pages=True) as server:
        page = await opened(browser, server.url)
        await page.goto("/new-job")
        await page.evaluate("""() => {
            const place = document.querySelector("main [aria-live=polite]");
            window.heard = [];
            new MutationObserver(() => heard.push(place.textContent)).observe(place, { childList: true });
        }""")
        rule = page.get_by_label("Rule", exact=True)
        await rule.press_sequentially("tusday at 9", delay=20)
        await expect(page.get_by_text("Not understood yet")).to_be_visible()
        await rule.fill("every weekday at 6pm")
        await expect(page.locator("main [aria-live=polite]")).to_have_text(
            re.compile("every weekday .* at 18:00", re.I)
        )
        await page.get_by_label("Labels", exact=True).fill("team=ops")
        await expect(page.get_by_text("--label team=ops", exact=False)).to_be_visible()
        heard = await page.evaluate("heard")
        assert heard[-1].lower().startswith("every weekday"), heard
        assert heard.count(heard[-1]) == 1, "once, though the preview was put in anew"
        assert not [text for text in heard if "needed" in text or "expected str" in text], heard
        await page.context.close()


async def test_no_page_scrolls_sideways_or_cuts_what_stands_on_it(browser: Browser) -> None:
    with live_server(pages=True) as server:
        page = await opened(browser, server.url)
        await a_bad_day(page, server)
        await two_edit_one_job(page, server)
        wrong = []
        for path in every_page(server, "a" * 180, "\u202e" + "E" * 5_000 + "\u05d0" * 5_000):
            await page.goto(path)
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": 900})
                wrong += [(path[:30], width, each) for each in await page.evaluate(BEYOND)]
                assert path != "/" or await page.evaluate(TURNED) == 0, width
                assert path != "/forecast" or width > 390 or await page.evaluate(SMALL) == 0, width
                assert path not in ("/calendar", "/timeline") or await page.evaluate(APART) == 1, width
        assert wrong == [], "\n".join(map(str, wrong))
        await page.context.close()


async def test_a_page_that_counts_is_filled_in_by_itself(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = threading.Event()
    whole = Forecasting.several

    async def late(forecasting: Forecasting, asked: Any) -> list[Forecast]:
        await asyncio.to_thread(counted.wait)
        return await whole(forecasting, asked)

    monkeypatch.setattr(Forecasting, "several", late)
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 0.0)
    with live_server(pages=True) as server:
        add_job(server, "ahead")
        page = await opened(browser, server.url)
        try:
            await page.goto("/forecast")
            await expect(page.get_by_role("heading", name="The hours ahead are being counted")).to_be_visible()
        finally:
            counted.set()
        monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 60.0)
        await expect(page.get_by_role("heading", name="Most is to be done")).to_be_visible()
        await expect(page.get_by_text("being counted", exact=False)).to_have_count(0)
        await page.context.close()


async def test_three_hundred_queues_without_a_worker_and_a_dead_channel_are_few_lines(
    browser: Browser, tmp_path: Path
) -> None:
    server = LiveServer(store=f"sqlite:///{tmp_path}/store.db", pages=True)
    server.start()
    try:
        at = time.time_ns() // 1000 - HOUR
        store = make_store(f"sqlite:///{tmp_path}/store.db")
        await store.open()
        target = Wanted()
        runs = [one_offs(f"h{number}", [b"{}"], target, at, number.to_bytes(10, "big"))[0] for number in range(300)]
        assert all(await store.add_runs([replace(run, queue=f"pull/q-{run.queue}") for run in runs]))
        untold = Untold(runs[0].id, at, at, "connection refused by 10.0.0.1")
        await store.put_records([RecordChange(Record(name=UNTOLD + "pager", body=msgspec.json.encode(untold)))])
        await store.close()
        add_job(server, "well")
        page = await opened(browser, server.url)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            await page.goto("/")
            await expect(page.get_by_role("heading", name="301 things need attention")).to_be_visible()
            rows = page.get_by_role("region", name="What needs attention").get_by_role("listitem")
            await expect(rows).to_have_count(12)
            await expect(rows.first.get_by_role("link", name="Alerts to pager", exact=True)).to_be_visible()
            await expect(rows.last).to_contain_text("290 more queues have no worker")
            assert await page.evaluate("document.documentElement.scrollHeight") < (2_500 if width > 1_000 else 4_500)
        await page.context.close()
    finally:
        server.stop()


async def a_bad_day(page: Page, server: LiveServer) -> None:
    """More jobs fail than have a line: the verdict counts them all, each row says its error, the calendar draws what
    failed, and a run is found by its id."""
    runs = {}
    for number in range(22):
        letter = chr(ord("a") + number)
        add_job(server, f"ill-{letter}")
        runs[letter] = fail_a_run(
            server, f"ill-{letter}", f"Traceback (most recent call last):\nKeyError: 'X{letter.upper()}Z'"
        )
    add_job(server, "well")
    call(server, "POST", "/jobs/well/trigger")
    complete_a_run(server, "well")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.goto("/")
        await expect(page.get_by_role("heading", name="22 things need attention")).to_be_visible()
        await expect(page.get_by_text("22 jobs fail. 1 of 23 jobs is well", exact=False)).to_be_visible()
        await expect(page.get_by_text("2 more jobs", exact=False)).to_be_visible()
        await page.goto("/runs?state=failed")
        await expect(page.get_by_text("KeyError: 'XCZ'", exact=False)).to_be_visible()
        await page.goto("/jobs/ill-c")
        await expect(page.get_by_text("KeyError: 'XCZ'", exact=False).first).to_be_visible()
        await expect(page.get_by_text("Version 1, in force", exact=False)).to_be_visible()
        await expect(page.get_by_text("Version 2", exact=False)).to_have_count(0)
        await page.goto("/calendar?span=day")
        await expect(page.get_by_role("link", name=re.compile("ill-")).first).to_be_visible()
        await page.goto(f"/jobs?q={runs['c'].upper()}")
        await expect(page).to_have_url(f"{server.url}/runs/{runs['c']}")


async def two_edit_one_job(page: Page, server: LiveServer) -> None:
    """Neither of them takes back what the other changed."""
    other = await page.context.new_page()
    for tab in (page, other):
        await tab.set_viewport_size(NARROW)
        await tab.goto("/jobs/well/edit")
    await other.get_by_label("Labels", exact=True).fill("team=second")
    await other.get_by_role("button", name="Save changes").click()
    await expect(other.get_by_text("well was changed.")).to_be_visible()
    await page.get_by_label("Rule", exact=True).fill("0 4 * * *")
    await page.get_by_role("button", name="Save changes").click()
    await expect(page.get_by_text("well was changed.")).to_be_visible()
    assert call(server, "GET", "/jobs/well")["labels"] == {"team": "second"}
    await other.close()
