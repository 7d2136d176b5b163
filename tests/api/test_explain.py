"""Why a job ran or did not, over the API: with its runs, its history, and page by page."""

from __future__ import annotations

import msgspec

from horarium.clock import DAY, SECOND, to_text
from horarium.model import Disposition, Follow, Occasion, State
from horarium.model.records import Record, RecordChange
from horarium.operations.jobs.versions import Version
from horarium.testing.values import NOW, a_job, a_run
from horarium.wire.definitions import definition_of

from .conftest import Api

DAILY = {"type": "cron", "expression": "0 8 * * *", "timezone": "UTC"}


def url(name: str = "job", **query: int | str) -> str:
    given = {
        key: to_text(value) if isinstance(value, int) and key != "limit" else value for key, value in query.items()
    }
    return f"/jobs/{name}/explain?" + "&".join(f"{key}={value}" for key, value in given.items())


async def test_an_instant_is_explained_by_its_run_or_by_the_rule(api: Api) -> None:
    job = a_job(trigger=DAILY, created_at=NOW - 9 * DAY, planned_until=NOW)
    run = a_run(1, job)
    await api.store.add_jobs([job])
    await api.store.add_runs([run])
    told = (await api.get(url(at=run.fire_at))).json
    assert (told["fires"], told["run"]["id"]) == (True, run.id)
    told = (await api.get(url(at=NOW + DAY))).json
    assert told == {
        "at": to_text(NOW + DAY), "fires": True, "reason": "the rule fires then: it will run", "previous": to_text(NOW),
        "next": to_text(NOW + 2 * DAY),
    }  # fmt: skip
    assert (await api.get("/jobs/job/explain")).json["at"] == to_text(NOW)
    assert (await api.get("/jobs/none/explain")).code == "not_found"
    assert (await api.get(url(since=NOW))).code == "invalid_request"
    assert (await api.get(url(at="1066-10-14T09:00:00Z"))).status == 422


async def test_it_tells_of_a_job_that_is_to_follow_and_is_not_there(api: Api) -> None:
    follows = {
        Occasion.COMPLETED: (Follow(trigger="report"), Follow(notify="ops")),
        Occasion.FAILED: (Follow(trigger="repair"),),
    }
    job = a_job(trigger=DAILY, created_at=NOW - 9 * DAY, planned_until=NOW, on=follows)
    await api.store.add_jobs([job, a_job("report", id="report"), a_job("repair", id="repair")])
    asked = url(at=NOW + DAY)
    assert (await api.get(asked)).json["reason"] == "the rule fires then: it will run"
    await api.send("DELETE", "/jobs/report")
    said = "the rule fires then: it will run; to follow from its runs, there is no job 'report'"
    assert (await api.get(asked)).json["reason"] == said


async def test_a_skipped_run_explains_all_that_it_covers(api: Api) -> None:
    job = a_job(trigger=DAILY, created_at=NOW - 9 * DAY, planned_until=NOW)
    skipped = a_run(
        1, job, fire_at=NOW - 5 * DAY, state=State.SKIPPED, disposition=Disposition.MISSED, fires=3,
        last_fire_at=NOW - 3 * DAY, finished_at=NOW, error="catch_up: latest",
    )  # fmt: skip
    await api.store.add_jobs([job])
    await api.store.add_runs([skipped])
    for day in (5, 4, 3):
        told = (await api.get(url(at=NOW - day * DAY))).json
        assert (told["fires"], told["disposition"], told["run"]["id"]) == (False, "missed", skipped.id)
    assert "disposition" not in (await api.get(url(at=NOW - 2 * DAY))).json


async def test_a_span_is_explained_fire_time_by_fire_time(api: Api) -> None:
    rule = {"type": "except", "trigger": DAILY, "except": [{"dates": ["2027-01-18"]}]}
    await api.store.add_jobs([a_job(trigger=rule)])
    first = (await api.get(url(since=NOW + 1, until=NOW + 5 * DAY, limit=3))).json
    assert [item.get("disposition") for item in first["items"]] == [None, None, "excluded"]
    rest = (await api.get(url(since=NOW + 1, until=NOW + 5 * DAY, limit=3, cursor=first["next_cursor"]))).json
    assert ([item["fires"] for item in rest["items"]], rest["next_cursor"]) == ([True], None)
    assert (await api.get(url(since=NOW, until=NOW))).json == {"items": [], "next_cursor": None}
    for of in (url(since=NOW, until=NOW + DAY, cursor=""), url(at=NOW, cursor=""), url(cursor="")):
        assert (await api.get(of)).code == "invalid_cursor", of


async def test_the_past_is_judged_by_the_job_as_it_was(api: Api) -> None:
    before = a_job(trigger={**DAILY, "expression": "0 7 * * *"}, created_at=NOW - 9 * DAY)
    job = a_job(trigger=DAILY, created_at=NOW - 9 * DAY, updated_at=NOW - DAY, planned_until=NOW)
    await api.store.add_jobs([job])
    at = NOW - 3 * DAY
    told = (await api.get(url(at=at))).json
    assert "what it was before is not kept" in told["reason"]
    version = Version(version=1, number=1, at=NOW - 9 * DAY, definition=definition_of(before))
    record = Record(name=f"version/{job.id}/0000000001", body=msgspec.json.encode(version))
    await api.store.put_records([RecordChange(record)])
    told = (await api.get(url(at=at))).json
    assert told["reason"].startswith("not at 08:00:00: around it, on that day, it fires at 07:00")


async def test_a_span_over_changes_has_the_fire_times_of_each_rule_in_its_time(api: Api) -> None:
    await api.add_job("job", trigger={"type": "interval", "every_seconds": 60})
    api.clock.advance(150)
    await api.send("PATCH", "/jobs/job", {"labels": {"team": "a"}})
    api.clock.advance(160)
    await api.send("PATCH", "/jobs/job", {"trigger": {"type": "interval", "every_seconds": 100}})
    api.clock.advance(150)
    await api.send("PATCH", "/jobs/job", {"labels": {"team": "b"}})
    minutes, hundreds = (60, 120, 180, 240, 300), (410, 510, 610)
    for since in (0, 170, 250, 320, 470):
        told = (await api.get(url(since=NOW + since * SECOND, until=NOW + 611 * SECOND))).json["items"]
        wanted = [to_text(NOW + at * SECOND) for at in (*minutes, *hundreds) if at >= since]
        assert [each["at"] for each in told] == wanted, since
        assert not [each["reason"] for each in told if each["reason"].startswith("not at")]
    first = (await api.get(url(since=NOW, until=NOW + 611 * SECOND, limit=6))).json
    rest = await api.get(url(since=NOW, until=NOW + 611 * SECOND) + f"&cursor={first['next_cursor']}")
    assert len(first["items"]) == 6
    assert [each["at"] for each in rest.json["items"]] == [to_text(NOW + at * SECOND) for at in (510, 610)]
