"""Jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Api, a_definition


async def test_a_new_job_is_created_and_located(api: Api) -> None:
    reply = await api.post("/jobs", a_definition("nightly"))
    assert reply.status == 201
    assert reply.headers["location"] == "/api/v1/jobs/nightly"
    assert reply.json["next_fire_at"] == "2027-01-15T08:01:00Z"
    assert (await api.get("/jobs/nightly")).json == reply.json


async def test_a_job_tells_how_its_runs_have_ended(api: Api) -> None:
    await api.add_job("nightly")
    ids = []
    for error in ("first", "second"):
        api.clock.advance(60)
        await api.post("/jobs/nightly/trigger")
        (run,) = await api.claim()
        ids.append(run["id"])
        body = {"token": run["lease"]["token"], "error": error, "retryable": False}
        await api.post(f"/runs/{run['id']}/fail", body)
    shown = (await api.get("/jobs/nightly")).json
    last = {"id": ids[1], "state": "failed", "finished_at": "2027-01-15T08:02:00Z", "error": "second"}
    assert (shown["last_run"], shown["last_success_at"]) == (last, None)
    assert (shown["failures_in_a_row"], shown["failing_since"]) == (2, "2027-01-15T08:01:00Z")
    assert (await api.get("/jobs")).json["items"] == [shown]
    paused = (await api.post("/jobs/nightly/pause")).json
    assert paused["failures_in_a_row"] == 2
    assert (await api.send("PUT", "/jobs/nightly", shown)).status == 200, "what GET gave can be put back"


async def test_defaults_are_spelt_out(api: Api) -> None:
    job = await api.add_job()
    assert job["retry"]["attempts_max"] == 3
    assert job["catch_up"] == {"policy": "latest", "window_seconds": None}
    assert job["timeouts"]["heartbeat_seconds"] == 30


async def test_a_taken_name_is_a_conflict(api: Api) -> None:
    await api.add_job()
    reply = await api.post("/jobs", a_definition())
    assert (reply.status, reply.code, reply.json["field"]) == (409, "already_exists", "name")


async def test_creating_again_with_an_idempotency_key_gives_the_same_job(api: Api) -> None:
    headers = {"idempotency-key": "abc"}
    first = await api.post("/jobs", a_definition(), headers=headers)
    api.clock.advance(5)
    again = await api.post("/jobs", a_definition(), headers=headers)
    assert (first.status, again.status) == (201, 200)
    assert again.json == first.json


async def test_a_job_of_one_instant_is_created_again_with_its_key_after_that_instant(api: Api) -> None:
    headers = {"idempotency-key": "abc"}
    once = a_definition(trigger={"type": "once", "at": "2027-01-15T08:00:10Z"})
    first = await api.post("/jobs", once, headers=headers)
    assert first.status == 201
    api.clock.advance(60)
    again = await api.post("/jobs", once, headers=headers)
    assert (again.status, again.json) == (200, first.json)
    assert (await api.post("/jobs", {**once, "priority": 1}, headers=headers)).status == 422
    assert (await api.post("/jobs", once)).status == 422
    assert (await api.post("/jobs", {**once, "name": "other"}, headers=headers)).status == 422


async def test_an_idempotency_key_does_not_excuse_other_content(api: Api) -> None:
    await api.add_job()
    reply = await api.post("/jobs", a_definition(priority=5), headers={"idempotency-key": "abc"})
    assert reply.code == "already_exists"


async def test_an_idempotency_key_must_be_plain(api: Api) -> None:
    reply = await api.post("/jobs", a_definition(), headers={"idempotency-key": "a b"})
    assert (reply.code, reply.json["field"]) == ("invalid_request", "Idempotency-Key")
    assert (await api.get("/jobs/job")).status == 404


async def test_an_unknown_job_is_not_found(api: Api) -> None:
    for method, path in [
        ("GET", "/jobs/nope"), ("DELETE", "/jobs/nope"), ("POST", "/jobs/nope/pause"), ("POST", "/jobs/nope/resume"),
        ("POST", "/jobs/nope/trigger"), ("GET", "/jobs/nope/fires"),
    ]:  # fmt: skip
        assert (await api.send(method, path)).code == "not_found", path
    assert (await api.send("PATCH", "/jobs/nope", {"priority": 1})).code == "not_found"


@pytest.mark.parametrize("name", ["%00", "a%00b", "%ff", "%F0%9F%92%A9", "a%20b", "-a", "a" * 201, "a%0a", "%ED%A0%80"])
async def test_odd_names_in_the_path_are_not_found(refusing: Api, name: str) -> None:
    assert (await refusing.get(f"/jobs/{name}")).status == 404
    assert (await refusing.get(f"/runs/{name}")).status == 404
    assert (await refusing.send("DELETE", f"/jobs/{name}")).status in (404, 405)


async def test_put_creates_then_replaces(api: Api) -> None:
    created = await api.send("PUT", "/jobs/job", a_definition())
    assert (created.status, created.headers["location"]) == (201, "/api/v1/jobs/job")
    replaced = await api.send("PUT", "/jobs/job", a_definition(priority=3))
    assert (replaced.status, replaced.json["priority"]) == (200, 3)


async def test_putting_the_same_content_changes_nothing(api: Api) -> None:
    job = await api.add_job()
    api.clock.advance(30)
    reply = await api.send("PUT", "/jobs/job", a_definition())
    assert (reply.status, reply.json) == (200, job)


async def test_what_get_gave_can_be_put_back(api: Api) -> None:
    job = await api.add_job(
        concurrency={"key": "k"}, starts_at="2027-01-16T00:00:00Z",
        target={"type": "http", "url": "https://example.org", "signing_secret": "whsec_c2VjcmV0c2VjcmV0"},
    )  # fmt: skip
    reply = await api.send("PUT", "/jobs/job", job)
    assert (reply.status, reply.json) == (200, job)


async def test_the_name_may_be_left_out_of_a_put_but_not_differ(api: Api) -> None:
    body = a_definition()
    del body["name"]
    assert (await api.send("PUT", "/jobs/job", body)).json["name"] == "job"
    reply = await api.send("PUT", "/jobs/job", a_definition("other"))
    assert (reply.status, reply.json["field"]) == (422, "name")


async def test_an_impossible_name_in_a_put_is_invalid(api: Api) -> None:
    reply = await api.send("PUT", "/jobs/-x", a_definition("-x"))
    assert (reply.status, reply.code) == (422, "invalid_job")


@pytest.mark.parametrize("name", ["job\n", "", "-x", "a b", "a/b", "ä", "a" * 201])
async def test_a_job_can_not_have_an_odd_name(refusing: Api, name: str) -> None:
    reply = await refusing.post("/jobs", a_definition(name))
    assert (reply.status, reply.json["field"]) == (422, "name")


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/merge-patch+json", "application/json; charset=utf-8"]
)
async def test_a_patch_merges(api: Api, media_type: str) -> None:
    await api.add_job(labels={"a": "1", "b": "2"}, retry={"attempts_max": 7})
    patch = {"labels": {"a": None, "c": "3"}, "retry": {"backoff_seconds": 1}, "priority": 4}
    reply = await api.send("PATCH", "/jobs/job", patch, headers={"content-type": media_type})
    assert reply.status == 200
    assert reply.json["labels"] == {"b": "2", "c": "3"}
    assert reply.json["retry"]["attempts_max"] == 7
    assert reply.json["priority"] == 4


async def test_null_in_a_patch_takes_a_field_back_to_its_default(api: Api) -> None:
    await api.add_job(priority=9)
    assert (await api.send("PATCH", "/jobs/job", {"priority": None})).json["priority"] == 0


async def test_a_patch_can_not_rename(api: Api) -> None:
    await api.add_job()
    reply = await api.send("PATCH", "/jobs/job", {"name": "other"})
    assert (reply.code, reply.json["field"]) == ("invalid_job", "name")


async def test_a_patch_with_an_unknown_field_names_the_nearest(api: Api) -> None:
    await api.add_job()
    reply = await api.send("PATCH", "/jobs/job", {"priorty": 1})
    assert reply.code == "invalid_job"
    assert "did you mean 'priority'?" in reply.json["detail"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_fields_that_are_ours_can_not_be_set(api: Api, method: str) -> None:
    ours = {"id": "mine", "version": 99, "next_fire_at": "2030-01-01T00:00:00Z", "fires_count": 5, "words": "x"}
    path = "/jobs" if method == "POST" else "/jobs/job"
    if method == "PATCH":
        await api.add_job()
    reply = await api.send(method, path, {**a_definition(), **ours})
    assert reply.status in (200, 201)
    assert (reply.json["next_fire_at"], reply.json["fires_count"]) == ("2027-01-15T08:01:00Z", 0)
    assert reply.json["id"] != "mine"


@pytest.mark.parametrize("field", ["planned_until", "anchor_at", "deleted_at", "lease", "nxt_fire_at"])
async def test_inner_fields_are_unknown(refusing: Api, field: str) -> None:
    reply = await refusing.post("/jobs", {**a_definition(), field: 1})
    assert (reply.code, reply.json["field"]) == ("invalid_job", field)


async def test_every_fault_of_a_job_is_listed(api: Api) -> None:
    reply = await api.post(
        "/jobs",
        {"nam": "x", "trigger": 1, "target": {"type": "quue"}, "retry": {"attempt_max": 3, "backoff_seconds": -1}},
    )
    faults = {fault["field"]: fault["message"] for fault in reply.json["errors"]}
    assert reply.code == "invalid_job"
    assert set(faults) == {"nam", "name", "trigger", "target.type", "retry.attempt_max", "retry.backoff_seconds"}
    assert "did you mean 'attempts_max'?" in faults["retry.attempt_max"]
    assert "did you mean 'queue'?" in faults["target.type"]
    assert "expected object" in faults["trigger"]


async def test_a_trigger_in_words_is_answered_by_its_form(api: Api) -> None:
    reply = await api.post("/jobs", a_definition(trigger="every day at 9am"))
    assert '{"type": "phrase", "text": "every day at 9am"}' in reply.json["detail"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"enabled": "yes"}, "enabled"),
        ({"priority": "1"}, "priority"),
        ({"priority": 1001}, "priority"),
        ({"jitter_seconds": -1}, "jitter_seconds"),
        ({"overlap": "skp"}, "overlap"),
        ({"labels": {"a": "x", "version": 1.0}}, "labels.version"),
        ({"labels": {"a b": "x"}}, "labels.'a b'"),
        ({"labels": {"": "x"}}, "labels.''"),
        ({"target": {"type": "http", "url": "https://x", "headers": {"X-A": 5}}}, "target.headers.'X-A'"),
        ({"starts_at": "2027-01-15T08:00:00"}, "starts_at"),
        ({"starts_at": "1960-01-01T00:00:00Z"}, "starts_at"),
        ({"starts_at": "2027-02-01T00:00:00Z", "ends_at": "2027-01-20T00:00:00Z"}, "ends_at"),
        ({"concurrency": {"max": 1}}, "concurrency.key"),
        ({"target": {"type": "http", "url": "https://x", "expected_status": [99]}}, "target.expected_status[0]"),
        ({"target": {"queue": "x"}}, "target"),
        ({"trigger": {"type": "cron", "expression": "61 * * * *"}}, "trigger.expression"),
        ({"trigger": {"type": "chron", "expression": "* * * * *"}}, "trigger.type"),
        ({"trigger": {"type": "once", "at": "2020-01-01T00:00:00Z"}}, "trigger"),
        ({"trigger": {"type": "rrule", "rrule": "FREQ=DAILY", "timezone": ""}}, "trigger.timezone"),
        ({"trigger": {}}, "trigger.type"),
    ],
)
async def test_a_wrong_field_is_named(refusing: Api, fields: dict[str, Any], field: str) -> None:
    reply = await refusing.post("/jobs", a_definition(**fields))
    assert reply.status == 422, reply.body
    assert reply.json["field"] == field


async def test_a_fault_in_a_rule_has_its_position(api: Api) -> None:
    reply = await api.post("/preview", {"trigger": {"type": "cron", "expression": "* * * * MOO"}})
    assert (reply.code, reply.json["position"]) == ("invalid_trigger", 8)


async def test_jobs_are_listed_by_name_in_pages(api: Api) -> None:
    for name in ("c", "a", "b"):
        await api.add_job(name)
    first = (await api.get("/jobs?limit=2")).json
    assert [job["name"] for job in first["items"]] == ["a", "b"]
    rest = (await api.get(f"/jobs?limit=2&cursor={first['next_cursor']}")).json
    assert ([job["name"] for job in rest["items"]], rest["next_cursor"]) == (["c"], None)


async def test_jobs_are_found_by_label_state_and_prefix(api: Api) -> None:
    await api.add_job("a-1", labels={"team": "x", "env": "prod"})
    await api.add_job("a-2", labels={"team": "x"}, enabled=False)
    await api.add_job("b-1", labels={"team": "y=z"})

    async def names(query: str) -> list[str]:
        return [job["name"] for job in (await api.get(f"/jobs?{query}")).json["items"]]

    assert await names("label=team=x") == ["a-1", "a-2"]
    assert await names("label=team=x&label=env=prod") == ["a-1"]
    assert await names("label=team%3Dy%3Dz") == ["b-1"]
    assert await names("enabled=false") == ["a-2"]
    assert await names("enabled=true&prefix=a-") == ["a-1"]


async def test_a_job_is_deleted(api: Api) -> None:
    await api.add_job()
    reply = await api.send("DELETE", "/jobs/job")
    assert (reply.status, reply.body) == (204, b"")
    assert (await api.get("/jobs/job")).code == "not_found"


async def test_pause_and_resume(api: Api) -> None:
    await api.add_job()
    paused = (await api.post("/jobs/job/pause", {"reason": "moving house"})).json
    assert (paused["enabled"], paused["pause_reason"]) == (False, "moving house")
    assert (await api.post("/jobs/job/pause")).json == paused
    resumed = (await api.post("/jobs/job/resume")).json
    assert (resumed["enabled"], resumed["pause_reason"], resumed["paused_at"]) == (True, None, None)


async def test_a_pause_may_have_an_end(api: Api) -> None:
    await api.add_job()
    paused = (await api.post("/jobs/job/pause", {"until": "2030-01-01T00:00:00+01:00"})).json
    assert (paused["enabled"], paused["paused_until"], paused["next_fire_at"]) == (False, "2029-12-31T23:00:00Z", None)
    assert (await api.get("/jobs/job/fires?count=1")).json["fires"][0] >= "2029-12-31T23:00:00Z"
    past = await api.post("/jobs/job/pause", {"until": "2001-01-01T00:00:00Z"})
    assert (past.status, past.json["field"]) == (422, "until")
    assert (await api.post("/jobs/job/resume")).json["paused_until"] is None


async def test_a_trigger_makes_a_run_with_its_payload(api: Api) -> None:
    await api.add_job()
    reply = await api.post("/jobs/job/trigger", {"payload": {"text": "nul \x00 and ☂"}})
    assert (reply.status, reply.json["cause"]) == (201, "manual")
    assert reply.headers["location"] == f"/api/v1/runs/{reply.json['id']}"
    (run,) = await api.claim()
    assert run["payload"] == {"text": "nul \x00 and ☂"}


async def test_a_trigger_without_a_body_uses_the_targets_payload(api: Api) -> None:
    await api.add_job()
    assert (await api.post("/jobs/job/trigger")).status == 201
    assert (await api.claim())[0]["payload"] == {"n": 1}


async def test_a_trigger_with_a_key_makes_one_run_per_job(api: Api) -> None:
    await api.add_job("a")
    await api.add_job("b")
    headers = {"idempotency-key": "k"}
    first = (await api.post("/jobs/a/trigger", headers=headers)).json
    again = (await api.post("/jobs/a/trigger", headers=headers)).json
    other = (await api.post("/jobs/b/trigger", headers=headers)).json
    assert again["id"] == first["id"] != other["id"]
    assert other["job"] == "b"


async def test_a_backfill_makes_runs_for_the_past(api: Api) -> None:
    await api.add_job(trigger={"type": "cron", "expression": "0 * * * *"})
    body = {"start": "2027-01-15T00:00:00Z", "end": "2027-01-15T03:00:00Z"}
    reply = await api.post("/jobs/job/backfill", body)
    assert reply.status == 201
    assert [run["fire_at"] for run in reply.json["runs"]] == [f"2027-01-15T0{hour}:00:00Z" for hour in range(3)]


async def test_a_backfill_of_the_future_is_refused(api: Api) -> None:
    await api.add_job(trigger={"type": "cron", "expression": "0 * * * *"})
    body = {"start": "2027-01-15T08:00:01Z", "end": "2027-01-15T12:00:00Z"}
    reply = await api.post("/jobs/job/backfill", body)
    assert (reply.status, reply.json["field"]) == (422, "start"), reply.body
    assert (await api.post("/jobs/job/backfill", {**body, "start": "2027-01-15T08:00:00Z"})).status == 201


async def test_a_backfill_needs_a_start_before_its_end(api: Api) -> None:
    await api.add_job()
    body = {"start": "2027-01-15T03:00:00Z", "end": "2027-01-15T00:00:00Z"}
    assert (await api.post("/jobs/job/backfill", body)).json["field"] == "end"
    assert (await api.post("/jobs/job/backfill", {"start": body["end"]})).json["field"] == "end"


async def test_the_next_fire_times_of_a_job(api: Api) -> None:
    await api.add_job()
    reply = await api.get("/jobs/job/fires?count=2")
    assert reply.json["fires"] == ["2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"]
    assert "minute" in reply.json["words"]
    assert len((await api.get("/jobs/job/fires")).json["fires"]) == 10


async def test_a_trigger_is_previewed_without_a_job(api: Api) -> None:
    trigger = {"type": "cron", "expression": "0 12 * * *", "timezone": "Europe/Berlin"}
    reply = await api.post("/preview", {"trigger": trigger, "after": "2026-06-01T00:00:00+02:00", "count": 2})
    assert reply.json["fires"] == ["2026-06-01T10:00:00Z", "2026-06-02T10:00:00Z"]
    assert (await api.post("/preview", {"trigger": trigger})).json["fires"][0] == "2027-01-15T11:00:00Z"
    quartz = {"trigger": {"type": "cron", "expression": "0 0 3 ? * 6", "timezone": "UTC"}}
    assert (await api.post("/preview", quartz)).json["warnings"][0].startswith("day 6 of the week is Saturday here")
    assert "warnings" not in reply.json


@pytest.mark.parametrize("after", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
async def test_a_preview_may_begin_anywhere(api: Api, after: str) -> None:
    for trigger in ({"type": "cron", "expression": "0 12 * * *"}, {"type": "interval", "every_seconds": 60}):
        assert (await api.post("/preview", {"trigger": trigger, "after": after})).status in (200, 422)


async def test_a_secret_is_never_shown(api: Api) -> None:
    secret = "whsec_c2VjcmV0c2VjcmV0"
    target = {"type": "http", "url": "https://example.org", "signing_secret": secret}
    created = await api.post("/jobs", a_definition(target=target))
    shown = [created, await api.get("/jobs/job"), await api.get("/jobs"), await api.post("/jobs/job/pause")]
    assert all(secret.encode() not in reply.body for reply in shown)
    await api.send("PATCH", "/jobs/job", {"priority": 1})
    stored = (await api.store.get_jobs(["job"]))[0]
    assert stored is not None
    assert getattr(stored.target, "signing_secret", None) == secret


@pytest.mark.parametrize(("body", "field"), [
    ('{"priority": %s}', "priority"),
    ('{"name": "j", "retry": {"attempts_max": -%s}}', "retry.attempts_max"),
    ('{"labels": {"a b": [1, %s]}}', "labels.'a b'[1]"),
])  # fmt: skip
async def test_a_number_of_too_many_digits_is_refused_by_its_place(refusing: Api, body: str, field: str) -> None:
    reply = await refusing.post("/jobs", (body % ("9" * 5_000)).encode())
    assert (reply.status, reply.json["field"]) == (422, field)
    assert "5,000 digits" in reply.json["detail"]


async def test_a_number_of_too_many_digits_in_what_is_no_json_is_refused(refusing: Api) -> None:
    assert (await refusing.post("/jobs", b'{"priority": ' + b"9" * 5_000 + b", ")).status in (400, 422)


# ---- secrets stay where they go


async def test_a_stored_secret_does_not_leave_with_the_url(api: Api) -> None:
    target = {"type": "http", "url": "https://api.example/hook", "headers": {"Authorization": "Bearer stored"}}
    await api.add_job("hook", target=target)
    reply = await api.send("PATCH", "/jobs/hook", {"target": {"url": "https://evil.example/hook"}})
    assert (reply.status, reply.code) == (422, "invalid_job")
    assert "give it again" in reply.json["detail"]
    assert (await api.get("/jobs/hook")).json["target"]["url"] == target["url"]
    assert (await api.send("PATCH", "/jobs/hook", {"target": {"url": "https://api.example/other"}})).status == 200
    imported = await api.post(
        "/import", {"jobs": [a_definition("hook", target={**target, "url": "http://api.example"})]}
    )
    assert imported.json[0]["outcome"] == "updated"  # it was given again
    masked = {**target, "url": "https://evil.example", "headers": {"Authorization": "********"}}
    imported = await api.post("/import", {"jobs": [a_definition("hook", target=masked)]})
    assert imported.json[0]["outcome"] == "failed"


async def test_a_commands_secrets_are_seen_by_its_worker_alone(api: Api) -> None:
    program = {"command": ["pg_dump"], "env": {"PGPASSWORD": "hunter2"}}
    await api.add_job("dump", target={"type": "command", "queue": "work", **program})
    await api.post("/jobs/dump/trigger", {"payload": {"command": ["evil"]}})
    await api.post("/runs", {"target": {"type": "command", "queue": "work", **program}})
    for path in ("/jobs/dump", "/jobs", "/runs"):
        assert b"hunter2" not in (await api.get(path)).body
    claimed = await api.claim(2)
    assert [(run["target"]["command"], run["target"]["env"]) for run in claimed] == 2 * [tuple(program.values())]
