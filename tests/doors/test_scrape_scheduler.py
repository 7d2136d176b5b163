"""Workers of the scheduler for scrape jobs, as it documents them."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from horarium.clock import SECOND, to_text
from horarium.doors.scrape_jobs import Listed, definition, job_id
from horarium.model import State
from horarium.ports import RunFilter
from horarium.rules.planning import due_of
from horarium.server.logs import Lines
from horarium.wire.definitions import read_definition
from tests.doors.conftest import House
from tests.waiting import until

URL = "https://example.com/page"
ID = job_id(URL)


async def add(house: House, interval: float = 3600) -> None:
    fields: dict[str, Any] = definition(Listed(URL, interval, {"site": "a"}), 300, 0)
    await house.runtime.operations.jobs.put_job(read_definition(fields))
    await house.runtime.operations.jobs.trigger_job(ID)


async def ended(house: House, state: State) -> None:
    async def is_so() -> bool:
        page = await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)
        return any(run.state is state for run in page.items)

    await until(is_so)


def test_the_id_is_the_head_of_the_sha_1_of_the_url() -> None:
    assert job_id("https://example.com") == "327c3fda87ce"


async def test_a_job_is_handed_out_once_and_completed(house: House) -> None:
    await add(house)
    reply = await house.ask("GET", "/jobs/next")
    assert reply.said == (200, {"id": ID, "url": URL, "interval_s": 3600, "meta": {"site": "a"}})
    assert b'"interval_s":3600,' in reply.body, "a reader of integers refuses 3600.0"
    assert (await house.ask("POST", f"/jobs/{ID}/complete", {"scheduled_at": 1, "picked_up_at": 2})).said == (204, None)
    await ended(house, State.COMPLETED)
    assert (await house.ask("POST", f"/jobs/{ID}/complete")).said == (204, None), "a second report changes nothing"


async def test_an_error_ends_the_run(house: House) -> None:
    await add(house)
    assert (await house.ask("GET", "/jobs/next")).status == 200
    assert (await house.ask("POST", f"/jobs/{ID}/error", {"error": "403"})).said == (204, None)
    await ended(house, State.FAILED)


@pytest.mark.parametrize("settings", [{"scrape_ready_pop_seconds": 0.05}])
async def test_nothing_to_do_is_204_after_the_wait(house: House) -> None:
    assert (await house.ask("GET", "/jobs/next")).said == (204, None)


@pytest.mark.parametrize("end", ["complete", "error"])
async def test_null_is_not_known(house: House, end: str) -> None:
    await add(house)
    assert (await house.ask("GET", "/jobs/next")).status == 200
    told = {"scheduled_at": 1.5, "picked_up_at": None, "error": None}
    assert (await house.ask("POST", f"/jobs/{ID}/{end}", told)).status == 204


async def test_reports_that_are_refused(house: House) -> None:
    await add(house)
    assert (await house.ask("POST", f"/jobs/{ID}/complete", b"x" * 4097)).status == 413
    assert (await house.ask("POST", f"/jobs/{ID}/complete", b"nonsense")).status == 400
    assert (await house.ask("POST", f"/jobs/{ID}/complete", {"picked_up_at": 1e308})).status == 400
    assert (await house.ask("POST", "/jobs/unknown/complete")).status == 404


async def test_a_server_that_stops_says_so(house: House) -> None:
    house.runtime.claims.close()
    assert (await house.ask("GET", "/jobs/next")).status == 503


@pytest.mark.parametrize("settings", [{"door_open": False, "api_keys": ("k" * 20,)}])
async def test_a_key_is_asked_for_unless_the_door_is_open(house: House) -> None:
    assert (await house.ask("GET", "/jobs/next")).status == 401


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The log as a machine reads it."""
    return [
        json.loads(Lines(as_json=True, colors=False).format(record))
        for record in caplog.records
        if record.name == "horarium"
    ]


@pytest.mark.parametrize("ended", ["complete", "error"])
async def test_the_log_says_what_those_who_run_it_look_for_in_fields(
    house: House, caplog: pytest.LogCaptureFixture, ended: str
) -> None:
    caplog.set_level(logging.INFO)
    fields: dict[str, Any] = definition(Listed(URL, 1, {}), 300, 0.5)
    await house.runtime.operations.jobs.put_job(read_definition(fields))
    assert (await house.ask("GET", "/jobs/next")).status == 200
    (poll,) = [line for line in lines(caplog) if line["event"] == "poll_stats"]
    assert poll["promoted_count"] == 1
    assert poll["poll_duration_ms"] >= 0
    now = time.time()
    told = {"scheduled_at": int(now) - 60, "picked_up_at": int(now) - 20, "error": "no route\nto host"}
    await house.ask("POST", f"/jobs/{ID}/{ended}", told)
    said = [line for line in lines(caplog) if line.get("job_id") == ID or ID in line["event"]]
    (line,) = said
    assert 20_000 <= line["duration_ms"] <= 30_000
    assert line["wait_ms"] == 40_000
    again = line["next_run_at" if ended == "complete" else "will_retry_at"]
    run = (await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)).items[-1]
    job = await house.runtime.operations.jobs.get_job(ID)
    assert again == to_text(due_of(job, (run.finished_at or 0) + SECOND)), "an interval after the report"
    if ended == "complete":
        assert (line["event"], line["level"]) == ("job_complete", "info")
    else:
        assert (line["event"], line["level"], line["error"]) == ("job_error", "warning", told["error"])


async def test_the_next_run_is_an_interval_after_the_report(house: House) -> None:
    fields: dict[str, Any] = definition(Listed(URL, 1, {}), 300, 0)
    await house.runtime.operations.jobs.put_job(read_definition(fields))
    first = await house.ask("GET", "/jobs/next")
    assert first.status == 200, "after one interval"
    await house.ask("POST", f"/jobs/{ID}/complete")
    (ended,) = (await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)).items
    assert (await house.ask("GET", "/jobs/next")).status == 200
    again = (await house.runtime.operations.store.list_runs(RunFilter(job=ID), None, 10)).items[0]
    assert again.fire_at >= (ended.finished_at or 0) + SECOND


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}])
async def test_a_page_of_another_site_takes_no_job(house: House, headers: dict[str, str]) -> None:
    await add(house)
    assert (await house.ask("GET", "/jobs/next", **headers)).status == 403
    assert (await house.ask("GET", "/jobs/next")).status == 200, "it is there for a worker"
