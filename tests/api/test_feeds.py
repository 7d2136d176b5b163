"""Feeds: an address that calendar programs read, checked by a parser that is not ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from icalendar import Calendar

from horarium.clock import DAY
from horarium.operations.looking import feeds
from horarium.rules.feeding import Event, feed_text
from horarium.testing.values import NOW

from .conftest import Api, Reply, a_definition
from .test_approvals import ADMIN, keyed

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


async def test_a_feed_that_is_as_the_program_has_it_is_not_sent_again(api: Api) -> None:
    await api.post("/jobs", a_definition("daily", trigger=DAILY))
    path = await create(api)

    async def ask(known: str) -> Reply:
        return await api.send("GET", f"//{path}", headers={"if-none-match": known})

    tag = (await read(api, path))[0].headers["etag"]
    api.clock.advance(600)
    strong = tag.removeprefix("W/")
    for known in (tag, strong, f'"a,b", {strong} ,W/"c"', "*"):
        reply = await ask(known)
        assert (reply.status, reply.body, reply.headers["etag"]) == (304, b"", tag), known
        assert not {"content-type", "content-length"} & reply.headers.keys()
    for known in ("", "none", strong.strip('"'), '"c"', f'W/"{strong}"'):
        assert (await ask(known)).status == 200, known
    await api.send("PATCH", "/jobs/daily", {"title": "another"})
    changed = await ask(tag)
    assert (changed.status, changed.headers["etag"] == tag) == (200, False)
    assert b"SUMMARY:another" in changed.body


async def test_events_keep_their_wall_time_over_a_change_of_the_clock(api: Api) -> None:
    trigger = {"type": "cron", "expression": "0 9 * * *", "timezone": "America/New_York"}
    await api.post("/jobs", a_definition("daily", trigger=trigger))
    _, events = await read(api, await create(api))
    assert [event.decoded("DTSTART").isoformat()[:16] for event in events[-3:]] == [
        "2027-03-13T14:00", "2027-03-14T13:00", "2027-03-15T13:00",
    ]  # fmt: skip


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


async def test_a_feed_ends_with_the_key_that_made_it() -> None:
    """Also where a key of that name is made again; its address is as one that never was, and lists say so."""
    api = Api(api_keys=["first-key-1234"])
    await api.send("POST", "/jobs", a_definition("daily", trigger=DAILY), headers=ADMIN)
    urls = []
    for name in ("ann", "ben"):
        made = await api.send("POST", "/feeds", {"name": f"of-{name}"}, headers=await keyed(api, name, "editor"))
        urls.append(made.json["url"].removeprefix("http://testserver"))
    made = await api.send("POST", "/feeds", {"name": "of-all"}, headers=ADMIN)
    urls.append(made.json["url"].removeprefix("http://testserver"))
    assert await statuses(api, urls) == [200, 200, 200]
    assert (await api.send("DELETE", "/keys/ann", headers=ADMIN)).status == 204
    assert await statuses(api, urls) == [404, 200, 200]
    await keyed(api, "ann", "editor")
    assert await statuses(api, urls) == [404, 200, 200]
    listed = (await api.send("GET", "/feeds", headers=ADMIN)).json["items"]
    assert [(feed["name"], feed["by"], feed["ended"]) for feed in listed] == [
        ("of-all", "api-key", False), ("of-ann", "ann", True), ("of-ben", "ben", False),
    ]  # fmt: skip


async def test_a_feed_ends_when_the_time_of_its_key_is_over() -> None:
    api = Api(api_keys=["first-key-1234"])
    asked = {"name": "cal", "roles": ["editor"], "expires_at": "2027-01-16T08:00:00Z"}
    key = (await api.send("POST", "/keys", asked, headers=ADMIN)).json["key"]
    made = await api.send("POST", "/feeds", {"name": "mine"}, headers={"authorization": f"Bearer {key}"})
    urls = [made.json["url"].removeprefix("http://testserver")]
    assert await statuses(api, urls) == [200]
    api.clock.advance(2 * 86_400)
    assert await statuses(api, urls) == [404]


async def statuses(api: Api, urls: list[str]) -> list[int]:
    return [(await api.send("GET", f"/{url}", headers={})).status for url in urls]


async def test_a_moved_run_is_one_event_before_it_begins_and_after(api: Api) -> None:
    """It lies where the run is to begin, and then where it began."""
    await api.post("/jobs", a_definition("daily", trigger=DAILY, target={"type": "queue", "queue": "work"}))
    path = await create(api, jobs=["daily"])
    _, before = await read(api, path)
    uid, first = str(before[0]["UID"]), "2027-01-15T09:00:00Z"
    for to in ("2027-01-16T09:00:00Z", "2027-01-15T08:30:00Z"):  # the first is the next fire time: both run then
        assert (await api.post(f"/jobs/daily/fires/{first}/move", {"to": to})).status == 200
        _, moved = await read(api, path)
        assert len(moved) == len(before)
    assert place(moved, uid) == ["2027-01-15T08:30:00+00:00"]
    api.clock.advance(1_805)
    await api.send("PATCH", "/jobs/daily", {"priority": 1})  # plans what is owed
    (claimed,) = await api.claim()
    assert uid == f"{claimed['id']}@horarium"
    _, begun = await read(api, path)
    assert place(begun, uid) == ["2027-01-15T08:30:05+00:00"]
    assert len(begun) == len(before)


async def test_a_bound_key_has_its_jobs_in_its_feed_however_many_others_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "JOBS_MAX", 2)
    api = Api(api_keys=["first-key-1234"])
    for name, team in (("a", "risk"), ("b", "risk"), ("c", "risk"), ("ours", "billing")):
        job = a_definition(name, trigger=DAILY, labels={"team": team})
        await api.send("POST", "/jobs", job, headers=ADMIN)
    asked = {"name": "billing", "roles": ["editor"], "labels": {"team": "billing"}}
    key = (await api.send("POST", "/keys", asked, headers=ADMIN)).json["key"]
    made = await api.send("POST", "/feeds", {"name": "mine"}, headers={"authorization": f"Bearer {key}"})
    _, events = await read(api, made.json["url"].removeprefix("http://testserver/"))
    assert {str(event["SUMMARY"]) for event in events} == {"ours"}


def place(events: list[Any], uid: str) -> list[str]:
    return [event.decoded("DTSTART").isoformat() for event in events if str(event["UID"]) == uid]


@pytest.mark.parametrize("char", ["\x85", "\u2028", "\u2029", "\r\n", "\v"])
def test_no_text_begins_a_line_of_its_own(char: str) -> None:
    """Nor for a parser that takes what Unicode calls a line for one."""
    said = f"failed{char}END:VEVENT"
    text = feed_text("mine", [Event("1@horarium", NOW, said, said)], NOW).decode()
    assert [line for line in text.splitlines() if line == "END:VEVENT"] == ["END:VEVENT"]


async def test_a_feed_is_written_beside_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noting(*given: Any) -> bytes:
        threads.append(threading.get_ident())
        return feed_text(*given)

    monkeypatch.setattr(feeds, "feed_text", noting)
    await api.post("/jobs", a_definition("daily", trigger=DAILY))
    _, events = await read(api, await create(api))
    assert (len(events), len(threads)) == (60, 1)
    assert threads != [threading.get_ident()]


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
