"""Calendars over the API: defined, shown day by day, compared before they change, carried to the jobs that use them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.model.records import RecordFilter
from horarium.operations.calendars import CHANGED
from horarium.services.upkeep.calendars import CalendarApplier

from .conftest import Api, a_definition

YEAR = {
    "title": "Our year",
    "holidays": [
        "2027-01-01",
        {"date": "2027-03-26", "name": "Good Friday"},
        {"rrule": "FREQ=YEARLY;BYMONTH=5;BYMONTHDAY=3", "name": "Third of May"},
    ],
    "business_days": ["2027-01-02"],
    "ends_on": "2030-12-31",
}
DAILY = {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}


def on_days(convention: str = "following", name: str = "ours", **more: Any) -> dict[str, Any]:
    return {"type": "business_day", "trigger": DAILY, "calendar": name, "convention": convention, **more}


async def put(api: Api, name: str, calendar: dict[str, Any], status: int = 201) -> dict[str, Any]:
    reply = await api.send("PUT", f"/calendars/{name}", calendar)
    assert reply.status == status, reply.body
    shown: dict[str, Any] = reply.json
    return shown


def applier_of(api: Api) -> CalendarApplier:
    operations = api.operations
    return CalendarApplier(api.store, api.clock, operations.reconciler, "n0", operations.importing, operations.holds)


async def carry(api: Api) -> None:
    """All that the service does about changes, until nothing is left of them."""
    applier = applier_of(api)
    for _ in range(200):
        await applier.step(api.clock.now())
        if not (await api.store.list_records(RecordFilter(CHANGED), None, 10)).items:
            return
        api.clock.advance(1)
    raise AssertionError("a change of a calendar is never done")


async def test_the_life_of_a_calendar(api: Api) -> None:
    shown = await put(api, "ours", YEAR)
    assert shown == {"name": "ours", "weekend": ["SAT", "SUN"], **YEAR}
    assert (await api.get("/calendars/ours")).json == shown
    assert await put(api, "ours", {**YEAR, "weekend": ["FRI", "SAT"]}, 200) == {**shown, "weekend": ["FRI", "SAT"]}
    await put(api, "more", {})
    first = (await api.get("/calendars?limit=1")).json
    rest = (await api.get(f"/calendars?limit=1&cursor={first['next_cursor']}")).json
    assert [each["name"] for each in (*first["items"], *rest["items"])] == ["more", "ours"]
    assert (await api.send("DELETE", "/calendars/more")).status == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/days")):
        assert (await api.send(method, f"/calendars/more{path}")).code == "not_found"
    actions = [entry["action"] for entry in (await api.get("/audit")).json["items"]]
    assert {"calendar.create", "calendar.update", "calendar.delete"} <= set(actions)


async def test_its_days_say_why(api: Api) -> None:
    await put(api, "ours", YEAR)
    days = (await api.get("/calendars/ours/days?since=2027-03-25&until=2027-03-28")).json["items"]
    assert days == [
        {"date": "2027-03-25", "business_day": True},
        {"date": "2027-03-26", "business_day": False, "name": "Good Friday"},
        {"date": "2027-03-27", "business_day": False},
        {"date": "2027-03-28", "business_day": False},
    ]
    assert (await api.get("/calendars/ours/days?since=2027-01-02&until=2027-01-02")).json["items"][0]["business_day"]
    may = (await api.get("/calendars/ours/days?since=2029-05-03&until=2029-05-03")).json["items"]
    assert may == [{"date": "2029-05-03", "business_day": False, "name": "Third of May"}]
    assert (await api.get("/calendars/ours/days?since=2027-02-30")).status == 422
    assert (await api.get("/calendars/ours/days?since=2027-02-01&until=2027-01-01")).status == 422
    assert len((await api.get("/calendars/ours/days")).json["items"]) == 366


@pytest.mark.parametrize(
    ("calendar", "field"),
    [
        ({"weekend": ["SAT", "SUNDAY"]}, "weekend[1]"),
        ({"holidays": ["2027-02-30"]}, "holidays[0]"),
        ({"holidays": ["2027-02-03", {"name": "nothing"}]}, "holidays[1]"),
        ({"holidays": [{"rrule": "FREQ=OFTEN"}]}, "holidays[0].rrule"),
        ({"ends_on": "2027-13-01"}, "ends_on"),
        ({"weekend": ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]}, "weekend"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_no_calendar_is_refused_with_its_field(api: Api, calendar: dict[str, Any], field: str) -> None:
    reply = await api.send("PUT", "/calendars/ours", calendar)
    assert (reply.status, reply.json["field"]) == (422, field), reply.body


@pytest.mark.parametrize(
    ("rule", "position"),
    [("garbage", 0), ("FREQ=YEARLY;garbage", 12), ("RRULE:garbage", 6), ("DTSTART:20270101\nRRULE:garbage", 23)],
)
async def test_the_position_of_a_fault_is_that_in_the_rule_as_given(api: Api, rule: str, position: int) -> None:
    reply = await api.send("PUT", "/calendars/ours", {"holidays": [{"rrule": rule}]})
    assert f"(position {position})" in reply.json["detail"], reply.body


async def test_a_job_on_business_days(api: Api) -> None:
    unknown = await api.post("/jobs", a_definition(trigger=on_days()))
    assert (unknown.code, unknown.json["field"]) == ("invalid_trigger", "trigger.calendar")
    await put(api, "ours", YEAR)
    made = (await api.post("/jobs", a_definition("nightly", trigger=on_days("modified_preceding", offset=-1)))).json
    assert made["trigger"] == on_days("modified_preceding", offset=-1), "as its owner wrote it, without the days"
    assert "calendar ours" in made["words"]
    same = await api.send("PUT", "/jobs/nightly", a_definition("nightly", trigger=made["trigger"]))
    assert same.json["version"] == made["version"]
    asked = {"trigger": on_days(), "after": "2027-03-25T12:00:00Z", "count": 2}
    preview = (await api.post("/preview", asked)).json
    assert preview["fires"] == ["2027-03-29T07:00:00Z", "2027-03-30T07:00:00Z"]
    plain = {**on_days("preceding"), "calendar": None}
    asked = {"trigger": plain, "after": "2027-03-25T12:00:00Z", "count": 2}
    assert (await api.post("/preview", asked)).json["fires"] == [
        "2027-03-26T08:00:00Z",
        "2027-03-29T07:00:00Z",
    ]
    wrong: dict[str, Any]
    for wrong in ({"convention": "next"}, {"offset": 1.5}, {"offset": 400}, {"days": {}, "calendar": None}):
        refused = await api.post("/preview", {"trigger": {**on_days(), **wrong}})
        assert refused.code == "invalid_trigger", wrong


async def test_one_that_is_used_is_not_deleted(api: Api) -> None:
    await put(api, "ours", YEAR)
    for number in range(22):
        union = {"type": "any_of", "triggers": [on_days(), {"type": "interval", "every_seconds": 3600}]}
        await api.post("/jobs", a_definition(f"j{number:02}", trigger=union))
    refused = await api.send("DELETE", "/calendars/ours")
    assert refused.code == "calendar_in_use"
    assert refused.json["jobs"] == [f"j{number:02}" for number in range(20)]


async def test_a_change_is_compared_before_and_carried_to_its_jobs_after(api: Api) -> None:
    await put(api, "ours", YEAR)
    await put(api, "other", YEAR)
    before = (await api.post("/jobs", a_definition("nightly", trigger=on_days("skip")))).json
    aside = (await api.post("/jobs", a_definition("aside", trigger=on_days("skip", "other")))).json
    fire = (await api.get("/jobs/nightly/fires?count=3")).json["fires"][2]
    changed = {**YEAR, "holidays": [*YEAR["holidays"], fire[:10]]}
    told = (await api.send("PUT", "/calendars/ours?dry_run=true", changed)).json
    assert told["changes"] == [{"job": "nightly", "added": [], "removed": [fire], "moved": []}]
    assert (await api.get("/calendars/ours")).json["holidays"] == YEAR["holidays"], "nothing was written"
    await put(api, "ours", changed, 200)
    await carry(api)
    after = (await api.get("/jobs/nightly")).json
    assert fire not in (await api.get("/jobs/nightly/fires?count=5")).json["fires"]
    assert after["trigger"] == before["trigger"]
    assert (await api.get("/jobs/aside")).json["version"] == aside["version"], "not touched"
    version = after["version"]
    await carry(api)
    await put(api, "ours", changed, 200)
    assert (await api.get("/jobs/nightly")).json["version"] == version, "nothing is left to change"
    why = (await api.get(f"/jobs/nightly/explain?at={fire}")).json
    assert (why["fires"], why["disposition"]) == (False, "excluded")
    assert "calendar ours" in why["reason"]


async def test_a_move_is_told_as_a_move(api: Api) -> None:
    await put(api, "ours", YEAR)
    monthly = {**on_days("preceding"), "trigger": {**DAILY, "expression": "0 9 L * *"}}
    await api.post("/jobs", a_definition("close", trigger=monthly))
    (fire, *_) = (await api.get("/jobs/close/fires?count=1")).json["fires"]
    changed = {**YEAR, "holidays": [*YEAR["holidays"], fire[:10]]}
    (change,) = (await api.send("PUT", "/calendars/ours?dry_run=true", changed)).json["changes"]
    (moved,) = change["moved"]
    assert moved["from"] == fire
    assert moved["to"] < fire


async def test_the_overrides_that_a_change_drops_are_named(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    await put(api, "ours", YEAR)
    await api.post("/jobs", a_definition("nightly", trigger=on_days("skip")))
    first, second, third = (await api.get("/jobs/nightly/fires?count=3")).json["fires"]
    await api.post(f"/jobs/nightly/fires/{first}/skip")
    await api.post(f"/jobs/nightly/fires/{third}/skip")
    changed = {**YEAR, "holidays": [*YEAR["holidays"], second[:10]]}
    (told,) = (await api.send("PUT", "/calendars/ours?dry_run=true", changed)).json["changes"]
    assert (told["removed"], "overrides_dropped" in told) == ([second], False)
    changed = {**YEAR, "holidays": [*YEAR["holidays"], second[:10], third[:10]]}
    (told,) = (await api.send("PUT", "/calendars/ours?dry_run=true", changed)).json["changes"]
    assert (told["removed"], told["overrides_dropped"]) == ([second, third], [third])
    await put(api, "ours", changed, 200)
    await carry(api)
    (kept,) = (await api.get("/jobs/nightly/overrides")).json["items"]
    assert kept["fire_at"] == first
    said = [line.getMessage() for line in caplog.records if "is no fire time any more" in line.getMessage()]
    assert [third in line for line in said] == [True]


async def test_a_job_that_was_written_with_the_old_days_follows_too(api: Api) -> None:
    """It is stored after the first look at all jobs, by a node that had read the calendar before it changed."""
    await put(api, "ours", YEAR)
    await carry(api)
    await api.post("/jobs", a_definition("nightly", trigger=on_days("skip")))
    (late,) = await api.store.get_jobs(["nightly"])
    assert late is not None
    await api.send("DELETE", "/jobs/nightly")
    day = (await api.get("/calendars/ours/days")).json["items"]
    off = next(each["date"] for each in day[1:] if each["business_day"])
    await put(api, "ours", {**YEAR, "holidays": [off]}, 200)
    applier = applier_of(api)
    await applier.step(api.clock.now())
    assert await api.store.add_jobs([replace(late, id="late-id")]) == [True]
    for _ in range(60):
        api.clock.advance(1)
        await applier.step(api.clock.now())
    fires = (await api.get("/jobs/nightly/fires?count=20")).json["fires"]
    assert not any(fire.startswith(off) for fire in fires)


async def test_an_interval_on_business_days_keeps_its_anchor(api: Api) -> None:
    await put(api, "ours", {})
    rule = {"type": "business_day", "trigger": {"type": "interval", "every_seconds": 7 * 3600}, "calendar": "ours"}
    await api.post("/jobs", a_definition("nightly", trigger=rule))
    (before,) = await api.store.get_jobs(["nightly"])
    assert before is not None
    api.clock.advance(3600)
    await put(api, "ours", {"holidays": ["2030-01-01"]}, 200)
    await carry(api)
    (after,) = await api.store.get_jobs(["nightly"])
    assert after is not None
    assert (after.anchor_at, after.next_fire_at) == (before.anchor_at, before.next_fire_at)
    assert after.trigger != before.trigger


async def test_a_phrase_names_its_calendar(api: Api) -> None:
    phrase = {"type": "phrase", "text": "every business day at 9am on calendar ours", "timezone": "UTC"}
    asked = {"trigger": phrase, "after": "2026-12-31T12:00:00Z", "count": 2}
    refused = await api.send("POST", "/preview", asked)
    assert (refused.status, refused.json["field"]) == (422, "trigger.text"), refused.body
    assert (await api.send("PUT", "/jobs/spoken", a_definition("spoken", trigger=phrase))).status == 422
    await put(api, "ours", YEAR)
    shown = (await api.send("POST", "/preview", asked)).json
    assert shown["fires"] == ["2027-01-02T09:00:00Z", "2027-01-04T09:00:00Z"]
    assert shown["words"].endswith("on business days only (calendar ours)")
    made = await api.send("PUT", "/jobs/spoken", a_definition("spoken", trigger=phrase))
    assert made.status == 201, made.body
    assert made.json["trigger"] == phrase
    assert (await api.send("PUT", "/jobs/spoken", a_definition("spoken", trigger=phrase))).json["version"] == 1
    assert (await api.send("DELETE", "/calendars/ours")).json["jobs"] == ["spoken"]
    fire = (await api.get("/jobs/spoken/fires?count=3")).json["fires"][2]
    change = {**YEAR, "holidays": [*YEAR["holidays"], fire[:10]]}
    reply = await api.send("PUT", "/calendars/ours?dry_run=true", change)
    assert [(each["job"], each["removed"]) for each in reply.json["changes"]] == [("spoken", [fire])]
    await put(api, "ours", change, 200)
    await carry(api)
    assert fire not in (await api.get("/jobs/spoken/fires?count=5")).json["fires"]
    why = (await api.get(f"/jobs/spoken/explain?at={fire}")).json
    assert (why["disposition"], "calendar ours" in why["reason"]) == ("excluded", True), why


async def test_days_come_in_pages_for_who_asks_for_pages(api: Api) -> None:
    await put(api, "ours", YEAR)
    span = "/calendars/ours/days?since=2027-01-01&until=2027-01-05"
    whole = (await api.get(span)).json
    found, cursor = [], ""
    while cursor is not None:
        page = (await api.get(f"{span}&limit=2{cursor}")).json
        assert len(page["items"]) <= 2
        found += page["items"]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert (found, whole["next_cursor"]) == (whole["items"], None)
    wrong = await api.get(f"{span}&cursor=x")
    assert (wrong.status, wrong.json["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("rule", ["FREQ=DAILY", "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR", "FREQ=HOURLY"])
async def test_a_rule_of_too_many_holidays_is_refused_by_its_field(api: Api, rule: str) -> None:
    reply = await api.send("PUT", "/calendars/ours", {"holidays": ["2027-01-01", {"rrule": rule}]})
    assert (reply.status, reply.json["field"]) == (422, "holidays")
    assert "belongs in weekend" in reply.json["detail"]
