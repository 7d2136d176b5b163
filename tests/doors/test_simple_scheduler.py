"""simple-scheduler's clients and workers: what was recorded from the system itself, asked of ours."""

from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from horarium.model import run_id
from horarium.ports import RunFilter
from horarium.testing.values import a_run
from tests.doors.conftest import House
from tests.waiting import PATIENCE, until

FAR = "2099-01-01T00:00:00Z"
ZERO = "0001-01-01T00:00:00Z"
SHOWN = {
    "name": "life", "enabled": True, "nextRunAt": FAR, "interval": 1000, "runExecutionTimeout": 0, "runStartTimeout": 0,
    "maxQueueCount": 0, "allowConcurrentRuns": False, "heartbeatTimeout": 0, "managerId": "0" * 24, "heartbeat": ZERO,
}  # fmt: skip


@pytest_asyncio.fixture
async def door(house: House) -> House:
    """The house, with a caller who may do everything."""
    house.token = house.sign()
    return house


def soon() -> str:
    return datetime.now(UTC).isoformat()


async def define(door: House, name: str = "life", **changes: Any) -> None:
    sent = {"name": name, "enabled": True, "nextRunAt": soon(), "interval": 3_600_000, **changes}
    assert (await door.ask("POST", "/api/jobs", sent)).said == (201, {"name": name})


@pytest.mark.parametrize("changes", [{"sub": None}, {"iat": int(time.time()) + 100}])
async def test_claims_that_were_never_looked_at_are_not(house: House, changes: dict[str, Any]) -> None:
    house.token = house.sign(**changes)
    assert (await house.ask("GET", "/api/jobs")).said == (200, None)


async def test_an_interval_that_is_too_short_is_refused_in_the_words_of_its_sender(door: House) -> None:
    sent = {"name": "quick", "enabled": True, "nextRunAt": soon(), "interval": 20}
    assert (await door.ask("POST", "/api/jobs", sent)).said == (
        400,
        {"error": "interval: 20: expected 50 or more, or 0"},
    )


async def action(door: House, job: str = "life") -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        taken: dict[str, Any] = json.loads(await door.broker.get(job, "action"))
    return taken


def say(door: House, taken: dict[str, Any], status: str) -> None:
    body = {"jobName": taken["jobName"], "runId": taken["runId"], "status": status}
    door.broker.put(taken["jobName"], "status", json.dumps(body).encode())


async def run_until(door: House, id: str, status: str) -> dict[str, Any]:
    run: dict[str, Any] = {}

    async def arrived() -> bool:
        nonlocal run
        run = (await door.ask("GET", f"/api/runs/{id}")).json
        return bool(run["status"] == status)

    await until(arrived)
    return run


LACKING = {"error": "Missing required scopes", "missing_scopes": ["jobs:read"]}


# ---- who asks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("", "Authorization header is missing"),
        ("Basic abc", "Invalid authorization format"),
        ("bearer abc", "Invalid authorization format"),
        ("Bearer nonsense", "Invalid access token"),
    ],
)
async def test_who_is_not_known_is_told_so_in_the_same_words(house: House, header: str, said: str) -> None:
    assert (await house.ask("GET", "/api/jobs", authorization=header)).said == (401, {"error": said})
    assert (await house.ask("GET", "/api/status")).said == (200, {"status": "OK"})


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"exp": None}, (401, {"error": "Invalid access token"})),
        ({"exp": 1_000}, (401, {"error": "Invalid access token"})),
        ({"iss": "https://another.example"}, (401, {"error": "Invalid issuer"})),
        ({"scope": None}, (403, LACKING)),
        ({"scope": "runs:read", "roles": ["admin"]}, (403, LACKING)),
        ({"scope": "openid jobs:read", "aud": "urn:simple-scheduler"}, (200, None)),
    ],
)  # fmt: skip
async def test_what_a_token_opens(house: House, changes: dict[str, Any], answer: tuple[int, Any]) -> None:
    house.token = house.sign(**changes)
    assert (await house.ask("GET", "/api/jobs")).said == answer or answer == (200, None)
    assert (await house.ask("GET", "/api/jobs")).status == answer[0]


# ---- jobs -------------------------------------------------------------------------------------------------------


async def test_a_job_is_shown_with_every_field_in_its_order(door: House) -> None:
    assert (await door.ask("GET", "/api/jobs")).said == (200, None)
    await define(door, nextRunAt="2099-01-01T02:00:00.000+02:00", interval=1000)
    assert (await door.ask("GET", "/api/jobs/life")).said == (200, SHOWN)
    assert list((await door.ask("GET", "/api/jobs")).json[0]) == list(SHOWN)
    assert (await door.ask("GET", "/api/jobs/none")).said == (404, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'Name' failed on the 'required' tag"),
        ({"name": "x", "enabled": True}, "Key: 'Job.NextRunAt' Error:Field validation for 'NextRunAt' failed"),
        ({"name": 5, "enabled": True, "nextRunAt": FAR}, "json: cannot unmarshal"),
        ({"name": "x", "enabled": True, "nextRunAt": "9999-12-31T23:59:59-23:00"}, "2200"),
        (b"", "json: cannot unmarshal"),
        ([], "json: cannot unmarshal"),
    ],
)
async def test_what_is_wrong_is_refused(door: House, body: Any, said: str) -> None:
    status, answer = (await door.ask("POST", "/api/jobs", body)).said
    assert status == 400
    assert said in answer["error"]


async def test_names_may_be_anything_and_are_taken_once(door: House) -> None:
    name = "x 10.b@c ä"
    await define(door, name, enabled=False, nextRunAt=FAR)
    assert (await door.ask("POST", "/api/jobs", {"name": name, "enabled": True, "nextRunAt": FAR})).status == 409
    shown = (await door.ask("GET", "/api/jobs/x%2010.b@c%20%C3%A4")).json
    assert (shown["name"], shown["enabled"]) == (name, False)


async def test_a_patch_changes_what_is_there_and_nothing_else(door: House) -> None:
    await define(door, nextRunAt=FAR, interval=1000)
    assert (await door.ask("PATCH", "/api/jobs/life", {})).said == (204, None)
    assert (await door.ask("PATCH", "/api/jobs/life", b"null")).said == (204, None)
    sent = {"enabled": False, "interval": None, "heartbeatTimeout": 2000, "maxQueueCount": 3, "odd": 1}
    assert (await door.ask("PATCH", "/api/jobs/life", sent)).said == (204, None)
    expected = {**SHOWN, "enabled": False, "heartbeatTimeout": 2000, "maxQueueCount": 3}
    assert (await door.ask("GET", "/api/jobs/life")).said == (200, expected)
    assert (await door.ask("PATCH", "/api/jobs/life", {"nextRunAt": "0001-01-01T00:00:00+23:00"})).status == 400
    assert (await door.ask("PATCH", "/api/jobs/none", {})).status == 404
    assert (await door.ask("DELETE", "/api/jobs/life")).said == (204, None)
    assert (await door.ask("DELETE", "/api/jobs/life")).said == (204, None)


@pytest.mark.parametrize(("method", "path"), [("PUT", "/api/jobs"), ("GET", "/api/runs/a/b"), ("POST", "/api/status")])
async def test_everything_else_is_not_found(door: House, method: str, path: str) -> None:
    assert (await door.ask(method, path)).said == (404, "404 page not found")


# ---- runs and workers -------------------------------------------------------------------------------------------


async def test_a_run_waits_for_its_worker_runs_and_completes(door: House) -> None:
    await define(door)
    taken = await action(door)
    assert list(taken)[:3] == ["jobName", "runId", "action"]
    assert (taken["jobName"], taken["action"]) == ("life", "run")
    (run,) = (await door.ask("GET", "/api/runs?JobName=life")).json
    assert list(run) == ["id", "jobName", "status", "createdTime", "startTime", "endTime", "heartbeat"]
    assert (run["status"], run["startTime"], run["endTime"]) == ("pending", ZERO, ZERO)
    assert re.fullmatch(r"[0-9a-f]{24}", run["id"])
    assert (await door.ask("GET", f"/api/runs/{taken['runId']}")).json["id"] == run["id"]
    say(door, taken, "running")
    begun = await run_until(door, run["id"], "running")
    assert begun["startTime"] != ZERO
    say(door, taken, "completed")
    ended = await run_until(door, run["id"], "completed")
    assert ended["endTime"] != ZERO
    assert (await door.ask("GET", f"/api/runs/{run['id']}/cancel")).said == (400, {"error": "Run already finished"})
    found = {"status=completed": 1, "Status=failed": 0, "jobName=other": 0, "CreatedBefore=2020-01-01T00:00:00Z": 0}
    for query, count in found.items():
        assert len((await door.ask("GET", f"/api/runs?{query}")).json or []) == count, query


async def test_the_next_run_starts_while_the_first_one_runs(door: House) -> None:
    await define(door, interval=100)
    first = await action(door)
    say(door, first, "running")
    assert (await action(door))["runId"] != first["runId"]


async def test_what_is_planned_ahead_is_no_run_yet(door: House) -> None:
    await define(door, nextRunAt=FAR)
    job = await door.runtime.operations.jobs.get_job("life")
    assert job.next_fire_at is not None
    ahead = a_run(of=job, id=run_id(job.id, job.next_fire_at), fire_at=job.next_fire_at, due_at=job.next_fire_at)
    assert await door.runtime.operations.store.add_runs([ahead]) == [True]
    assert (await door.ask("GET", "/api/runs")).said == (200, None)
    assert (await door.ask("GET", "/api/runs?JobName=life&Status=pending")).said == (200, None)


async def test_a_patch_of_the_next_run_counts_and_a_job_that_is_off_does_not_run(door: House) -> None:
    await define(door, nextRunAt=FAR)
    await define(door, "off", enabled=False, nextRunAt=soon())
    assert (await door.ask("PATCH", "/api/jobs/life", {"nextRunAt": soon()})).said == (204, None)
    assert (await action(door))["jobName"] == "life"
    runs = (await door.ask("GET", "/api/runs")).json
    assert {run["jobName"] for run in runs} == {"life"}


async def test_no_more_runs_wait_than_the_queue_may_hold(door: House) -> None:
    await define(door, interval=50, maxQueueCount=2)
    await action(door)
    job = await door.runtime.operations.jobs.get_job("life")
    assert job.buffer_max == 2

    async def several_were_due() -> bool:
        fires = await door.runtime.operations.store.list_runs(RunFilter(job="life"), None, 50)
        return len(fires.items) > 5

    await until(several_were_due)
    waiting = (await door.ask("GET", "/api/runs?Status=pending")).json
    assert len(waiting) <= 2


async def test_a_status_that_is_not_readable_is_rejected_once(door: House) -> None:
    await define(door)
    taken = await action(door)
    for body in (b"{", b"{}", b'{"jobName":"life","runId":"6799b53b33fcc6482f29c96f","status":"running"}'):
        door.broker.put("life", "status", body)
    say(door, {**taken, "runId": "5"}, "running")
    say(door, taken, "bogus")
    say(door, taken, "running")
    say(door, taken, "completed")
    await run_until(door, taken["runId"], "completed")
    say(door, taken, "running")
    await until(lambda: not door.broker.queues["life", "status"])
    assert (await door.ask("GET", f"/api/runs/{taken['runId']}")).json["status"] == "completed", "an end is an end"


async def test_runs_stay_when_their_job_is_deleted(door: House) -> None:
    await define(door)
    taken = await action(door)
    say(door, taken, "running")
    say(door, taken, "completed")
    await run_until(door, taken["runId"], "completed")
    assert (await door.ask("DELETE", "/api/jobs/life")).said == (204, None)
    assert [run["status"] for run in (await door.ask("GET", "/api/runs?jobName=life")).json] == ["completed"]


async def test_a_failure_is_final(door: House) -> None:
    await define(door)
    taken = await action(door)
    say(door, taken, "running")
    say(door, taken, "failed")
    await run_until(door, taken["runId"], "failed")


async def test_a_one_off_job_runs_once(door: House) -> None:
    await define(door, interval=0)
    taken = await action(door)
    say(door, taken, "running")
    say(door, taken, "completed")
    await run_until(door, taken["runId"], "completed")
    await define(door, "other", interval=0)
    await action(door, "other")
    assert len((await door.ask("GET", "/api/runs?JobName=life")).json) == 1


async def test_missed_intervals_are_one_run_that_bears_the_old_time(door: House) -> None:
    old = (datetime.now(UTC) - timedelta(hours=5)).replace(microsecond=0)
    await define(door, nextRunAt=old.isoformat())
    await action(door)
    (run,) = (await door.ask("GET", "/api/runs")).json
    assert datetime.fromisoformat(run["createdTime"]) == old


async def test_a_cancel_reaches_the_worker(door: House) -> None:
    await define(door)
    taken = await action(door)
    say(door, taken, "running")
    run = await run_until(door, taken["runId"], "running")
    assert (await door.ask("GET", f"/api/runs/{run['id']}/cancel")).said == (204, None)
    asked = await action(door)
    assert (asked["action"], asked["runId"]) == ("cancel", taken["runId"])
    await run_until(door, run["id"], "cancelling")
    say(door, taken, "cancelled")
    await run_until(door, run["id"], "cancelled")
    assert (await door.ask("GET", f"/api/runs/{run['id']}/cancel")).said == (204, None)
    assert (await door.ask("GET", f"/api/runs/{'0' * 24}/cancel")).said == (404, None)


@pytest.mark.parametrize("limit", ["runStartTimeout", "runExecutionTimeout"])
async def test_a_run_over_its_time_is_cancelled_by_its_worker(door: House, limit: str) -> None:
    changes: dict[str, Any] = {limit: 300}
    await define(door, **changes)
    taken = await action(door)
    if limit == "runExecutionTimeout":
        say(door, taken, "running")
    assert (await action(door))["action"] == "cancel"
    await run_until(door, taken["runId"], "cancelling")
    say(door, taken, "cancelled")
    await run_until(door, taken["runId"], "cancelled")


async def test_a_silent_run_is_pending_again_and_goes_out_again(door: House) -> None:
    await define(door, heartbeatTimeout=1000)
    taken = await action(door)
    say(door, taken, "running")
    await run_until(door, taken["runId"], "running")
    again = await action(door)
    assert (again["action"], again["runId"]) == ("run", taken["runId"])
    await run_until(door, taken["runId"], "pending")


async def test_wrong_filters_and_ids(door: House) -> None:
    assert (await door.ask("GET", "/api/runs?Status=bogus")).said == (400, {"status": "Invalid run status"})
    assert (await door.ask("GET", "/api/runs?CreatedBefore=bad")).status == 400
    assert (await door.ask("GET", "/api/runs/x")).said == (404, None)


@pytest.mark.parametrize("settings", [{"simple_scheduler_enforce_concurrency": True}])
async def test_runs_may_be_kept_from_running_at_once(door: House) -> None:
    await define(door)
    job = await door.runtime.operations.jobs.get_job("life")
    assert job.overlap == "buffer_all"
    await define(door, "free", allowConcurrentRuns=True)
    assert (await door.runtime.operations.jobs.get_job("free")).overlap == "allow"
