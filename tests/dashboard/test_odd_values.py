"""Cookies and addresses that no browser of ours makes: pages are shown all the same, or say which value is wrong."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor


@pytest.mark.parametrize(
    "zone", ["AAAA", "Etc/Unknown", "+03:00", "a\0b", "Europe", "/etc/passwd", "../x", "x" * 5_000, "\ud800"]
)
async def test_a_zone_that_is_none_is_utc(zone: str) -> None:
    api = Api(pages=True)
    cookie = quote(zone.encode("utf-8", "surrogatepass"), safe="")
    for page in ("//", "//calendar", "//jobs"):
        reply = await api.get("/" + page, headers={"cookie": f"horarium_zone={cookie}"})
        assert reply.status == 200
        assert b"UTC" in reply.body


@pytest.mark.parametrize(
    "day", ["0001-01-01", "9999-12-31", "0000-00-00", "1969-12-31", "2200-01-01", "2026-02-30", "x"]
)
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
async def test_a_day_at_the_end_of_the_calendar_is_no_fault(day: str, zone: str) -> None:
    api = Api(pages=True)
    for span in ("", "&span=week", "&span=month"):
        reply = await api.get(
            f"///calendar?day={day}{span}", headers={"cookie": f"horarium_zone={quote(zone, safe='')}"}
        )
        assert reply.status in (200, 422), reply.body[:300]


@pytest.mark.parametrize(
    "address",
    ["runs?state=", "runs?state=failed&state=", "jobs?show=", "jobs?sort=", "batches?state=", "failures?show=",
     "failures?span=", "calendar?span=", "timeline?span=", "timeline?by=", "approvals?show=", "forecast?count=",
     "?span=", "bulk-runs?action=retry&state=", "bulk-jobs?action=pause&show="],
)  # fmt: skip
async def test_a_filter_that_is_none_is_named(address: str) -> None:
    """It would show, or do something to, all there is."""
    api = Api(pages=True)
    reply = await api.get(f"///{address}bogus")
    assert (reply.status, "bogus" in reply.body.decode()) == (422, True)
    assert (await api.get(f"///{address}")).status == 200


async def test_a_mistyped_address_has_a_page(api: Api, visitor: Visitor) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/jobz", "/jobs/a/b/c", "/jobs/nothing/runs"):
        reply = await visitor.open(path, **browser)
        assert reply.status == 404, path
        assert f"there is nothing at {path}" in visitor.text
        assert (await api.send("GET", f"/{path}")).code == "no_such_route", "a program"
    for method, path in (("GET", "/api/v1/jobz"), ("POST", "/jobz")):
        assert (await api.send(method, f"/{path}", headers=browser)).code == "no_such_route"
    reply = await Visitor(Api(["first-key-1234"], pages=True)).open("/jobz", **browser)
    assert (reply.status, reply.headers["location"]) == (303, "/sign-in?next=%2Fjobz")
