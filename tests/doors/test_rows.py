"""What the clients of the three systems could tell, or what was wrong there and must not be here: row by row, where no
other test of a door says it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from horarium.doors.scrape_jobs import LEASE_SECONDS, Listed, definition, job_id
from horarium.model import HttpTarget, State, run_id
from horarium.model.secrets import plain
from horarium.ports import RunFilter
from horarium.testing.values import a_run
from horarium.wire.definitions import read_definition
from tests.blackbox.outside import Receiver
from tests.doors.conftest import House
from tests.doors.test_rrule_scheduler import GOOD, create
from tests.doors.test_rrule_scheduler import failed as refusal
from tests.doors.test_simple_scheduler import FAR, action, define, door, run_until, say, soon
from tests.waiting import until

__all__ = ["door"]
ZERO = "0001-01-01T00:00:00Z"
URL = "https://example.com/page"
ID = job_id(URL)


# ---- rrule-scheduler --------------------------------------------------------------------------------------------


async def test_a_secret_goes_to_no_other_host(house: House) -> None:
    here = "http://127.0.0.1:9/?token=t0k3n"
    id = await create(house, callback_url=here, headers={"Authorization": "Bearer s3cr3t"})
    for url, status in (("http://127.0.0.1:9/other", 200), (here, 200), ("http://127.0.0.2:9/", 422)):
        assert (await house.ask("PUT", f"/api/schedules/{id}", {"callback_url": url, "name": "n"})).status == status
    assert (await house.ask("PUT", f"/api/schedules/{id}", {"name": "kept"})).status == 200
    assert isinstance(target := (await house.runtime.operations.jobs.get_job(id)).target, HttpTarget)
    assert (plain(target.url), plain(target.headers["Authorization"])) == (here, "Bearer s3cr3t")
    moved = {"callback_url": "http://127.0.0.2:9/", "headers": {"Authorization": "Bearer other"}}
    assert (await house.ask("PUT", f"/api/schedules/{id}", moved)).status == 200


async def test_two_schedules_may_have_one_name(house: House) -> None:
    assert await create(house) != await create(house)


async def test_a_wrong_method_is_not_found_and_null_is_empty(house: House) -> None:
    assert (await house.ask("HEAD", "/api/schedules/" + "6" * 24)).status == 404
    answer = (422, refusal("Schedule name cannot be empty"))
    assert (await house.ask("POST", "/api/schedules", {**GOOD, "name": None})).said == answer
    id = await create(house)
    answer = (422, refusal("Invalid callback URL format"))
    assert (await house.ask("PUT", f"/api/schedules/{id}", {"callback_url": "nope"})).said == answer


async def test_an_answer_of_500_is_a_failure_and_the_call_is_made_three_times(house: House) -> None:
    receiver = Receiver()
    receiver.answers["/broken"] = lambda before: (500, {}, b"no")
    try:
        id = await create(house, rrule="FREQ=SECONDLY;COUNT=1", callback_url=f"{receiver.url}/broken")
        history: list[Any] = []

        async def over() -> bool:
            nonlocal history
            history = (await house.ask("GET", f"/api/schedules/{id}/events/history")).json["events"] or []
            return bool(history)

        await until(over)
        assert [request.method for request in receiver.at("/broken")] == ["GET"] * 3, "all without a method are GET"
        assert (len(history), history[0]["status"][-1]["status"]) == (1, "error")
    finally:
        receiver.close()


async def test_a_hanging_endpoint_is_given_up(house: House) -> None:
    """The seed waits for ever. (That a call ends after its time is the core's: tests/delivery.)"""
    job = await house.runtime.operations.jobs.get_job(await create(house))
    assert job.timeouts.execution_seconds is None
    assert job.target.timeout_seconds == 30  # type: ignore[union-attr]


async def test_nothing_of_a_deleted_schedule_is_called(house: House) -> None:
    id = await create(house, rrule="FREQ=SECONDLY;INTERVAL=20")
    store, job = house.runtime.operations.store, await house.runtime.operations.jobs.get_job(id)
    assert job.next_fire_at is not None
    ahead = a_run(of=job, id=run_id(job.id, job.next_fire_at), fire_at=job.next_fire_at, due_at=job.next_fire_at)
    assert await store.add_runs([ahead]) == [True]
    assert (await house.ask("DELETE", f"/api/schedules/{id}")).status == 200
    assert {run.state for run in (await store.list_runs(RunFilter(job=id), None, 10)).items} <= {State.CANCELLED}
    assert (await house.ask("GET", f"/api/schedules/{id}/events/pending")).status == 404


# ---- simple-scheduler -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["", None, ZERO, "tomorrow"])
async def test_a_job_needs_a_next_run(door: House, moment: Any) -> None:
    reply = await door.ask("POST", "/api/jobs", {"name": "x", "enabled": True, "nextRunAt": moment})
    assert reply.status == 400
    assert reply.json["error"]


async def test_durations_may_be_negative_and_come_back(door: House) -> None:
    await define(door, nextRunAt=FAR, interval=1000, runExecutionTimeout=-1, heartbeatTimeout=-5, maxQueueCount=-2)
    shown = (await door.ask("GET", "/api/jobs/life")).json
    assert (shown["runExecutionTimeout"], shown["heartbeatTimeout"], shown["maxQueueCount"]) == (-1, -5, -2)


async def test_beats_keep_a_run_running(door: House) -> None:
    """There they were not stored: a run with a heartbeat timeout was put back however much its worker beat."""
    await define(door, heartbeatTimeout=60_000)
    taken = await action(door)
    say(door, taken, "running")
    await run_until(door, taken["runId"], "running")
    first = (await door.ask("GET", f"/api/runs/{taken['runId']}")).json["heartbeat"]
    beat = json.dumps({"jobName": "life", "runId": taken["runId"]}).encode()

    async def was_heard() -> bool:
        door.broker.put("life", "heartbeat", beat)
        shown = (await door.ask("GET", f"/api/runs/{taken['runId']}")).json
        assert shown["status"] == "running"
        return bool(shown["heartbeat"] > first)

    await until(was_heard)


async def test_a_run_that_no_worker_has_taken_can_be_cancelled(door: House) -> None:
    await define(door)
    taken = await action(door)
    assert (await door.ask("GET", f"/api/runs/{taken['runId']}/cancel")).said == (204, None)
    assert (await action(door))["action"] == "cancel"
    assert (await door.ask("GET", f"/api/runs/{taken['runId']}/cancel")).said == (204, None), "a second time, too"
    say(door, taken, "cancelled")
    ended = await run_until(door, taken["runId"], "cancelled")
    assert ended["startTime"] == ZERO, "it never began"


async def test_a_cancel_needs_the_scope_of_writing_runs(house: House) -> None:
    house.token = house.sign(scope="runs:read jobs:write")
    refused = (403, {"error": "Missing required scopes", "missing_scopes": ["runs:write"]})
    assert (await house.ask("GET", f"/api/runs/{'0' * 24}/cancel")).said == refused, "before whether it exists"
    refused = (403, {"error": "Missing required scopes", "missing_scopes": ["jobs:read"]})
    assert (await house.ask("GET", "/api/jobs/none")).said == refused


async def test_runs_come_oldest_first_and_are_filtered_by_their_instants(door: House) -> None:
    await define(door, interval=100)
    first, second = await action(door), await action(door)
    say(door, first, "running")
    begun = await run_until(door, first["runId"], "running")
    runs = (await door.ask("GET", "/api/runs")).json
    created = [run["createdTime"] for run in runs]
    assert created == sorted(created)
    assert len(created) >= 2
    running = "/api/runs?Status=running&StartedBefore="
    assert [run["id"] for run in (await door.ask("GET", f"{running}2099-01-01T00:00:00Z")).json] == [begun["id"]]
    assert (await door.ask("GET", f"{running}2020-01-01T00:00:00Z")).json is None
    early = (await door.ask("GET", "/api/runs?StartedBefore=2020-01-01T00:00:00Z")).json
    assert {run["startTime"] for run in early} == {ZERO}, "what has not begun is shown as the year 1, and found so"
    assert second["runId"].replace("-", "")[:24] in {run["id"] for run in early}
    assert (await door.ask("GET", "/api/runs?HeartbeatBefore=2020-01-01T00:00:00Z")).json is None


async def test_a_patch_to_what_is_off_and_a_job_in_the_past_are_taken(door: House) -> None:
    await define(door, enabled=False, nextRunAt=soon())
    assert (await door.ask("PATCH", "/api/jobs/life", {"enabled": True})).said == (204, None)
    assert (await door.ask("GET", "/api/jobs/life")).json["enabled"] is True


# ---- the scheduler for scrape jobs ------------------------------------------------------------------------------


async def add(house: House, interval: float = 3600) -> None:
    fields: dict[str, Any] = definition(Listed(URL, interval, {}), 300, 0)
    await house.runtime.operations.jobs.put_job(read_definition(fields))


async def test_a_job_whose_worker_dies_comes_again(house: House) -> None:
    """There it was in no list any more. (That a lease runs out is the core's; here, that it does and without end.)"""
    await add(house)
    job = await house.runtime.operations.jobs.get_job(ID)
    assert (job.timeouts.heartbeat_seconds, job.retry.silences_max) == (LEASE_SECONDS, "unlimited")
    await house.runtime.operations.jobs.trigger_job(ID)
    assert (await house.ask("GET", "/jobs/next")).status == 200
    (run,) = (await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)).items
    assert run.lease_expires_at is not None


async def test_adding_a_url_again_does_not_move_it(house: House) -> None:
    await add(house)
    before = (await house.runtime.operations.jobs.get_job(ID)).next_fire_at
    await add(house)
    assert (await house.runtime.operations.jobs.get_job(ID)).next_fire_at == before


@pytest.mark.parametrize("settings", [{"scrape_ready_pop_seconds": 30}])
async def test_a_worker_that_waits_while_the_server_stops_is_told_so(house: House) -> None:
    waiting = asyncio.create_task(house.ask("GET", "/jobs/next"))
    await until(lambda: house.runtime.claims.waiting > 0)
    house.runtime.claims.close()
    assert (await waiting).status == 503


async def test_an_error_is_not_tried_again_before_its_interval(house: House) -> None:
    await add(house)
    await house.runtime.operations.jobs.trigger_job(ID)
    assert (await house.ask("GET", "/jobs/next")).status == 200
    assert (await house.ask("POST", f"/jobs/{ID}/error", {"error": "403"})).said == (204, None)
    runs = (await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)).items
    assert [run.state for run in runs] == [State.FAILED]


async def test_changes_of_different_fields_at_one_time_all_count(house: House) -> None:
    house.token = house.sign()
    sent = {"name": "n", "rrule": "FREQ=DAILY", "callback_url": "http://127.0.0.1:9/"}
    id = (await house.ask("POST", "/api/schedules", sent)).json["id"]
    await define(house, "life", nextRunAt=FAR, interval=1000)
    schedule = {"name": "x", "body": "b", "method": "PUT"}
    job = {"interval": 2000, "maxQueueCount": 3, "enabled": False}
    asked = [house.ask("PUT", f"/api/schedules/{id}", {name: given}) for name, given in schedule.items()]
    asked += [house.ask("PATCH", "/api/jobs/life", {name: given}) for name, given in job.items()]
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * 3 + [204] * 3
    shown = (await house.ask("GET", f"/api/schedules/{id}")).json
    assert {name: shown.get(name) for name in schedule} == schedule
    shown = (await house.ask("GET", "/api/jobs/life")).json
    assert {name: shown[name] for name in job} == job
