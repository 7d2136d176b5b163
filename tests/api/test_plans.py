"""Plans over the API: what a change would do, said before; applied as a whole, or refused where it is stale."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from horarium.api import plans as answering
from horarium.clock import DAY
from horarium.model import Plan as JobPlan
from horarium.model.plans import PLAN
from horarium.model.records import RecordFilter
from horarium.operations.looking.forecasting import Forecast
from horarium.operations.plans import applying, making
from horarium.operations.plans.fires import fire_differences
from horarium.operations.plans.shown import forecast_text
from horarium.ports import JobFilter
from horarium.testing.values import NOW, a_job
from horarium.triggers.budget import LIST_STEPS, limited

from .conftest import Api, a_definition

BERLIN = {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}


def daily(name: str, hour: int = 9, **fields: Any) -> dict[str, Any]:
    trigger = {"type": "cron", "expression": f"0 {hour} * * *", "timezone": "Europe/Berlin"}
    return a_definition(name, trigger=trigger, **fields)


async def plan(api: Api, *jobs: dict[str, Any], status: int = 201, **more: Any) -> dict[str, Any]:
    documents = {"jobs": list(jobs), **more.pop("documents", {})}
    reply = await api.post("/plans", {"documents": documents, **more})
    assert reply.status == status, reply.body
    shown: dict[str, Any] = reply.json
    return shown


def actions(made: dict[str, Any]) -> dict[str, str]:
    return {change["name"]: change["action"] for change in made["changes"]}


async def apply(api: Api, made: dict[str, Any], status: int = 200) -> Any:
    reply = await api.post(f"/plans/{made['id']}/apply", {})
    assert reply.status == status, reply.body
    return reply


async def test_a_plan_says_what_becomes_of_each_definition_and_writes_nothing(api: Api) -> None:
    for name in ("same", "other", "gone"):
        await api.post("/jobs", daily(name, labels={"team": "a"}))
    before = [job.version for job in (await api.store.list_jobs(JobFilter(), None, 10)).items]
    made = await plan(
        api,
        daily("same", labels={"team": "a"}),
        daily("other", 10, labels={"team": "a"}),
        daily("new", labels={"team": "a"}),
        {"name": "wrong", "trigger": {"type": "cron", "expression": "99 * * * *"}},
        prune={"labels": {"team": "a"}},
        horizon_seconds=3 * 86_400,
    )
    assert actions(made) == {
        "same": "unchanged", "other": "update", "new": "create", "wrong": "invalid", "gone": "delete",
    }  # fmt: skip
    shown = {change["name"]: change for change in made["changes"]}
    assert shown["other"]["fields"] == [{"field": "trigger.expression", "before": "0 9 * * *", "after": "0 10 * * *"}]
    assert all(field["field"] for field in shown["new"]["fields"]), "each has a name"
    assert "labels.team" in {field["field"] for field in shown["new"]["fields"]}
    assert shown["other"]["fires"] == {
        "added": ["2027-01-15T09:00:00Z"], "removed": ["2027-01-18T08:00:00Z"], "truncated": False,
        "moved": [{"from": f"2027-01-{day}T08:00:00Z", "to": f"2027-01-{day}T09:00:00Z"} for day in (16, 17)],
    }  # fmt: skip
    assert shown["gone"]["fires"]["removed"][0] == "2027-01-16T08:00:00Z"
    assert shown["wrong"]["problem"]["code"] == "invalid_job"
    assert [job.version for job in (await api.store.list_jobs(JobFilter(), None, 10)).items] == before
    refused = await apply(api, made, 422)
    assert "invalid" in refused.json["detail"]


async def test_each_change_has_its_fields_and_fire_times_be_there_none_or_some(api: Api) -> None:
    await api.post("/jobs", daily("same"))
    calendar = {"name": "office", "holidays": ["2027-01-01"]}
    made = await plan(api, daily("same"), daily("new"), {"name": "wrong"}, documents={"calendars": [calendar]})
    assert all({"fields", "fires"} <= change.keys() for change in made["changes"])
    none = {"added": [], "removed": [], "moved": [], "truncated": False}
    shown = {change["name"]: change for change in made["changes"]}
    assert (shown["same"]["fields"], shown["same"]["fires"], shown["office"]["fires"]) == ([], none, none)
    assert "" not in [field["field"] for field in shown["new"]["fields"] + shown["office"]["fields"]]


async def test_a_default_that_is_written_out_is_no_change(api: Api) -> None:
    target = {"type": "http", "url": "https://example.com/x"}
    await api.post("/jobs", daily("same", target=target))
    full = {**target, "method": "POST", "timeout_seconds": 30.0, "headers": {}, "params": {}}
    (change,) = (await plan(api, daily("same", target=full, title="New")))["changes"]
    assert [field["field"] for field in change["fields"]] == ["title"]


async def test_plans_are_listed_by_what_opens_nothing(api: Api) -> None:
    await api.post("/jobs", daily("same"))
    first = await plan(api, daily("same"), daily("a"))
    wrong = await plan(api, {"name": "wrong"})
    await apply(api, first)
    listed = (await api.get("/plans?limit=1")).json
    assert [(each["changes"], each["applied"]) for each in listed["items"]] == [({"invalid": 1}, False)]
    more = (await api.get(f"/plans?cursor={listed['next_cursor']}")).json
    assert [(each["changes"], each["applied"]) for each in more["items"]] == [({"unchanged": 1, "create": 1}, True)]
    for made, (each,) in ((wrong, listed["items"]), (first, more["items"])):
        assert made["id"].startswith(each["ref"] + "-")
        assert each["expires_at"] == made["expires_at"]
        assert (await api.post(f"/plans/{each['ref']}/apply", {})).status == 404
    assert more["next_cursor"] is None


async def test_a_plan_is_applied_once_and_a_repeated_call_changes_nothing(api: Api) -> None:
    await api.post("/jobs", daily("other", labels={"team": "a"}))
    await api.post("/jobs", daily("gone", labels={"team": "a"}))
    jobs = [daily("other", 10, labels={"team": "a"}), daily("new", labels={"team": "a"})]
    made = await plan(api, *jobs, prune={"labels": {"team": "a"}})
    assert (await apply(api, made)).json == {"applied": 3, "left": 0}
    assert (await apply(api, made)).json == {"applied": 0, "left": 0}
    assert set(actions(await plan(api, *jobs, prune={"labels": {"team": "a"}})).values()) == {"unchanged"}
    assert (await api.get("/jobs/gone")).status == 404
    assert (await api.get("/jobs/new/fires?count=1")).json["fires"] == ["2027-01-16T08:00:00Z"]


async def test_jobs_of_another_team_are_not_pruned(api: Api) -> None:
    await api.post("/jobs", daily("theirs", labels={"team": "b"}))
    made = await plan(api, daily("ours", labels={"team": "a"}), prune={"labels": {"team": "a"}})
    assert actions(made) == {"ours": "create"}


async def test_a_job_of_another_team_is_not_taken_over_beside_a_label_to_prune(api: Api) -> None:
    await api.post("/jobs", daily("theirs", labels={"team": "b"}))
    ours = [daily("theirs", 10, labels={"team": "a"}), daily("bare")]
    made = await plan(api, *ours, prune={"labels": {"team": "a"}})
    assert actions(made) == {"theirs": "invalid", "bare": "create"}
    assert "a job of team=b" in made["changes"][0]["problem"]["detail"]
    assert {"job": "bare", "text": "it has no label team=a, so --prune team=a will never delete it"} in made["warnings"]
    assert actions(await plan(api, *ours)) == {"theirs": "update", "bare": "create"}, "said openly, it may be"


async def test_another_name_is_told_from_another_job(api: Api) -> None:
    await api.post("/jobs", daily("nightly", labels={"team": "a"}))
    new = [daily("nightly-report", labels={"team": "a"}), daily("other", 10, labels={"team": "a"})]
    made = await plan(api, *new, prune={"labels": {"team": "a"}})
    said = {each["job"]: each["text"] for each in made["warnings"] if "which is deleted" in each["text"]}
    assert said.keys() == {"nightly-report"}
    assert "of nightly," in said["nightly-report"]


async def test_a_stale_plan_writes_nothing_and_says_what_changed(api: Api) -> None:
    await api.post("/jobs", daily("a"))
    await api.post("/jobs", daily("b"))
    made = await plan(api, daily("a", 10), daily("b", 10), daily("c"))
    await api.send("PATCH", "/jobs/b", {"priority": 5})
    refused = await apply(api, made, 409)
    assert (refused.code, refused.json["changed"]) == ("plan_stale", ["job b: was changed since"])
    assert (await api.get("/jobs/a")).json["trigger"]["expression"] == "0 9 * * *"
    assert (await api.get("/jobs/c")).status == 404


async def test_fire_times_that_pass_do_not_make_a_plan_stale(api: Api) -> None:
    await api.post("/jobs", a_definition("a", trigger={"type": "interval", "every_seconds": 60}))
    made = await plan(api, a_definition("a", trigger={"type": "interval", "every_seconds": 60}, priority=3))
    api.clock.advance(600)
    assert (await apply(api, made)).json["applied"] == 1
    job = (await api.get("/jobs/a")).json
    assert (job["priority"], job["fires_count"] > 0) == (3, True)


async def test_a_job_that_was_paused_since_stays_paused(api: Api) -> None:
    await api.post("/jobs", daily("a"))
    made = await plan(api, daily("a", 10))
    await api.post("/jobs/a/pause", {})
    assert (await apply(api, made)).json["applied"] == 1
    job = (await api.get("/jobs/a")).json
    assert (job["enabled"], job["trigger"]["expression"]) == (False, "0 10 * * *")


async def test_calendars_channels_and_jobs_that_use_them_come_in_one_plan(api: Api) -> None:
    trigger = {"type": "business_day", "trigger": BERLIN, "calendar": "ours", "convention": "following"}
    made = await plan(
        api,
        a_definition("pay", trigger=trigger, on={"failed": [{"notify": "ops"}]}),
        documents={
            "calendars": [{"name": "ours", "holidays": ["2027-01-18"], "ends_on": "2027-02-01"}],
            "channels": [{"name": "ops", "type": "webhook", "url": "https://example.org/hook?token=s3cret"}],
        },
    )
    assert actions(made) == {"ours": "create", "ops": "create", "pay": "create"}
    assert "s3cret" not in str(made)
    assert any("ends on 2027-02-01" in warning["text"] for warning in made["warnings"])
    assert not any("there is no channel" in warning["text"] for warning in made["warnings"])
    assert (await apply(api, made)).json["applied"] == 3
    assert (await api.get("/jobs/pay/fires?count=2")).json["fires"][0].startswith("2027-01-19")
    changed = await plan(api, documents={"calendars": [{"name": "ours", "holidays": []}]})
    assert changed["changes"][0]["jobs"][0]["job"] == "pay"


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ({"type": "cron", "expression": "30 2 * * *", "timezone": "Europe/Berlin"}, "2027-03-28"),
        ({"type": "cron", "expression": "0 9 29 2 *", "timezone": "UTC"}, "leap years: 2028-02-29, 2032-02-29"),
        ({"type": "cron", "expression": "0 9 * * *", "timezone": "UTC"}, "no worker has taken a run"),
    ],
)
async def test_a_plan_warns_of_what_people_overlook(api: Api, trigger: dict[str, Any], text: str) -> None:
    target = {"type": "queue", "queue": "nobody"}
    made = await plan(api, a_definition("a", trigger=trigger, target=target, on={"failed": [{"notify": "nowhere"}]}))
    assert any(text in warning["text"] for warning in made["warnings"]), made["warnings"]
    assert any("there is no channel 'nowhere'" in warning["text"] for warning in made["warnings"])


async def test_a_plan_warns_of_jobs_that_it_names_and_that_are_not_there(api: Api) -> None:
    await api.post("/jobs", daily("there"))
    joined = {"type": "after", "jobs": ["there", "beside", "extrakt-b"], "within": "day"}
    follows = {"failed": [{"trigger": "there"}, {"trigger": "pgae-someone"}]}
    made = await plan(api, daily("beside"), a_definition("load", trigger=joined, on=follows))
    warned = [(each["job"], each["text"]) for each in made["warnings"] if "there is no job" in each["text"]]
    assert warned == [("load", "there is no job 'extrakt-b', 'pgae-someone'; define it, or correct its name")]


async def test_a_herd_of_jobs_is_warned_of_and_the_peak_is_told(api: Api) -> None:
    await api.post("/jobs", daily("a"))
    made = await plan(api, *(daily(f"job-{n}") for n in range(50)))
    assert made["peak"] == {
        "before": {"at": "2027-01-16T08:00:00Z", "starts": 1}, "after": {"at": "2027-01-16T08:00:00Z", "starts": 51},
    }  # fmt: skip
    assert any(warning["job"] is None and "51 runs start" in warning["text"] for warning in made["warnings"])


async def test_what_fires_at_once_is_named(api: Api) -> None:
    soon = {"type": "once", "at": "2027-01-15T08:00:30Z"}
    assert (await plan(api, a_definition("soon", trigger=soon), daily("later")))["fires_at_once"] == ["soon"]


def test_of_a_change_only_the_fire_times_of_the_horizon_are_worked_out() -> None:
    """Thousands of jobs are compared in one plan."""
    before = a_job("daily", trigger={"type": "cron", "expression": "0 9 * * *"})
    after = replace(before, trigger={"type": "cron", "expression": "30 9 * * *"})
    with limited(LIST_STEPS) as budget:
        found = fire_differences(before, after, NOW, NOW + 14 * DAY)
    assert len(found.moved) == 14
    assert budget.spent < 3 * 14


async def test_of_many_editors_one_plan_is_applied(api: Api) -> None:
    await api.post("/jobs", daily("a"))
    plans = [await plan(api, daily("a", priority=n + 1)) for n in range(64)]
    replies = await asyncio.gather(*(api.post(f"/plans/{made['id']}/apply", {}) for made in plans))
    assert sorted(reply.status for reply in replies) == [200] + [409] * 63
    assert {reply.code for reply in replies if reply.status == 409} == {"plan_stale"}


async def test_more_changes_than_one_transaction_holds_go_on_with_each_call(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "BATCH_MAX", 3)
    made = await plan(api, *(daily(f"job-{n}") for n in range(8)))
    done = [(await apply(api, made)).json for _ in range(4)]
    assert [(each["applied"], each["left"]) for each in done] == [(3, 5), (3, 2), (2, 0), (0, 0)]


async def test_a_plan_that_expired_or_never_was_is_not_found(api: Api) -> None:
    made = await plan(api, daily("a"))
    api.clock.advance(8 * 86_400)
    assert (await apply(api, made, 404)).code == "not_found"
    assert (await api.post("/plans/none/apply", {})).status == 404


async def test_a_plan_is_deleted_when_its_time_is_over(api: Api) -> None:
    await plan(api, daily("a"))
    api.clock.advance(6 * 86_400)
    await plan(api, daily("a"))
    for days, left in ((0, 2), (2, 1), (6, 0)):
        api.clock.advance(days * 86_400)
        await api.operations.planned_changes.prune_expired(api.clock.now())
        assert len((await api.store.list_records(RecordFilter(PLAN), None, 10)).items) == left


async def test_a_race_with_the_planner_is_tried_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.post("/jobs", daily("a"))
    made = await plan(api, daily("a", 10))
    whole, races = api.store.write_whole, 0

    async def raced(writes: Any, steady: int) -> bool:
        nonlocal races
        races += 1
        if races == 1:
            (job,) = await api.store.get_jobs(["a"])
            assert job is not None
            await api.store.commit_plans([JobPlan(job)], NOW)
        return await whole(writes, steady)

    monkeypatch.setattr(api.store, "write_whole", raced)
    assert (await apply(api, made)).json["applied"] == 1
    assert races == 2


# ---- the forecast ---------------------------------------------------------------------------------------------------


async def test_a_forecast_counts_starts_by_queue_and_label(api: Api) -> None:
    await api.post("/jobs", daily("a", labels={"team": "x"}))
    await api.post("/jobs", daily("b", labels={"team": "y"}))
    await api.post("/jobs", a_definition("c", trigger={"type": "interval", "every_seconds": 600}))
    found = (await api.get("/forecast?until=2027-01-17T08:00:00Z&by=label:team")).json
    assert len(found["buckets"]) == 48
    assert found["buckets"][1]["starts"] == {"": 6}
    assert found["buckets"][24]["starts"] == {"": 6, "x": 1, "y": 1}
    assert found["peaks"][0]["at"] == "2027-01-16T08:00:00Z"
    assert (await api.get("/forecast?by=queue")).json["buckets"][24]["starts"] == {"pull/work": 8}


async def test_a_forecast_of_too_many_buckets_is_refused(api: Api) -> None:
    assert (await api.get("/forecast?bucket_seconds=1")).code == "invalid_request"
    assert (await api.get("/forecast?by=colour")).status == 422


async def test_running_follows_from_how_long_the_last_runs_took(api: Api) -> None:
    await api.post("/jobs", a_definition("c", trigger={"type": "interval", "every_seconds": 600}))
    run = (await api.post("/jobs/c/trigger", {})).json
    (claimed,) = await api.claim()
    api.clock.advance(300)
    await api.post(f"/runs/{run['id']}/complete", {"token": claimed["lease"]["token"]})
    found = (await api.get("/forecast?bucket_seconds=3600")).json
    assert found["buckets"][5]["running"] == {"pull/work": 0.5}
    await api.post("/jobs", a_definition("d", trigger={"type": "interval", "every_seconds": 600}))
    run = (await api.post("/jobs/d/trigger", {})).json
    (claimed,) = await api.claim()
    api.clock.advance(60)
    report = {"token": claimed["lease"]["token"], "error": "no", "retryable": False}
    await api.post(f"/runs/{run['id']}/fail", report)
    found = (await api.get("/forecast?bucket_seconds=3600")).json
    assert found["buckets"][5]["running"] == {"pull/work": 0.6}, "none was completed: as long as the failed ones"


async def test_a_long_forecast_is_put_into_words_beside_the_event_loop(api: Api, monkeypatch: Any) -> None:
    threads = set[str]()

    def shown(forecast: Forecast) -> list[bytes]:
        threads.add(threading.current_thread().name)
        return forecast_text(forecast)

    monkeypatch.setattr("horarium.api.plans.forecast_text", shown)
    week = "since=2027-01-01T00:00:00Z&until=2027-01-08T00:00:00Z&bucket_seconds=60"
    assert len((await api.get(f"/forecast?{week}")).json["buckets"]) == 10_080
    assert threads
    assert threading.main_thread().name not in threads


@pytest.mark.slow
async def test_a_long_forecast_takes_a_few_times_the_memory_of_its_answer(api: Api) -> None:
    every_minute = {"type": "interval", "every_seconds": 60}
    for number in range(100):
        await api.post("/jobs", a_definition(f"job-{number}", trigger=every_minute))
    run = (await api.post("/jobs/job-7/trigger", {})).json
    (claimed,) = await api.claim()
    api.clock.advance(90)
    await api.post(f"/runs/{run['id']}/complete", {"token": claimed["lease"]["token"]})
    asked = "/forecast?bucket_seconds=60&by=job&since=2027-01-16T00:00:00Z&until="
    await api.get(f"{asked}2027-01-16T01:00:00Z")  # what is loaded once
    tracemalloc.start()
    try:
        found = await api.get(f"{asked}2027-01-16T12:00:00Z")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    counts = [len(bucket[kind]) for bucket in found.json["buckets"] for kind in ("starts", "running")]
    assert counts == [100] * 2 * 720
    assert most < 4 * len(found.body), (most, len(found.body))


RULES: list[dict[str, Any]] = [
    {"type": "interval", "every_seconds": 300},
    {"type": "interval", "every_seconds": 300},
    {"type": "interval", "every_seconds": 3600},
    {"type": "interval", "every_seconds": 600, "from": "end"},
    {"type": "interval", "every_seconds": 7200, "anchor": "2020-01-01T00:00:01Z"},
    {"type": "phrase", "text": "every 5 minutes"},
    {"type": "phrase", "text": "in 20 minutes"},
    {"type": "phrase", "text": "every other tuesday at 09:01"},
    {"type": "cron", "expression": "H H * * *"},
    {"type": "rrule", "rrule": "DTSTART:20260101T073000Z\nRRULE:FREQ=DAILY;INTERVAL=3"},
    {"type": "except", "trigger": {"type": "interval", "every_seconds": 300}, "except": [BERLIN]},
    {"type": "between", "trigger": {"type": "interval", "every_seconds": 900}, "until": "2030-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("edited", [False, True], ids=["new", "edited"])
async def test_jobs_fire_when_their_plan_says(api: Api, edited: bool) -> None:
    """Applied at the instant of the plan. Intervals that count from their definition begin spread."""
    jobs = [a_definition(f"job-{place}", trigger=rule) for place, rule in enumerate(RULES)]
    if edited:
        for place, job in enumerate(jobs):
            await api.post("/jobs", job | {"trigger": RULES[place - 2]})
        api.clock.advance(100)
    made = await plan(api, *jobs)
    assert [change for change in made["changes"] if change["action"] not in ("create", "update")] == []
    await apply(api, made)
    for change in made["changes"]:
        next_fire_at = (await api.get(f"/jobs/{change['name']}")).json["next_fire_at"]
        said = [*change["fires"]["added"], *(move["to"] for move in change["fires"]["moved"])]
        assert said, change
        assert min(said) == next_fire_at, change


async def test_a_plan_drops_what_was_moved_of_a_rule_that_goes(api: Api) -> None:
    """As the edit will: the fire time that a person moved is none of the new rule."""
    await api.post("/jobs", daily("moved"))
    moved_to = "2027-01-16T12:34:00Z"
    reply = await api.post("/jobs/moved/fires/2027-01-16T08:00:00Z/move", {"to": moved_to})
    assert reply.status < 300, reply.body
    made = await plan(api, daily("moved", 10), horizon_seconds=3 * 86_400)
    fires = made["changes"][0]["fires"]
    assert moved_to in [*fires["removed"], *(move["from"] for move in fires["moved"])]
    lost = f"its fire time of 2027-01-16T08:00:00Z, moved by hand to {moved_to}, is none of the new rule: that is lost"
    assert {"job": "moved", "text": lost} in made["warnings"]
    assert not [each for each in (await plan(api, daily("moved", priority=3)))["warnings"] if "by hand" in each["text"]]
    await apply(api, made)
    assert (await api.get("/jobs/moved/overrides")).json["items"] == []


async def test_a_large_plan_is_spread_and_written_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*given)

        return noted

    for module, name in ((making, "begun_together"), (answering, "plan_shown")):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    assert actions(await plan(api, daily("a"))) == {"a": "create"}
    assert threads.keys() == {"begun_together", "plan_shown"}
    assert threading.get_ident() not in threads.values()
