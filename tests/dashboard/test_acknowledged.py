"""A cause that a person took note of no longer leads the verdict, until it changes; and the verdict stays true."""

from __future__ import annotations

import re

import pytest

from horarium.access.audit import AuditFilter
from horarium.access.audit import page as audit_page
from horarium.operations.deciding.acknowledging import Acknowledged, Cause
from tests.api.conftest import Api, a_definition
from tests.dashboard.test_pages import KEY, a_failed_run, a_key, signed_in
from tests.dashboard.visitor import Visitor

pytestmark = pytest.mark.slow


async def overview(api: Api, visitor: Visitor) -> str:
    api.clock.advance(2)
    await visitor.open("/")
    return visitor.text


async def acknowledge(visitor: Visitor, cause: str, length: str = "1d", reason: str = "the bank is down") -> int:
    if (await visitor.open(f"/acknowledge?cause={cause}")).status == 404:
        await visitor.open("/jobs")
    return (await visitor.post("/acknowledge", cause=cause, length=length, reason=reason)).status


async def complete(api: Api, job: str) -> None:
    await api.post(f"/jobs/{job}/trigger")
    (run,) = await api.claim()
    await api.post(f"/runs/{run['id']}/complete", {"token": run["lease"]["token"]})


async def test_a_failing_job_is_noted_until_its_error_is_another_or_it_comes_back(api: Api, visitor: Visitor) -> None:
    await api.add_job("bank")
    await api.add_job("well")
    await a_failed_run(api, "bank", "HTTP 503, request 11")
    assert "One thing needs attention" in await overview(api, visitor)
    assert "Acknowledge" in visitor.text
    assert await acknowledge(visitor, "failing/bank", reason="") == 422
    await a_failed_run(api, "bank", "HTTP 503, request 11")
    api.clock.advance(2)
    assert await acknowledge(visitor, "failing/bank", length="x") == 422
    await visitor.open("/acknowledge?cause=failing/bank")
    assert re.search(r"bank failed 2 in a row, since [0-9]+:[0-9]+(:[0-9]+)? \?", visitor.text), visitor.text
    assert await acknowledge(visitor, "failing/well") == 404, "nothing is wrong with it"
    assert await acknowledge(visitor, "failing/bank", reason="ticket <7>") == 303
    text = await overview(api, visitor)
    assert "Nothing new needs attention" in text
    assert "All is well" not in text
    assert "1 of 2 jobs is well" in text, "the count is true"
    assert re.search("Acknowledged: 1, not counted above bank failed 2 in a row, since [^,]+, by local until", text)
    assert "ticket <7>" in text
    await visitor.open("/jobs")
    assert "Failing 1" in visitor.text
    assert "1 more was acknowledged" in visitor.text
    await a_failed_run(api, "bank", "HTTP 503, request 12")
    assert "Nothing new" in await overview(api, visitor), "the same error"
    await a_failed_run(api, "bank", "KeyError: 'XDR'")
    assert "One thing needs attention" in await overview(api, visitor), "another error"
    await visitor.open("/failures")
    assert visitor.text.index("KeyError: 'XDR'") < visitor.text.index("HTTP 503"), "it fails with that one now"
    assert visitor.text.count("not failing now") == 1
    await acknowledge(visitor, "failing/bank")
    assert "Nothing new" in await overview(api, visitor)
    await complete(api, "bank")
    assert "All is well" in await overview(api, visitor)
    api.clock.advance(2)
    await a_failed_run(api, "bank", "KeyError: 'XDR'")
    assert "One thing needs attention" in await overview(api, visitor), "it had ended"


async def test_it_ends_with_its_time_and_is_taken_back_and_told(api: Api, visitor: Visitor) -> None:
    await api.add_job("bank")
    await a_failed_run(api, "bank")
    assert await acknowledge(visitor, "failing/bank", "4h") == 303
    assert "Nothing new" in await overview(api, visitor)
    api.clock.advance(4 * 3_600)
    assert "One thing needs attention" in await overview(api, visitor)
    assert await acknowledge(visitor, "failing/bank", "7d") == 303
    assert "Nothing new" in await overview(api, visitor)
    assert (await visitor.post("/acknowledge/undo", cause="failing/bank")).status == 303
    assert "One thing needs attention" in await overview(api, visitor)
    await visitor.open("/jobs")
    assert (await visitor.post("/acknowledge/undo", cause="failing/bank")).status == 404
    told = [line for line in (await audit_page(api.store, AuditFilter(), None, 50)).items if "attention" in line.action]
    assert [line.action for line in told] == ["attention.open", "attention.acknowledge", "attention.acknowledge"]
    assert told[0].object == "attention/failing/bank"


async def test_a_queue_without_workers_is_noted_while_its_oldest_run_waits(api: Api, visitor: Visitor) -> None:
    await api.add_job("poll")
    await api.post("/jobs/poll/trigger")
    api.clock.advance(300)
    assert "Queue work has no worker: 1 run waits" in await overview(api, visitor)
    assert await acknowledge(visitor, "unserved/pull/work", "30d") == 303
    text = await overview(api, visitor)
    assert "Nothing new needs attention" in text
    assert "0 of 1 job" in text
    noted = Acknowledged("unserved/q", "", "why", "ann", 100, 200)
    assert noted.covers(Cause("unserved/q", 100), 150)
    assert not noted.covers(Cause("unserved/q", 101), 150), "served in between: an older run does not wait"
    assert not noted.covers(Cause("unserved/q", 100), 200)
    assert not noted.covers(Cause("unserved/other", 100), 150)


async def test_who_is_bound_notes_its_own_jobs_alone(api: Api) -> None:
    locked, admin = Api([KEY], pages=True), {"authorization": f"Bearer {KEY}"}
    for name, team in (("mine", "a"), ("theirs", "b")):
        target = {"type": "queue", "queue": "work"}
        await locked.post("/jobs", a_definition(name, target=target, labels={"team": team}), headers=admin)
        await locked.post(f"/jobs/{name}/trigger", headers=admin)
        body = {"queues": ["work"], "limit": 1, "worker": "w"}
        (run,) = (await locked.post("/runs/claim", body, headers=admin)).json["runs"]
        report = {"token": run["lease"]["token"], "error": "no", "retryable": False}
        await locked.post(f"/runs/{run['id']}/fail", report, headers=admin)
    visitor = await signed_in(locked, await a_key(locked, "a-only", "operator", labels={"team": "a"}))
    assert "One thing needs attention" in await overview(locked, visitor)
    assert await acknowledge(visitor, "failing/theirs") == 404
    assert await acknowledge(visitor, "failing/mine") == 303
    assert "Nothing new" in await overview(locked, visitor)
    everybody = await signed_in(locked, KEY)
    text = await overview(locked, everybody)
    assert "One cause needs attention" in text
    assert "by a-only until" in text
