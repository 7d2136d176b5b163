"""The dashboard in another engine: every page at seven widths in both schemes, twelve tabs, and what was typed."""

from __future__ import annotations

import pytest

from tests.dashboard.firefox import Firefox, firefox
from tests.dashboard.test_browser import add_job, every_page
from tests.dashboard.test_browser_bad_days import BEYOND, WIDTHS
from tests.servers.live import live_server

pytestmark = [pytest.mark.slow, pytest.mark.proof]

LIVE = "return document.querySelector('#live')?.textContent === 'Live'"
STANDS = "return document.body?.textContent.includes(arguments[0])"  # a page that is loaded again has none for a moment
DARK, LIGHT = 0, 1


@pytest.mark.parametrize(("scheme", "widths"), [(LIGHT, WIDTHS[:4]), (DARK, WIDTHS[4:])])
def test_no_page_scrolls_sideways_or_cuts_what_stands_on_it(scheme: int, widths: tuple[int, ...]) -> None:
    preferences = {"layout.css.prefers-color-scheme.content-override": scheme}
    with live_server(pages=True) as server, firefox(**preferences) as browser:
        wrong = []
        for path in every_page(server, "a" * 180, "\u202e" + "E" * 5_000 + "\u05d0" * 5_000):
            browser.open(server.url + path)
            for width in widths:
                browser.size(width)
                wrong += [(path[:30], width, each) for each in browser.ask(f"return ({BEYOND})()")]
        assert wrong == [], "\n".join(map(str, wrong))


def test_twelve_tabs_are_live_and_typed_text_outlives_the_server() -> None:
    with live_server(pages=True) as server, firefox() as browser:
        browser.open(f"{server.url}/new-job")
        browser.type("[name=name]", "typed")
        browser.type("[name=rule]", "every weekday at 6pm")
        browser.until(STANDS, "every weekday (Monday to Friday) at 18:00")
        form = browser.tell("WebDriver:GetWindowHandle")["value"]
        tabs = [_tab(browser, f"{server.url}/jobs") for _ in range(11)]
        add_job(server, "seen-everywhere")
        for tab in tabs:
            browser.tell("WebDriver:SwitchToWindow", handle=tab, focus=True)
            browser.until(LIVE)
            browser.until(STANDS, "seen-everywhere")
        server.stop()
        browser.until("return document.querySelector('#live').textContent.startsWith('Reconnecting, as of')")
        browser.tell("WebDriver:SwitchToWindow", handle=form, focus=True)
        browser.type("[name=rule]", " until friday")
        browser.until(STANDS, "Not asked again yet")
        server.start_again()
        browser.tell("WebDriver:Refresh")
        browser.until("return document.querySelector('[name=name]').value === 'typed'")


def _tab(browser: Firefox, url: str) -> str:
    """Another one, in front, with that page."""
    handle = browser.tell("WebDriver:NewWindow", type="tab", focus=True)["handle"]
    browser.tell("WebDriver:SwitchToWindow", handle=handle, focus=True)
    browser.open(url)
    return str(handle)
