"""What workers do over HTTP: claim, heartbeat, report."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from horarium.access.roles import LOCAL
from horarium.api.endpoints import Call
from horarium.api.limits import QUEUES_MAX
from horarium.api.problems import TooManyWaiters
from horarium.api.schemas import ClaimRequest
from horarium.api.work import Work
from horarium.operations.settling.claiming import Claiming
from horarium.ports import Claimed
from horarium.services.polling.claims import WAIT_SECONDS_MAX, Claims
from horarium.testing.values import a_run
from tests.waiting import until

from .conftest import Api

CLAIM = {"queues": ["work"], "worker": "w"}


async def lease(api: Api, number: int = 0, **changes: Any) -> tuple[str, int]:
    await api.add_run(number, **changes)
    (run,) = await api.claim()
    return run["id"], run["lease"]["token"]


async def test_a_claim_gives_runs_with_a_lease(api: Api) -> None:
    await api.add_job(retry={"attempts_max": 4})
    await api.post("/jobs/job/trigger")
    (run,) = await api.claim()
    assert (run["state"], run["worker"], run["attempt"], run["attempts_max"]) == ("running", "w", 1, 4)
    assert run["lease"] == {"token": 1, "expires_at": "2027-01-15T08:00:30Z"}


async def test_a_claim_without_work_has_no_content(api: Api) -> None:
    reply = await api.post("/runs/claim", CLAIM)
    assert (reply.status, reply.body) == (204, b"")


async def test_a_claim_takes_no_more_than_its_limit(api: Api) -> None:
    for number in range(3):
        await api.add_run(number)
    assert len(await api.claim(2)) == 2


@pytest.mark.parametrize("queue", ["work", "pull/work"])
async def test_a_queue_may_be_named_plainly_or_in_full(api: Api, queue: str) -> None:
    await api.add_run()
    assert (await api.post("/runs/claim", {"queues": [queue]})).status == 200


async def test_handlers_may_be_claimed_but_http_and_bus_not(api: Api) -> None:
    await api.store.add_runs([a_run(queue="handler/h")])
    assert (await api.post("/runs/claim", {"queues": ["handler/h"]})).status == 200
    for queue in ("bus/x", "http/x", "/work", "pull/", "a/b", "work\n", ""):
        reply = await api.post("/runs/claim", {"queues": [queue]})
        assert (reply.code, reply.json["field"]) == ("invalid_request", "queues[0]"), queue


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"queues": []}, "queues"), ({"queues": "work"}, "queues"), ({"queues": ["q"] * (QUEUES_MAX + 1)}, "queues"),
        ({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"limit": "1"}, "limit"), ({"limit": True}, "limit"),
        ({"wait_seconds": -1}, "wait_seconds"), ({"wait_seconds": WAIT_SECONDS_MAX + 1}, "wait_seconds"),
        ({"worker": ""}, "worker"), ({"worker": "a\nb"}, "worker"), ({"worker": "w" * 201}, "worker"),
        ({"worker": None}, "worker"), ({"wait": 1}, "wait"),
    ],
)  # fmt: skip
async def test_a_wrong_claim_names_its_field(refusing: Api, change: dict[str, object], field: str) -> None:
    reply = await refusing.post("/runs/claim", {**CLAIM, **change})
    assert (reply.code, reply.json["field"]) == ("invalid_request", field)


async def test_a_long_poll_waits_for_a_run(api: Api) -> None:
    joined = api.claims.wake
    polling = asyncio.create_task(api.post("/runs/claim", {**CLAIM, "wait_seconds": 60}))
    await joined.wait()
    run = await api.add_run()
    await api.claims.step(api.clock.now())
    assert [each["id"] for each in (await polling).json["runs"]] == [run.id]


async def test_a_long_poll_is_sent_home_when_the_server_stops(api: Api) -> None:
    joined = api.claims.wake
    polling = asyncio.create_task(api.post("/runs/claim", {**CLAIM, "wait_seconds": 60}))
    await joined.wait()
    api.claims.close()
    waited = await polling
    assert (waited.status, waited.code, waited.headers["retry-after"]) == (503, "stopping", "1")
    late = await api.post("/runs/claim", {**CLAIM, "wait_seconds": 60})
    assert (late.status, late.code, late.headers["retry-after"]) == (503, "stopping", "1")


async def test_a_worker_that_hangs_up_while_it_waits_takes_no_run(api: Api) -> None:
    joined, hang_up = api.claims.wake, asyncio.Event()
    polling = asyncio.create_task(api.post("/runs/claim", {**CLAIM, "wait_seconds": 60}, hang_up=hang_up))
    await joined.wait()
    hang_up.set()
    await polling
    assert api.claims.waiting == 0
    run = await api.add_run()
    await api.claims.step(api.clock.now())
    assert (await api.get(f"/runs/{run.id}")).json["state"] == "pending"


async def test_a_worker_that_hangs_up_at_the_hand_over_gives_its_run_back(api: Api) -> None:
    joined, hang_up = api.claims.wake, asyncio.Event()
    polling = asyncio.create_task(api.post("/runs/claim", {**CLAIM, "wait_seconds": 60}, hang_up=hang_up))
    await joined.wait()
    run = await api.add_run()
    hang_up.set()
    await api.claims.step(api.clock.now())
    await polling
    shown = (await api.get(f"/runs/{run.id}")).json
    assert (shown["state"], shown["attempt"]) == ("pending", 0)
    assert len(await api.claim()) == 1


@pytest.mark.parametrize("seconds", [0, 60])
async def test_a_worker_that_hangs_up_when_its_run_is_claimed_gives_it_back(
    api: Api, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    hang_up, claim = asyncio.Event(), api.claims.claim

    async def claimed(*asked: Any) -> Claimed:
        found = await claim(*asked)
        hang_up.set()
        return found

    monkeypatch.setattr(api.claims, "claim", claimed)
    run = await api.add_run()
    await api.post("/runs/claim", {**CLAIM, "wait_seconds": seconds}, hang_up=hang_up)
    shown = (await api.get(f"/runs/{run.id}")).json
    assert (shown["state"], shown["attempt"]) == ("pending", 0)


async def test_a_poll_that_the_server_ends_at_the_hand_over_gives_its_run_back(api: Api) -> None:
    """At whichever turn of the event loop that is."""
    for turns in range(12):
        polling = asyncio.create_task(api.post("/runs/claim", {**CLAIM, "wait_seconds": 60}))
        await until(lambda: api.claims.waiting == 1)
        run = await api.add_run(turns)
        await api.claims.step(api.clock.now())
        for _ in range(turns):
            await asyncio.sleep(0)
        polling.cancel()
        await asyncio.wait([polling])
        if polling.cancelled():
            assert (await api.get(f"/runs/{run.id}")).json["state"] == "pending", turns
            assert len(await api.claim()) == 1


async def test_more_waiters_than_can_be_served_are_told_to_come_back(api: Api) -> None:
    work = Work(api.operations, api.claims, waiters_max=0)
    claim = next(endpoint for endpoint in work.endpoints() if endpoint.name == "claimRuns")
    request = Request[Any]({"type": "http", "user": LOCAL})
    with pytest.raises(TooManyWaiters):
        await claim.handle(Call(request, body=ClaimRequest(["work"], wait_seconds=1)))
    assert (await claim.handle(Call(request, body=ClaimRequest(["work"])))).status_code == 204


async def test_a_heartbeat_renews_the_lease_and_keeps_progress(api: Api) -> None:
    id, token = await lease(api)
    api.clock.advance(10)
    reply = await api.post(f"/runs/{id}/heartbeat", {"token": token, "progress": {"percent": 40}})
    assert reply.json == {"cancel_requested": False, "expires_at": "2027-01-15T08:00:40Z"}
    assert (await api.get(f"/runs/{id}")).json["progress"] == {"percent": 40}


async def test_a_run_is_completed_with_its_result(api: Api) -> None:
    id, token = await lease(api)
    reply = await api.post(f"/runs/{id}/complete", {"token": token, "result": {"pages": 12}})
    assert (reply.status, reply.json["state"], reply.json["result"]) == (200, "completed", {"pages": 12})


async def test_a_failed_run_is_tried_again(api: Api) -> None:
    id, token = await lease(api)
    reply = await api.post(f"/runs/{id}/fail", {"token": token, "error": "no paper", "retry_after_seconds": 20})
    assert (reply.json["state"], reply.json["error"]) == ("pending", "no paper")
    assert reply.json["due_at"] == "2027-01-15T08:00:20Z"


async def test_a_failure_that_can_not_be_retried_is_final(api: Api) -> None:
    id, token = await lease(api)
    reply = await api.post(f"/runs/{id}/fail", {"token": token, "error": "no such file", "retryable": False})
    assert reply.json["state"] == "failed"


async def test_a_stale_token_changes_nothing(api: Api) -> None:
    id, token = await lease(api)
    for path, body in [("heartbeat", {}), ("complete", {}), ("fail", {"error": "x"})]:
        reply = await api.post(f"/runs/{id}/{path}", {"token": token + 1, **body})
        assert (reply.status, reply.code) == (409, "lease_lost")
    assert (await api.get(f"/runs/{id}")).json["state"] == "running"


async def test_a_heartbeat_beyond_the_time_limit_is_told_why(api: Api) -> None:
    await api.add_job(timeouts={"execution_seconds": 10})
    await api.post("/jobs/job/trigger")
    (run,) = await api.claim()
    id, token = run["id"], run["lease"]["token"]
    api.clock.advance(11)
    reply = await api.post(f"/runs/{id}/heartbeat", {"token": token})
    assert (reply.status, reply.code) == (409, "lease_lost")
    assert f"under token {token} has ended with the time limit of the attempt; stop" in reply.json["detail"]


async def test_a_lease_that_has_ended_voids_no_report(api: Api) -> None:
    id, token = await lease(api)
    api.clock.advance(31)
    assert (await api.post(f"/runs/{id}/heartbeat", {"token": token})).status == 200
    api.clock.advance(31)
    assert (await api.post(f"/runs/{id}/complete", {"token": token})).json["state"] == "completed"


async def test_a_batch_settles_each_report_by_itself(api: Api) -> None:
    leases = [await lease(api, number) for number in range(6)]
    outcomes: list[dict[str, Any]] = [
        {"outcome": "completed", "result": 7},
        {"outcome": "succeeded", "result": 8},
        {"outcome": "failed", "error": "x", "retryable": False},
        {"outcome": "cancelled", "reason": "stopped"},
        {"outcome": "released"},
        {"outcome": "deferred", "until": "2027-01-16T00:00:00Z"},
    ]
    reports = [{"id": id, "token": token, **outcome} for (id, token), outcome in zip(leases, outcomes, strict=True)]
    reply = await api.post("/runs/settle", reports)
    assert reply.status == 200
    states = ["completed", "completed", "failed", "cancelled", "pending", "pending"]
    assert reply.json == [{"id": id, "state": state} for (id, _), state in zip(leases, states, strict=True)]
    assert (await api.get(f"/runs/{leases[1][0]}")).json["result"] == 8
    assert (await api.get(f"/runs/{leases[5][0]}")).json["due_at"] == "2027-01-16T00:00:00Z"


async def test_a_bad_report_does_not_spoil_its_batch(api: Api) -> None:
    (id, token), (second, second_token) = await lease(api, 0), await lease(api, 1)
    reports = [
        {"id": "nope", "token": 1, "outcome": "completed"},
        {"id": "0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37", "token": 1, "outcome": "completed"},
        {"id": id, "token": token + 1, "outcome": "completed"},
        {"id": id, "token": token, "outcome": "deferred"},
        {"id": id, "token": token, "outcome": "deferred", "until": "1950-01-01T00:00:00Z"},
        {"id": id, "token": token, "outcome": "completed", "result": "x" * 65_537},
        {"id": id, "token": token, "outcome": "completed"},
        {"id": id, "token": token, "outcome": "completed"},
        {"id": second, "token": second_token, "outcome": "completed"},
    ]
    answers = (await api.post("/runs/settle", reports)).json
    assert [answer.get("state", answer.get("problem", {}).get("code")) for answer in answers] == [
        "not_found", "not_found", "lease_lost", "invalid_request", "invalid_request", "invalid_request",
        "completed", "completed", "completed",
    ]  # fmt: skip


async def test_a_batch_that_can_not_be_read_settles_nothing(api: Api) -> None:
    id, token = await lease(api)
    reply = await api.post("/runs/settle", [{"id": id, "token": token, "outcome": "completed"}, {"id": id, "tokn": 1}])
    assert (reply.code, reply.json["field"]) == ("invalid_request", "[1].tokn")
    assert (await api.get(f"/runs/{id}")).json["state"] == "running"


async def test_an_empty_batch_is_fine(api: Api) -> None:
    assert (await api.post("/runs/settle", [])).json == []


async def test_a_cancelled_worker_reports_the_stop(api: Api) -> None:
    id, token = await lease(api)
    await api.post(f"/runs/{id}/cancel")
    reply = await api.post(f"/runs/{id}/fail", {"token": token, "error": "stopped"})
    assert reply.json["state"] == "cancelled"


async def test_a_claimer_that_leaves_while_the_store_answers_takes_nothing(api: Api) -> None:
    """The store carries out what it was handed, even if nobody waits for the answer any more."""
    run = await api.add_run()
    asked, go_on = asyncio.Event(), asyncio.Event()

    class SlowClaiming(Claiming):
        async def claim(self, *args: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await super().claim(*args)

    claiming = SlowClaiming(api.operations.context, api.operations.settling, api.operations.reconciler.holding)
    claims = Claims(claiming, api.clock, api.operations.context.signal)
    polling = asyncio.create_task(claims.claim(["pull/work"], 1, "w"))
    await asked.wait()
    polling.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await polling
    shown = (await api.get(f"/runs/{run.id}")).json
    assert (shown["state"], shown["attempt"]) == ("pending", 0)
