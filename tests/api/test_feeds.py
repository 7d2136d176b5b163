"""Feeds: an address that calendar programs read, checked by a parser that is not ours."""

from __future__ import annotations

from typing import Any

import pytest
from icalendar import Calendar

from horarium.clock import DAY
from horarium.rules.feeding import Event, feed_text
from horarium.testing.values import NOW

from .conftest import Api, Reply, a_definition

DAILY = {"type": "cron", "expression": "0 9 * * *", "timezone": "UTC"}


async def create(api: Api, **fields: Any) -> str:
    reply = await api.post("/feeds", {"name": "mine", **fields})
    assert reply.status == 201, reply.body
    path: str = reply.json["url"].partition("//")[2].partition("/")[2]
    return path


async def read(api: Api, path: str) -> tuple[Reply, list[Any]]:
    reply = await api.send("GET", f"//{path}", headers={})
    return reply, list(Calendar.from_ical(reply.body).walk("VEVENT"))


async def test_a_feed_shows_what_ran_and_what_will(api: Api) -> None:
    await api.post("/jobs", a_definition("daily", trigger=DAILY, title="Report, daily; all", labels={"team": "a"}))
    await api.post("/jobs", a_definition("other", trigger=DAILY, labels={"team": "b"}))
    path = await create(api, labels={"team": "a"})
    reply, events = await read(api, path)
    assert reply.headers["content-type"] == "text/calendar; charset=utf-8"
    assert len(events) == 60
    assert str(events[0]["SUMMARY"]) == "Report, daily; all"
    assert events[0].decoded("DTSTART").isoformat() == "2027-01-15T09:00:00+00:00"
    assert len({str(event["UID"]) for event in events}) == 60


async def test_fire_times_under_a_hold_are_shown_as_held(api: Api) -> None:
    for name in ("held", "free"):
        await api.post("/jobs", a_definition(name, trigger=DAILY))
    hold = {"scope": {"job": "held"}, "until": "2027-01-17T00:00:00Z", "reason": "move, to the new hall"}
    assert (await api.post("/holds", hold)).status == 201
    _, events = await read(api, await create(api))
    of_held = [event for event in events if str(event["SUMMARY"]).startswith("held")]
    assert [(str(event["SUMMARY"]), str(event["STATUS"])) for event in of_held[:3]] == [
        ("held (held)", "TENTATIVE"), ("held (held)", "TENTATIVE"), ("held", "CONFIRMED"),
    ]  # fmt: skip
    assert "move, to the new hall" in str(of_held[0]["DESCRIPTION"])
    assert {str(event["STATUS"]) for event in events if str(event["SUMMARY"]) == "free"} == {"CONFIRMED"}


async def test_an_event_keeps_its_identity_when_its_run_ends(api: Api) -> None:
    await api.post("/jobs", a_definition("daily", trigger=DAILY))
    path = await create(api, jobs=["daily"])
    _, before = await read(api, path)
    api.clock.advance(3_601)
    await api.post("/jobs/daily/backfill", {"start": "2027-01-15T09:00:00Z", "end": "2027-01-15T09:00:01Z"})
    (claimed,) = await api.claim()
    api.clock.advance(30)
    failed = {"token": claimed["lease"]["token"], "error": "no paper", "retryable": False}
    await api.post(f"/runs/{claimed['id']}/fail", failed)
    _, after = await read(api, path)
    assert str(after[0]["UID"]) == str(before[0]["UID"])
    assert str(after[0]["SUMMARY"]) == "daily (failed)"
    assert "no paper" in str(after[0]["DESCRIPTION"])
    assert after[0].decoded("DURATION").total_seconds() == 30


async def test_a_revoked_feed_is_gone_and_no_key_is_stored(api: Api) -> None:
    path = await create(api)
    key = path.removeprefix("feed/").removesuffix(".ics")
    (record,) = await api.store.get_records(["feed/mine"])
    assert record is not None
    assert key not in str(record)
    assert (await api.post("/feeds", {"name": "mine"})).code == "already_exists"
    assert [feed["name"] for feed in (await api.get("/feeds")).json["items"]] == ["mine"]
    assert "url" not in (await api.get("/feeds")).json["items"][0]
    assert (await api.send("DELETE", "/feeds/mine")).status == 204
    assert (await api.send("GET", f"//{path}", headers={})).status == 404
    assert (await api.send("DELETE", "/feeds/mine")).status == 404


@pytest.mark.parametrize("path", ["feed/none.ics", "feed/none", f"feed/{'x' * 300}.ics"])
async def test_an_address_that_never_was_is_not_found(api: Api, path: str) -> None:
    assert (await api.send("GET", f"//{path}", headers={})).status == 404


def test_lines_are_folded_between_characters_and_texts_escaped() -> None:
    said = "Prüfung; \\ every, day\nsecond line " + "ä" * 200
    text = feed_text("Büro", [Event("1@horarium", NOW + DAY, said, "x")], NOW)
    assert all(len(line) <= 75 for line in text.split(b"\r\n"))
    (event,) = Calendar.from_ical(text).walk("VEVENT")
    assert str(event["SUMMARY"]) == said


async def test_a_feed_of_a_job_that_is_not_there_is_refused(api: Api) -> None:
    await api.post("/jobs", a_definition("daily", trigger=DAILY))
    refused = await api.post("/feeds", {"name": "mine", "jobs": ["daily", "dialy"]})
    assert refused.status == 422
    assert refused.json["field"] == "jobs"
    assert "'dialy'" in refused.json["detail"]
    await create(api, jobs=["daily"])
