"""The dashboard in a real browser, by the names that people and screen readers find things by."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests.dashboard.browsing import NARROW, PATIENCE_MS, WIDE, chromium
from tests.dashboard.test_pages import GETS
from tests.dashboard.visitor import text_of
from tests.servers.live import LiveServer, live_server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

AXE = Path(sys.prefix) / "share" / "axe" / "axe.min.js"
SIZES_TOO = "{rules: {'target-size': {enabled: true}}}"
COLOURS = "{runOnly: ['color-contrast']}"
"""What alone may differ between the schemes."""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
NOT_AGAIN = {"/quiet-minutes", "/jobs?sort=next", "/jobs?show=paused", "/rates?prefix=a", "/?span=day", "/search",
             "/timeline?by=worker", "/batches?q=import&state=open"}  # fmt: skip
"""Addresses of pages that look like another, and one that is no page."""
TITLE = "\u05e9\u05dc\u05d7_\u202e" * 20
"""Of letters that run from right to left, with marks that turn what follows."""
LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(pages=True) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this file."""
    async with chromium() as launched:
        yield launched


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, server: LiveServer) -> AsyncIterator[Page]:
    """A page whose script must meet no error, and no refusal by the content policy."""
    context = await browser.new_context(base_url=server.url, viewport=WIDE)
    opened = await context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    await context.close()
    assert wrong == []


def call(server: LiveServer, method: str, path: str, body: Any = None) -> Any:
    """The API, as a program calls it."""
    data = None if body is None else msgspec.json.encode(body)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return msgspec.json.decode(text) if text else None


def add_job(server: LiveServer, name: str, **fields: Any) -> None:
    target = {"type": "queue", "queue": f"q-{name}"}
    trigger = {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"}
    call(server, "PUT", f"/jobs/{name}", {"trigger": trigger, "target": target, **fields})


def fail_a_run(server: LiveServer, name: str, error: str) -> str:
    call(server, "POST", f"/jobs/{name}/trigger")
    (run,) = call(server, "POST", "/runs/claim", {"queues": [f"q-{name}"], "limit": 1, "worker": "w"})["runs"]
    report = {"token": run["lease"]["token"], "error": error, "retryable": False}
    call(server, "POST", f"/runs/{run['id']}/fail", report)
    run_id: str = run["id"]
    return run_id


def complete_a_run(server: LiveServer, name: str) -> str:
    (run,) = call(server, "POST", "/runs/claim", {"queues": [f"q-{name}"], "limit": 1, "worker": "w"})["runs"]
    call(server, "POST", f"/runs/{run['id']}/complete", {"token": run["lease"]["token"], "result": None})
    run_id: str = run["id"]
    return run_id


async def violations(page: Page, rules: str = "") -> list[str]:
    """What axe finds. `rules`: by these alone."""
    await page.evaluate(AXE.read_text())
    return await found(page, rules)


async def found(page: Page, rules: str) -> list[str]:
    """What axe finds on a page that it was told to look at before."""
    return list(
        await page.evaluate(f"axe.run({rules}).then((r) => r.violations.map((v) => v.id + ' ' + v.nodes[0].html))")
    )


async def test_a_job_is_made_while_its_fire_times_are_shown(page: Page, server: LiveServer) -> None:
    await page.goto("/")
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_role("link", name="New job").first.click()
    await page.get_by_label("Name", exact=True).fill("made-here")
    await page.get_by_label("Rule", exact=True).fill("every weekday at 6pm excpt")
    await expect(page.get_by_text("Not understood yet")).to_be_visible()
    await page.get_by_label("Rule", exact=True).fill("every weekday at 6pm")
    await expect(page.get_by_text("Every weekday (Monday to Friday) at 18:00", exact=False).first).to_be_visible()
    await expect(page.get_by_role("region", name="Preview").get_by_role("row")).to_have_count(6)
    await page.get_by_label("Queue", exact=True).last.fill("work")
    await expect(page.get_by_text("horarium job add made-here", exact=False)).to_be_visible()
    await page.get_by_role("button", name="Create job").click()
    await expect(page.get_by_role("heading", name="made-here")).to_be_visible()
    assert call(server, "GET", "/jobs/made-here")["target"]["queue"] == "work"


async def test_a_job_is_run_paused_and_resumed(page: Page, server: LiveServer) -> None:
    add_job(server, "nightly")
    await page.goto("/jobs")
    await page.get_by_role("link", name="nightly", exact=True).click()
    await page.get_by_role("button", name="Run now").click()
    await expect(page.get_by_text("nightly was triggered.")).to_be_visible()
    await page.goto("/jobs/nightly")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_label("Reason").fill("moving house")
    await page.get_by_role("button", name="Pause nightly").click()
    await expect(page.get_by_text("Paused: moving house")).to_be_visible()
    await page.get_by_role("button", name="Resume").first.click()
    await expect(page.get_by_role("button", name="Pause", exact=True).first).to_be_visible()
    assert call(server, "GET", "/jobs/nightly")["enabled"] is True


async def test_what_happens_while_the_page_looks_again_is_looked_for_after_it(page: Page, server: LiveServer) -> None:
    """Of a table of two rows: the mouse rests beside it with any number of jobs of other tests."""
    add_job(server, "while-second")
    add_job(server, "while-first")
    answered = asyncio.Event()
    asked: list[str] = []

    async def held_back(route: Route) -> None:
        if "x-live" not in route.request.headers:
            return await route.continue_()
        asked.append(route.request.url)
        reply = await route.fetch()
        if len(asked) == 1:
            await answered.wait()
        return await route.fulfill(response=reply)

    await page.route(re.compile(r"/jobs\?q=while-$"), held_back)
    await page.goto("/jobs?q=while-")
    await page.mouse.move(1_400, 880)
    await expect(page.locator("#live")).to_have_text("Live")
    fail_a_run(server, "while-first", "ValueError: no")
    await until(lambda: page.evaluate("looking"))
    fail_a_run(server, "while-second", "ValueError: no")
    await until(lambda: page.evaluate("looking && stale"), what="a look after this one")
    answered.set()
    row = page.get_by_role("row").filter(has_text="while-second")
    await expect(row.get_by_text("Failed", exact=True).first).to_be_visible()


async def test_a_page_that_was_refused_says_so_and_looks_again_later(page: Page, server: LiveServer) -> None:
    looks = 0

    async def refused_once(route: Route) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            return await route.fulfill(status=503, headers={"retry-after": "1"}, body="")
        return await route.continue_()

    add_job(server, "refused-once")
    await page.goto("/jobs?q=refused-")
    await page.mouse.move(1_400, 880)
    await expect(page.locator("#live")).to_have_text("Live")
    await page.route(re.compile(r"/jobs\?q=refused-$"), refused_once)
    fail_a_run(server, "refused-once", "ValueError: no")
    await expect(page.locator("#live")).to_have_text(re.compile("Stale since .*: the server has too much to do"))
    assert await page.evaluate("spread") == 4 * await page.evaluate("SPREAD")
    await expect(page.locator("#live")).to_have_text("Live")
    assert await page.evaluate("spread") == await page.evaluate("SPREAD")
    row = page.get_by_role("row").filter(has_text="refused-once")
    await expect(row.get_by_text("Failed", exact=True).first).to_be_visible()


async def test_a_failure_shows_by_itself_and_is_retried(page: Page, server: LiveServer) -> None:
    add_job(server, "billing")
    await page.goto("/runs?job=billing")
    await expect(page.get_by_text("No run matches", exact=False)).to_be_visible()
    await page.goto("/")
    await page.mouse.move(1_400, 880)
    run = fail_a_run(server, "billing", "ValueError: no rate of exchange")
    await expect(page.get_by_text("ValueError: no rate of exchange", exact=False)).to_be_visible()
    await page.goto(f"/runs/{run}")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("This is the new run.")).to_be_visible()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("button", name="Cancel the run").click()
    await expect(page.get_by_text("Cancelled.", exact=True).first).to_be_visible()


async def test_several_jobs_are_paused_without_a_mouse(page: Page, server: LiveServer) -> None:
    for name in ("bulk-a", "bulk-b"):
        add_job(server, name)
    await page.goto("/jobs?q=bulk-")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search jobs")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.get_by_label("Reason of the pause").fill("the move")
    await page.get_by_role("button", name="Pause 2").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("2 jobs paused.")).to_be_visible()
    assert call(server, "GET", "/jobs/bulk-a")["pause_reason"] == "the move"
    await page.get_by_role("button", name="Resume 2").click()
    await expect(page.get_by_text("2 jobs resumed.")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("h")
    await expect(page).to_have_url(re.compile("/holds$"))


async def test_a_list_that_is_read_says_what_is_new_and_stays(page: Page, server: LiveServer) -> None:
    add_job(server, "read")
    for _ in range(3):
        fail_a_run(server, "read", "no")
    await page.goto("/runs?job=read")
    boxes = page.get_by_role("checkbox", name=re.compile("Choose run of read"))
    await boxes.first.check()
    fail_a_run(server, "read", "no")
    await expect(page.get_by_role("button", name="1 new", exact=True)).to_be_visible()
    await expect(boxes).to_have_count(3)
    await expect(boxes.first).to_be_checked()
    await page.get_by_role("button", name="1 new", exact=True).click()
    await expect(boxes).to_have_count(4)
    await expect(page.get_by_role("button", name="new")).to_have_count(0)


async def test_an_open_page_survives_a_restart_of_the_server(browser: Browser) -> None:
    with live_server(pages=True) as own:
        context = await browser.new_context(base_url=own.url, viewport=WIDE)
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        await page.goto("/jobs?q=after")
        await expect(page.get_by_text("No job matches after")).to_be_visible()
        own.stop()
        await expect(page.get_by_text("Reconnecting, as of", exact=False)).to_be_visible()
        own.start_again()
        add_job(own, "after-the-restart")
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        await expect(page.get_by_role("link", name="after-the-restart")).to_be_visible()
        await context.close()


def every_page(server: LiveServer, name: str, error: str) -> list[str]:
    """The addresses of all pages, of a system that has something to show on each, with this name wherever one can
    be given."""
    add_job(server, name, labels={f"label-{number}": name[:60] for number in range(20)}, title=TITLE)
    run, well = fail_a_run(server, name, error), call(server, "POST", f"/jobs/{name}/trigger")["id"]
    assert complete_a_run(server, name) == well
    cancelled = call(server, "POST", f"/jobs/{name}/trigger")["id"]
    call(server, "POST", f"/runs/{cancelled}/cancel")
    for _ in range(7):
        fail_a_run(server, name, error)
    days = {"holidays": [{"date": "2026-12-25", "name": name[:60]}], "business_days": ["2026-12-19"]}
    call(server, "PUT", f"/calendars/{name[:60]}", {**days, "ends_on": datetime.now(UTC).date().isoformat()})
    rule = {"type": "cron", "expression": "0 6 1 * *"}
    moved = {"type": "business_day", "calendar": name[:60], "convention": "following", "trigger": rule}
    add_job(server, f"asks-{name}", trigger=moved, approval={})
    for number, decision in enumerate(("approve", "reject", "")):
        asked = call(server, "POST", f"/jobs/asks-{name}/trigger", {"payload": {"number": number, name: name}})["id"]
        if decision:
            call(server, "POST", f"/approvals/{asked}", {"decision": decision})
        if decision == "approve":
            complete_a_run(server, f"asks-{name}")
    for number, scope in enumerate(({"queue": "elsewhere"}, {"worker": name}, {"job": name})):
        call(server, "POST", "/holds", {"scope": scope, "reason": f"{number} {error[:400]}", "until": LATER})
    target = {"type": "queue", "queue": f"q-{name}"}
    told = {"failed": [{"notify": "nobody"}]}
    planned = {"name": f"planned-{name}", "trigger": rule, "target": target, "on": told}
    plan = call(server, "POST", "/plans", {"documents": {"jobs": [planned]}})["id"]
    call(server, "PUT", "/channels/office", {"type": "webhook", "url": f"https://office.example.com/{name}/{name}"})
    batch = call(
        server, "POST", "/batches", {"runs": [{"target": target}], "on": {"finished": [{"notify": "office"}]}}
    )["id"]
    named = f"{name}-gone"
    add_job(server, named)
    call(server, "DELETE", f"/jobs/{named}")
    add_job(server, f"{name}-paused")
    call(server, "POST", f"/jobs/{name}-paused/pause", {"reason": f"{error[:300]} is looked into by those who know"})
    return [
        *(path for path in GETS if path not in NOT_AGAIN),
        f"/jobs/{name}", f"/jobs/{name}/edit", f"/jobs/{name}-paused", "/jobs/not-there",
        f"/search?q={name[:9]}", f"/queue?name=q-{name}",
        *(f"/runs/{one}" for one in (run, well, cancelled)), f"/compare?run={run}&with={well}", "/failures?q=e",
        f"/timeline?run={run}", "/timeline?by=job", f"/batches/{batch}", f"/plans/{plan}",
        f"/business-days/{name[:60]}", f"/acknowledge?cause=failing/{name}",
    ]  # fmt: skip


async def test_no_page_has_a_barrier(browser: Browser, server: LiveServer) -> None:
    context = await browser.new_context(base_url=server.url, reduced_motion="reduce")
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    for path in every_page(server, "open-to-all", "Traceback\nValueError: no price"):
        await page.emulate_media(color_scheme="light")
        await page.goto(path)
        assert await violations(page, SIZES_TOO) == [], path
        light = await page.evaluate(BACKGROUND)
        await page.emulate_media(color_scheme="dark")
        assert await page.evaluate(BACKGROUND) != light, path
        assert await found(page, COLOURS) == [], path
    await context.close()


async def test_on_a_narrow_screen_everything_is_reached_and_nothing_sticks_out(
    browser: Browser, server: LiveServer
) -> None:
    name = "a-job-with-a-name-that-is-rather-long-for-a-telephone-of-390-pixels"
    add_job(server, name)
    call(server, "POST", f"/jobs/{name}/trigger")
    context = await browser.new_context(base_url=server.url, viewport=NARROW)
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    await page.goto("/")
    for word in ("Jobs", "Runs", "Calendar", "Queues", "Nodes", "Channels", "Audit"):
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name=word, exact=True).click()
        await expect(page).to_have_title(re.compile(word))
        wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, word
        lefts = await page.evaluate(
            "[...document.querySelectorAll('.cards td')].map(c => getComputedStyle(c).paddingLeft)"
        )
        assert set(lefts) <= {"0px"}, f"{word}: the labels of a card do not stand under each other"
    await context.close()


async def test_a_chart_says_its_figures_by_the_arrow_keys_and_opens_a_run(page: Page, server: LiveServer) -> None:
    add_job(server, "charted")
    run = fail_a_run(server, "charted", "ValueError: no")
    await page.goto("/jobs/charted")
    chart = page.get_by_role("group", name="How long it takes")
    await chart.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(chart.get_by_text("failed", exact=False)).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{server.url}/runs/{run}")


async def test_a_log_grows_while_one_looks(page: Page, server: LiveServer) -> None:
    add_job(server, "logged")
    call(server, "POST", "/jobs/logged/trigger")
    (run,) = call(server, "POST", "/runs/claim", {"queues": ["q-logged"], "limit": 1, "worker": "w"})["runs"]
    await page.goto(f"/runs/{run['id']}")
    log = page.get_by_role("log", name="Log")
    await expect(log).to_contain_text("No line yet")
    token = run["lease"]["token"]
    call(server, "POST", f"/runs/{run['id']}/log", {"token": token, "lines": [{"text": "<b>half</b> done"}]})
    await expect(log).to_contain_text("<b>half</b> done")
    call(server, "POST", f"/runs/{run['id']}/complete", {"token": token, "result": {"rows": 7}})
    await expect(page.get_by_text('"rows": 7')).to_be_visible()
    await expect(log).to_contain_text("<b>half</b> done")


async def test_all_that_match_are_retried_once_their_number_was_said(page: Page, server: LiveServer) -> None:
    add_job(server, "many")
    for number in range(3):
        fail_a_run(server, "many", f"no {number}")
    await page.goto("/runs?job=many&state=failed")
    await page.get_by_role("link", name="Retry all that match").click()
    await expect(page.get_by_role("heading", name="Retry 3 runs?")).to_be_visible()
    await page.get_by_role("button", name="Retry 3 runs").click()
    await expect(page.get_by_text("3 runs will run again.")).to_be_visible()


async def test_dates_are_written_in_the_browsers_language(browser: Browser, server: LiveServer) -> None:
    away = datetime.now(UTC) + timedelta(days=3)  # of what comes today, only the time is written
    add_job(server, "dated", trigger={"type": "once", "at": away.isoformat()})
    context = await browser.new_context(base_url=server.url, locale="de-DE", timezone_id="Europe/Berlin")
    page = await context.new_page()
    await page.goto("/jobs/dated")
    day = re.compile(r"^(Mo|Di|Mi|Do|Fr|Sa|So)\b")
    await expect(page.locator("table.fires time").first).to_have_text(day)
    await expect(page.locator("table.fires time").first).to_have_attribute("title", re.compile(r"UTC$"))
    await page.goto("/calendar?span=day&day=2027-03-25")
    await expect(page.get_by_role("heading", name="Donnerstag, 25. März 2027").first).to_be_visible()
    await page.goto("/jobs?q=dated")
    await expect(page.locator("td.c-local")).to_have_text(day)
    await context.close()


async def test_pages_weigh_little(page: Page, server: LiveServer) -> None:
    finished: list[Any] = []
    page.on("requestfinished", lambda request: finished.append(request))
    await page.goto("/jobs")
    await page.wait_for_load_state("load")
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    await until(lambda: len(finished) >= 4)  # the page, its styles and its scripts; the stream of events never is
    sizes = [(await request.sizes())["responseBodySize"] for request in list(finished)]
    assert sum(sizes) < 60_000, sizes


async def test_the_text_of_a_page_is_there_without_a_script(server: LiveServer) -> None:
    add_job(server, "plain")
    with urllib.request.urlopen(f"{server.url}/jobs", timeout=60) as answer:
        assert "plain" in text_of(answer.read().decode())
