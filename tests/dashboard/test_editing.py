"""Two people who change one job: neither undoes the other unseen."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from horarium.dashboard.views.edit import merged
from tests.api.conftest import Api
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


@pytest.fixture
def api() -> Api:
    return Api(pages=True)


def fields_of(page: str) -> dict[str, Any]:
    """The fields of the form, as a browser sends them: those of one line without line breaks."""
    found = re.findall(r'<input id="[^"]*" name="([^"]+)" type="text" value="([^"]*)"', page)
    inputs = [(name, value.replace("\n", "")) for name, value in found]
    chosen = re.findall(r'<input type="radio" name="([^"]+)" value="([^"]*)" checked', page)
    areas = re.findall(r'<textarea id="[^"]*" name="([^"]+)"[^>]*>([^<]*)</textarea>', page)
    hidden = re.findall(r'<input type="hidden" name="(was|editing)" value="([^"]*)"', page)
    picked = re.findall(r'<select id="[^"]*" name="([^"]+)">.*?<option value="([^"]*)" selected', page)
    return {name: unescape(value) for name, value in (*inputs, *chosen, *areas, *hidden, *picked)}


async def test_changes_of_different_fields_are_both_kept(api: Api) -> None:
    await api.add_job("qq")
    first, second = Visitor(api), Visitor(api)
    await first.open("/jobs/qq/edit")
    await second.open("/jobs/qq/edit")
    mine, theirs = fields_of(first.page), fields_of(second.page)
    assert (await second.post("/jobs/qq/edit", **{**theirs, "labels": "team=second"})).status == 303
    assert (await first.post("/jobs/qq/edit", **{**mine, "attempts": "7"})).status == 303
    job: Any = (await api.get("/jobs/qq")).json
    assert job["labels"] == {"team": "second"}
    assert job["retry"]["attempts_max"] == 7


RULE_OF_LINES = "\n".join((
    "DTSTART;TZID=Europe/Berlin:20270101T020000", "RRULE:FREQ=WEEKLY;BYDAY=MO",
    "EXDATE;TZID=Europe/Berlin:20270104T020000",
))  # fmt: skip
AFTER = {"type": "after", "jobs": ["a", "b"]}


@pytest.mark.parametrize(
    "trigger",
    [
        {**AFTER, "outcome": "finished", "within": "month", "timezone": "Asia/Tokyo", "deadline_seconds": 82_800},
        {**AFTER, "outcome": "completed", "within": {"seconds": 5_400}},
        {**AFTER, "outcome": "completed", "within": {"seconds": 1_234_567}, "deadline_seconds": 1_234_567.5},
        {"type": "interval", "every_seconds": 1_234_567.5},
        {"type": "rrule", "rrule": RULE_OF_LINES},
    ],
)
async def test_an_edit_of_something_else_leaves_the_rule_as_it_is(api: Api, trigger: dict[str, Any]) -> None:
    await api.add_job("qq", trigger=trigger, timeouts={"execution_seconds": 1_234_567})
    before: Any = (await api.get("/jobs/qq")).json
    visitor = Visitor(api)
    await visitor.open("/jobs/qq/edit")
    assert (await visitor.post("/jobs/qq/edit", **{**fields_of(visitor.page), "labels": "a=b"})).status == 303
    after: Any = (await api.get("/jobs/qq")).json
    assert (after["trigger"], after["timeouts"]) == (before["trigger"], before["timeouts"])
    assert after["labels"] == {"a": "b"}


@pytest.mark.parametrize("payload", [{}, [], 0, False, "", None])
async def test_an_edit_of_something_else_leaves_the_payload_as_it_is(api: Api, payload: Any) -> None:
    await api.add_job("qq", target={"type": "queue", "queue": "q", "payload": payload})
    visitor = Visitor(api)
    await visitor.open("/jobs/qq/edit")
    assert (await visitor.post("/jobs/qq/edit", **{**fields_of(visitor.page), "labels": "a=b"})).status == 303
    after: Any = (await api.get("/jobs/qq")).json
    assert (after["target"]["payload"], after["labels"]) == (payload, {"a": "b"})


@pytest.mark.parametrize(
    "target",
    [
        {"type": "http", "url": "https://example.com/?token=s3cr3t", "headers": {"Authorization": "Bearer s3cr3t"}},
        {"type": "http", "url": "https://example.com/", "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        {"type": "command", "command": ["true"], "queue": "q", "env": {"API_TOKEN": "s3cr3t"}},
    ],
)
async def test_an_edit_of_something_else_keeps_the_secrets_behind_the_masks(api: Api, target: dict[str, Any]) -> None:
    await api.add_job("qq", target=target)
    (before,) = await api.store.get_jobs(["qq"])
    visitor = Visitor(api)
    await visitor.open("/jobs/qq/edit")
    assert "********" in visitor.page
    assert "s3cr3t" not in visitor.page
    form = {**fields_of(visitor.page), "labels": "a=b"}
    assert "masked" not in (await visitor.post("/preview-job", **form)).body.decode()
    await visitor.open("/jobs/qq/edit")
    saved = await visitor.post("/jobs/qq/edit", **form)
    assert saved.status == 303, re.findall("masked[^<]*", saved.body.decode())
    (after,) = await api.store.get_jobs(["qq"])
    assert before is not None
    assert after is not None
    assert (after.target, after.labels) == (before.target, {"a": "b"})


@pytest.mark.parametrize(
    ("field", "wrong", "place", "said"),
    [
        ("attempts", "0", "attempts", "at least 1"),
        ("time_limit", "1e20", "time_limit", "at most 316,224,000"),
        ("title", "x" * 201, "title", "at most 200 characters"),
        ("lease", "0", "lease", "0.0: expected a number of seconds from 0.05 to 315619200 (3653 days)"),
        ("rule", "never", "rule", "1 field: expected 5"),
        ("more", '{"fires_max": 0}', "more", "fires_max: expected int &gt;= 1"),
    ],
)
async def test_a_fault_is_said_without_names_of_the_api_but_in_the_json(
    api: Api, field: str, wrong: str, place: str, said: str
) -> None:
    visitor = Visitor(api)
    await visitor.open("/new-job")
    form = {**fields_of(visitor.page), "name": "n", "queue": "q", "kind": "cron", "rule": "0 8 * * *", "more": ""}
    assert (await visitor.post("/new-job", **{**form, field: wrong})).status == 422
    assert f"<span>{said}" in visitor.page.partition(f'id="{place}-error"')[2][:200], visitor.text


async def test_a_job_that_follows_from_others_is_made_by_the_form(api: Api) -> None:
    visitor = Visitor(api)
    await visitor.open("/new-job")
    form = {**fields_of(visitor.page), "name": "report", "queue": "q", "kind": "after", "rule": "a, b",
            "timezone": "Europe/Berlin", "within": "week", "deadline": "23h"}  # fmt: skip
    for field, wrong, said in (("within", "year", "expected hour, day, week, month"), ("within", "5x", "5x"),
                               ("rule", "a, a", "here twice"), ("deadline", "soon", "soon"),
                               ("rule", "", "not an empty one"), ("timezone", "Berlin", "Berlin"),
                               ("rule", "report", "report")):  # fmt: skip
        assert (await visitor.post("/new-job", **{**form, field: wrong})).status == 422, (field, wrong)
        assert re.search(rf'id="{field}-error".*?{re.escape(said)}', visitor.page), (field, wrong, visitor.text)
    await visitor.post("/preview-job", **form)
    assert "Once every week, after a and b have completed in it" in visitor.text
    assert "It fires as these jobs run: nothing is known ahead." in visitor.text
    assert "--after a,b" in visitor.text
    await visitor.open("/new-job")
    assert (await visitor.post("/new-job", **form)).status == 303
    made: Any = (await api.get("/jobs/report")).json
    wanted = {**AFTER, "outcome": "completed", "within": "week", "timezone": "Europe/Berlin", "deadline_seconds": 82800}
    assert made["trigger"] == wanted
    await visitor.open("/jobs/report")
    assert "It fires no more" not in visitor.text
    assert not re.search(r"\d{4}-\d\d-\d\dT\d", visitor.text.partition("Next")[2].partition("Why")[0]), (
        "times of its zone"
    )


async def test_a_field_that_both_changed_is_shown_and_not_written(api: Api) -> None:
    await api.add_job("qq", labels={"team": "old"})
    first, second = Visitor(api), Visitor(api)
    await first.open("/jobs/qq/edit")
    await second.open("/jobs/qq/edit")
    mine, theirs = fields_of(first.page), fields_of(second.page)
    await second.post("/jobs/qq/edit", **{**theirs, "labels": "team=second"})
    reply = await first.post("/jobs/qq/edit", **{**mine, "labels": "team=first"})
    assert reply.status == 422
    assert "Another person changed this job meanwhile" in first.text
    assert "It was \u201cteam=old\u201d when you began, and is \u201cteam=second\u201d now." in first.text
    again = fields_of(first.page)
    assert again["labels"] == "team=first", "typed text stays"
    assert (await first.post("/jobs/qq/edit", **again)).status == 303, "seen and saved again, it is meant"
    job: Any = (await api.get("/jobs/qq")).json
    assert job["labels"] == {"team": "first"}


def test_a_merge_takes_each_field_from_who_changed_it() -> None:
    was = {"a": "1", "b": "1", "c": "1", "d": "x\ny"}
    theirs = {"a": "2", "b": "1", "c": "2", "d": "x\ny"}
    mine = {"a": "1", "b": "3", "c": "2", "d": "x\r\ny"}
    form, clashes = merged(was, theirs, mine)
    assert form == {"a": "2", "b": "3", "c": "2", "d": "x\ny"}
    assert clashes == []
    _, clashes = merged(was, {**theirs, "b": "9"}, mine)
    assert [(clash.field, clash.theirs) for clash in clashes] == [("b", "9")]


async def test_an_empty_form_is_answered_in_words_for_people(api: Api) -> None:
    visitor = Visitor(api)
    await visitor.open("/new-job")
    await visitor.post("/new-job", rule="every day at 9am", target="queue", kind="phrase")
    assert "This is needed." in visitor.text
    assert "expected str" not in visitor.text
    await visitor.post("/preview-job", rule="tusday at", target="queue", kind="phrase", csrf=visitor.csrf)


async def test_the_form_makes_the_whole_of_a_job(api: Api) -> None:
    await api.add_job("check")
    visitor = Visitor(api)
    await visitor.open("/new-job")
    on = '"on": {"failed": [{"trigger": "check"}]}'
    more = f'{{"priority": 5, "jitter_seconds": 10, "timeouts": {{"start_seconds": 60}}, {on}}}'
    made = {"name": "whole", "title": "All of it", "rule": "every day at 9am", "queue": "q", "time_limit": "30"}
    assert (await visitor.post("/new-job", more=more, **made)).status == 303, visitor.text
    job: Any = (await api.get("/jobs/whole")).json
    assert (job["title"], job["priority"], job["jitter_seconds"]) == ("All of it", 5, 10)
    assert job["timeouts"]["start_seconds"] == 60
    assert job["timeouts"]["execution_seconds"] == 30
    assert job["on"]["failed"][0]["trigger"] == "check"
    await visitor.open("/jobs/whole/edit")
    kept = fields_of(visitor.page)
    assert (kept["priority"], kept["jitter"], kept["start_by"], kept["lease"]) == ("5", "10", "1m", "")
    assert (kept["then_run"], "trigger" in kept["more"]) == ("", True), "after a failure: for the JSON"
    fields = {"priority": "", "jitter": "2m", "tell": "ops, on-call", "then_run": "check", "lease": "90"}
    await api.send("PUT", "/channels/ops", b'{"type": "webhook", "url": "https://example.org/a"}')
    await api.send("PUT", "/channels/on-call", b'{"type": "webhook", "url": "https://example.org/b"}')
    assert (await visitor.post("/jobs/whole/edit", **{**kept, **fields, "more": '{"priority": 7}'})).status == 303
    job = (await api.get("/jobs/whole")).json
    assert (job["priority"], job["jitter_seconds"], job["timeouts"]["execution_seconds"]) == (7, 120, 30)
    assert (job["timeouts"]["start_seconds"], job["timeouts"]["heartbeat_seconds"]) == (60, 90)
    assert [one["notify"] for one in job["on"]["failed"]] == ["ops", "on-call"]
    assert [one["trigger"] for one in job["on"]["completed"]] == ["check"]
    await visitor.open("/jobs/whole/edit")
    again = fields_of(visitor.page)
    assert {name: again[name] for name in fields} == {**fields, "priority": "7", "lease": "90"}
    assert again["more"] == ""
    for field, wrong in (("priority", "high"), ("jitter", "soon"), ("lease", "10d")):
        assert (await visitor.post("/jobs/whole/edit", **{**again, field: wrong})).status == 422, field
        assert f'id="{field}-error"' in visitor.page
    reply = await visitor.post("/jobs/whole/edit", **{**again, "more": '{"priority": 8}'})
    assert reply.status == 422
    assert "Stands here and in the JSON below" in visitor.text
    reply = await visitor.post("/jobs/whole/edit", **{**kept, "more": '{"priority": "much"}'})
    assert reply.status == 422
    assert "priority" in visitor.text


async def test_an_interval_that_can_not_be_read_is_told_as_it_was_typed(api: Api) -> None:
    visitor = Visitor(api)
    await visitor.open("/new-job")
    await visitor.post("/preview-job", rule="1 fortnight", kind="interval", target="queue", csrf=visitor.csrf)
    assert "1 fortnight" in visitor.text
    assert "0.0" not in visitor.text
