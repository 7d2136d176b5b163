"""What pages show to those who look for something: in lists, in the calendar, in the life of a run, on a new server."""

from __future__ import annotations

import re

import pytest

from horarium.dashboard.views import jobs
from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


async def test_a_search_finds_any_part_of_a_name(api: Api, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sync-orders", "Orders-export", "orders-import", "report"):
        await api.add_job(name, labels={"team": "shop"})
    await visitor.open("/jobs?q=orders")
    shown = [visitor.page.index(f'href="/jobs/{name}"') for name in ("orders-import", "Orders-export", "sync-orders")]
    assert shown == sorted(shown), "what begins with it comes first"
    assert "Choose report" not in visitor.page
    await visitor.open("/jobs?q=rt&show=paused")
    assert "No job matches rt" in visitor.text
    monkeypatch.setattr(jobs, "LOOKED_MAX", 2)
    monkeypatch.setattr(jobs, "PAGE_MAX", 2)
    await visitor.open("/jobs?q=port")
    found = re.findall('Choose ([A-Za-z-]+)"', visitor.page)
    assert found == ["Orders-export", "orders-import"]
    assert "2 jobs were looked at for port within their names" in visitor.text
    while following := re.search(r'<a class="btn[a-z ]*" href="([^"]+)">Search on</a>', visitor.page):
        await visitor.open(following[1].replace("&amp;", "&"))
        found += re.findall('Choose ([A-Za-z-]+)"', visitor.page)
    assert found == ["Orders-export", "orders-import", "report"]


async def test_the_navigation_says_what_is_where(api: Api, visitor: Visitor) -> None:
    await api.add_job("poll")
    await api.post("/jobs/poll/trigger")
    api.clock.advance(300)
    await visitor.open("/audit")
    assert re.findall(r'<span class="(count[^"]*)" aria-hidden="true">([^<]+)<', visitor.page) == [
        ("count bad", "1"), ("count", "1"), ("count bad", "1 unserved"),
    ]  # fmt: skip
    api.clock.advance(60)
    api.failing = {"stats"}
    assert (await visitor.open("/new-job")).status == 200, "a page does not fail with its counts"


async def test_the_last_error_comes_first(api: Api, visitor: Visitor) -> None:
    await api.add_job("job", retry={"attempts_max": 2, "backoff_seconds": 1})
    await api.post("/jobs/job/trigger")
    for number in (1, 2):
        (run,) = await api.claim()
        report = {"token": run["lease"]["token"], "error": f"KeyError: {number}"}
        assert (await api.post(f"/runs/{run['id']}/fail", report)).status == 200
        api.clock.advance(10)
    await visitor.open(f"/runs/{run['id']}")
    _, _, errors = visitor.text.partition(" Errors ")
    assert errors.index("KeyError: 2") < errors.index("attempt 1 failed: KeyError: 1")


async def test_a_new_server_leads_to_the_first_job(visitor: Visitor) -> None:
    for path in ("/", "/jobs"):
        await visitor.open(path)
        assert "Make the first job" in visitor.text
        assert "horarium job add hello --every 1m --http https://example.com" in visitor.text
        assert 'href="/new-job"' in visitor.page


async def test_a_day_of_the_calendar_names_its_jobs(api: Api, visitor: Visitor) -> None:
    trigger = {"type": "cron", "expression": "30 2 * * *", "timezone": "Europe/Berlin"}
    await api.add_job("nightly", trigger=trigger)
    visitor.cookies["horarium_zone"] = "Europe%2FBerlin"
    await visitor.open("/calendar?span=day&day=2027-03-27")
    assert "02:00 nightly 02:30 , Will run" in visitor.text
    await visitor.open("/calendar?span=day&day=2027-03-28")
    assert "02:00 left out 03:00 nightly 03:00 , Will run" in visitor.text, visitor.text
    await visitor.open("/calendar?span=day&day=2027-10-31")
    assert visitor.text.count("nightly 02:30") == 1, "an hour that is repeated is one hour"
