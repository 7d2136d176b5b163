"""In a real browser: the palette, saved views, what is acknowledged, and pages beside the daily ones."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from tests.dashboard import test_browser as daily
from tests.dashboard.test_browser import add_job, call, fail_a_run, violations
from tests.servers.live import LiveServer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

server, browser, page = daily.server, daily.browser, daily.page


async def test_one_key_opens_the_palette_and_a_verb_does_it(page: Page, server: LiveServer) -> None:
    for name in ("pal-one", "pal-two"):
        add_job(server, name)
    run = fail_a_run(server, "pal-one", "no")
    await page.goto("/calendar")
    await page.keyboard.press("Control+k")
    text = page.get_by_label("Search or command")
    await expect(text).to_be_focused()
    await page.keyboard.type("pause pal-t")
    await expect(page.get_by_role("link", name="Pause pal-two")).to_be_visible()
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await expect(text).to_be_hidden()
    await page.keyboard.press("/")
    await expect(text).to_be_focused()
    await expect(page.get_by_role("link", name="Pause pal-two")).to_be_visible()
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("link", name="Pause pal-two")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_label("Reason").fill("moving")
    await page.get_by_role("button", name="Pause 1 job").click()
    await expect(page.get_by_text("1 job paused.")).to_be_visible()
    await expect(page.locator("#main")).to_be_focused()  # the next tab stop is on the page that says what was done
    assert call(server, "GET", "/jobs/pal-two")["pause_reason"] == "moving"
    await page.keyboard.press("Control+k")
    await page.keyboard.type(run)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{server.url}/runs/{run}")


async def test_a_key_pressed_in_the_frame_that_hides_the_palette_opens_it_again(page: Page) -> None:
    await page.goto("/calendar")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_label("Search or command")).to_be_focused()
    await page.evaluate("""() => {
        document.getElementById("palette").hidePopover();
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }));
    }""")
    await expect(page.get_by_label("Search or command")).to_be_focused()


async def test_an_answer_that_comes_late_takes_no_focus_from_the_list(page: Page, server: LiveServer) -> None:
    add_job(server, "pal-late")
    await page.goto("/calendar")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("pause pal-late")
    link = page.get_by_role("link", name="Pause pal-late")
    await expect(link).to_be_visible()
    asked = asyncio.Event()

    async def late(route: Route) -> None:
        await asked.wait()
        await route.continue_()

    await page.route("**/search?*", late)
    async with page.expect_response("**/search?*"):
        await page.keyboard.type("  ")
        await page.keyboard.press("ArrowDown")
        await expect(link).to_be_focused()
        await page.evaluate("document.querySelector('#palette-list a').dataset.old = ''")
        asked.set()
    await expect(page.locator("#palette-list a[data-old]")).to_have_count(0)
    await expect(link).to_be_focused()


async def test_a_filter_is_kept_by_name(page: Page, server: LiveServer) -> None:
    add_job(server, "viewed")
    fail_a_run(server, "viewed", "no")
    await page.goto("/runs?job=viewed")
    await page.get_by_role("button", name="Save this view").click()
    await page.get_by_label("Name of this view").fill("Mine")
    await page.get_by_role("button", name="Save the view").click()
    await expect(page.get_by_text("The view Mine is kept.")).to_be_visible()
    await page.goto("/runs")
    await page.get_by_role("link", name="Mine").click()
    await expect(page).to_have_url(f"{server.url}/runs?job=viewed")
    assert await violations(page) == []


async def test_a_person_takes_note_of_what_fails(page: Page, server: LiveServer) -> None:
    add_job(server, "noted")
    fail_a_run(server, "noted", "KeyError: 'XDR'")
    await page.goto("/")
    await page.get_by_role("link", name="Acknowledge: noted").click()
    await page.get_by_label("Reason").fill("The bank is down")
    assert await violations(page) == []
    await page.get_by_role("button", name="Acknowledge").click()
    await expect(page.get_by_text("noted is acknowledged until this time tomorrow")).to_be_visible()
    await page.get_by_text("not counted above").click()
    await expect(page.get_by_text("The bank is down")).to_be_visible()
    assert await violations(page) == []
    await page.get_by_role("button", name="Bring back: noted").click()
    await expect(page.get_by_role("link", name="Acknowledge: noted")).to_be_visible()


async def test_the_letters_go_along_the_questions_too(page: Page, server: LiveServer) -> None:
    add_job(server, "asks", approval={})
    ids = [call(server, "POST", "/jobs/asks/trigger")["id"] for _ in range(2)]
    await page.goto("/approvals")
    for key, at in (("j", 0), ("j", 1), ("k", 0), ("j", 1)):
        await page.keyboard.press(key)
        await expect(page.locator("[data-row] [data-open]").nth(at)).to_be_focused()
    opened = await page.locator(":focus").get_attribute("href") or ""
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**{opened}")
    assert opened.removeprefix("/runs/") in ids


async def test_limits_feeds_and_keys_are_set_by_people(page: Page, server: LiveServer) -> None:
    add_job(server, "gone")
    await page.goto("/rates")
    await page.get_by_label("Key", exact=True).fill("api")
    await page.get_by_label("Allows").fill("5/1m")
    await page.get_by_role("button", name="Set the limit").click()
    await expect(page.get_by_text("api allows 5/1m")).to_be_visible()
    assert await violations(page) == []
    await page.goto("/feeds")
    await page.get_by_label("Name").fill("mine")
    await page.get_by_role("button", name="Make the feed").click()
    await expect(page.get_by_text("mine is made.")).to_be_visible()
    assert await violations(page) == []
    await page.goto("/channels")
    await page.get_by_label("Name").fill("ops")
    await page.get_by_label("Goes to").fill("https://example.org/hook")
    await page.get_by_role("button", name="Add the channel").click()
    await page.get_by_role("link", name="Edit ops").click()
    await expect(page.get_by_role("button", name="Delete ops")).to_be_visible()
    assert await violations(page) == []
    await page.goto("/access")
    await page.get_by_label("Name").fill("ci")
    await page.get_by_label("operator").check()
    assert await violations(page) == []
    call(server, "DELETE", "/jobs/gone")
    await page.goto("/deleted-jobs")
    assert await violations(page) == []
    await page.get_by_role("button", name="Bring back gone").click()
    await expect(page.get_by_role("heading", name="gone")).to_be_visible()


async def test_a_queue_is_steered_and_a_page_hangs_on_the_wall(page: Page, server: LiveServer) -> None:
    add_job(server, "steered")
    call(server, "POST", "/jobs/steered/trigger")
    await page.goto("/queues")
    await page.get_by_role("link", name="q-steered").click()
    await page.get_by_label("One key a line").fill("gold=3")
    await page.get_by_role("button", name="Set the weights").click()
    await expect(page.get_by_text("1 weight set")).to_be_visible()
    assert await violations(page) == []
    await page.get_by_role("link", name="Hold it").click()
    await page.get_by_label("Held because").fill("moving")
    await page.get_by_role("button", name="Hold it").click()
    await expect(page.get_by_role("heading", name="1 hold in force")).to_be_visible()
    await page.goto("/queue?name=q-steered")
    await page.get_by_role("button", name="Lift the hold").click()
    await expect(page.get_by_text("What waited goes on")).to_be_visible()
    await page.goto("/?wall")
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Jobs", exact=True)).to_be_hidden()
    assert await violations(page) == []
    await page.emulate_media(media="print")
    await page.goto("/jobs")
    await expect(page.get_by_role("link", name="New job")).to_be_hidden()
