"""One-off runs over the wire, and many runs retried or cancelled in one request."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.model import State
from horarium.testing.values import a_finished_run

from .conftest import Api

QUEUE = {"type": "queue", "queue": "work", "payload": {"n": 1}}
TARGETS: list[tuple[dict[str, Any], str]] = [
    (QUEUE, "pull/work"),
    ({"type": "http", "url": "https://example.com/x", "body": {"a": 1}}, "http"),
    ({"type": "handler", "name": "report", "args": {"n": 1}}, "handler/report"),
    ({"type": "bus", "payload": [1]}, "bus/default"),
]


async def add_failed(api: Api, count: int, **changes: Any) -> list[str]:
    runs = [
        a_finished_run(number, queue="pull/work", state=State.FAILED, **{"error": "it broke", **changes})
        for number in range(count)
    ]
    assert await api.store.add_runs(runs) == [True] * count
    return [run.id for run in runs]


async def bulk(api: Api, what: str, **body: Any) -> dict[str, Any]:
    reply = await api.post(f"/runs/{what}", body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json
    return answer


async def pending(api: Api) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await api.get("/runs?state=pending&limit=200")).json["items"]
    return items


# ---- one-off runs


@pytest.mark.parametrize(("target", "queue"), TARGETS, ids=lambda each: str(each)[:20])
async def test_a_run_of_each_target_is_added(api: Api, target: dict[str, Any], queue: str) -> None:
    reply = await api.post("/runs", {"target": target})
    assert (reply.status, reply.json["queue"], reply.json["job"]) == (201, queue, None)
    assert reply.headers["location"] == f"/api/v1/runs/{reply.json['id']}"
    assert (reply.json["state"], reply.json["cause"]) == ("pending", "enqueued")
    assert len(api.checked) == 1, "the target is checked as that of a job"


async def test_a_run_carries_the_payload_of_its_target_or_its_own(api: Api) -> None:
    own = (await api.post("/runs", {"target": QUEUE})).json
    given = (await api.post("/runs", {"target": QUEUE, "payload": [2]})).json
    assert (own["payload"], given["payload"]) == ({"n": 1}, [2])
    assert {str(run["payload"]) for run in await api.claim(2)} == {"{'n': 1}", "[2]"}


async def test_a_run_is_due_when_it_was_asked_for(api: Api) -> None:
    delayed = (await api.post("/runs", {"target": QUEUE, "delay_seconds": 90.5})).json
    at = (await api.post("/runs", {"target": QUEUE, "at": "2027-01-15T10:00:00+01:00", "priority": 7})).json
    assert (delayed["due_at"], at["due_at"]) == ("2027-01-15T08:01:30.500000Z", "2027-01-15T09:00:00Z")
    assert at["priority"] == 7
    assert await api.claim() == []


async def test_policies_of_a_run_are_its_own(api: Api) -> None:
    await api.post("/runs", {"target": QUEUE, "retry": {"attempts_max": 1}, "timeouts": {"heartbeat_seconds": 5}})
    (run,) = await api.claim()
    assert (run["attempts_max"], run["lease"]["expires_at"]) == (1, "2027-01-15T08:00:05Z")
    report = {"token": run["lease"]["token"], "error": "no"}
    assert (await api.post(f"/runs/{run['id']}/fail", report)).json["state"] == "failed"
    assert (await api.post(f"/runs/{run['id']}/fail", report)).status == 200, "the same report again"


async def test_a_unique_key_is_held_by_one_run(api: Api) -> None:
    body = {"target": QUEUE, "unique_key": "k"}
    first, second = await api.post("/runs", body), await api.post("/runs", {**body, "payload": 9})
    assert (first.status, second.status, second.json["id"]) == (201, 200, first.json["id"])
    keyed = {"headers": {"idempotency-key": "k"}}
    third, fourth = (
        await api.post("/runs", {"target": QUEUE}, **keyed),
        await api.post("/runs", {"target": QUEUE}, **keyed),
    )
    assert (third.status, fourth.status, fourth.json["id"]) == (201, 200, third.json["id"])
    assert third.json["id"] != first.json["id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "target"), ({"target": {"type": "external"}}, "target"),
        ({"target": {"type": "queue"}}, "target.queue"), ({"target": {"type": "x"}}, "target.type"),
        ({"target": QUEUE, "at": "2027-01-15T08:00:00Z", "delay_seconds": 1}, "delay_seconds"),
        ({"target": QUEUE, "at": "2027-01-15T08:00:00"}, "at"), ({"target": QUEUE, "at": "1960-01-15T08:00:00Z"}, "at"),
        ({"target": QUEUE, "delay_seconds": -1}, "delay_seconds"),
        ({"target": QUEUE, "unique_key": "é" * 101}, "unique_key"),
        ({"target": QUEUE, "retries": 1}, "retries"), ({"target": QUEUE, "priority": 1_001}, "priority"),
        ({"target": {"type": "handler", "name": "f"}, "payload": 3}, "payload"),
        ({"target": QUEUE, "payload": "x" * 262_144}, "payload"),
    ],
)  # fmt: skip
async def test_a_run_that_is_wrong_is_refused(refusing: Api, body: dict[str, Any], field: str) -> None:
    reply = await refusing.post("/runs", body)
    assert (reply.status, reply.code, reply.json["field"]) == (422, "invalid_request", field)


async def test_each_run_of_a_batch_is_judged_by_itself(api: Api) -> None:
    runs = [
        {"target": QUEUE, "unique_key": "k"},
        {"target": {}},
        {"target": QUEUE, "unique_key": "k"},
        {"target": QUEUE},
    ]
    reply = await api.post("/runs/batch", {"runs": runs})
    assert [each["outcome"] for each in reply.json] == ["created", "failed", "exists", "created"]
    assert reply.json[0]["id"] == reply.json[2]["id"]
    assert (reply.json[1]["id"], reply.json[1]["problem"]["code"]) == (None, "invalid_request")
    assert len(await pending(api)) == 2


async def test_a_batch_that_is_sent_again_makes_no_run_twice(api: Api) -> None:
    how = {"headers": {"idempotency-key": "once"}}
    batch = {"runs": [{"target": QUEUE}] * 1_000}
    first, again = (
        (await api.post("/runs/batch", batch, **how)).json,
        (await api.post("/runs/batch", batch, **how)).json,
    )
    assert {each["outcome"] for each in first} == {"created"}
    assert [(each["id"], each["outcome"]) for each in again] == [(each["id"], "exists") for each in first]
    assert (await api.post("/runs/batch", {"runs": [{}] * 1_001})).code == "invalid_request"


# ---- many at once


async def test_a_filter_is_counted_retried_once_and_goes_on_with_what_failed_since(api: Api) -> None:
    await add_failed(api, 3)
    await add_failed_job(api)
    assert await bulk(api, "retry", state="failed", queue="work", dry_run=True) == {"matched": 4, "done": 0}
    assert await pending(api) == []
    assert await bulk(api, "retry", state="failed", queue="work") == {"matched": 4, "done": 4}
    again = await bulk(api, "retry", state="failed", queue="work")
    assert again == {"matched": 4, "done": 0, "left": {"retried_before": 4}}
    assert await bulk(api, "retry", state="failed", queue="work", dry_run=True) == again, "a count says so too"
    assert sorted(run["job"] or "" for run in await pending(api)) == ["", "", "", "job"]


async def add_failed_job(api: Api, **fields: Any) -> str:
    """A job, and a run of it that failed."""
    job = await api.add_job(**fields)
    run = (await api.post(f"/jobs/{job['name']}/trigger", {"payload": "its own"})).json
    (claimed,) = await api.claim()
    body = {"token": claimed["lease"]["token"], "error": "it broke", "retryable": False}
    assert (await api.post(f"/runs/{run['id']}/fail", body)).json["state"] == "failed"
    return str(run["id"])


@pytest.mark.parametrize(
    ("filter", "matched"),
    [
        ({"job": "job"}, 0), ({"queue": "work"}, 3), ({"queue": "pull/work"}, 3), ({"queue": "http"}, 0),
        ({"state": ["failed", "cancelled"]}, 3), ({"state": "skipped"}, 0), ({"error_contains": "broke"}, 3),
        ({"error_contains": "Broke"}, 0), ({"since": "2027-01-15T07:00:00.001Z"}, 2),
        ({"until": "2027-01-15T07:00:00.001Z"}, 1),
    ],
)  # fmt: skip
async def test_the_filter_is_that_of_a_list(api: Api, filter: dict[str, Any], matched: int) -> None:
    await api.add_job()
    await add_failed(api, 3)
    assert await bulk(api, "retry", dry_run=True, **filter) == {"matched": matched, "done": 0}


@pytest.mark.parametrize("what", ["retry", "cancel"])
async def test_a_job_that_is_not_there_is_not_found(api: Api, what: str) -> None:
    await add_failed_job(api)
    for dry_run in (True, False):
        reply = await api.post(f"/runs/{what}", {"job": "jobb", "dry_run": dry_run})
        assert (reply.status, reply.json["detail"]) == (404, "there is no job named 'jobb'")
    assert (await bulk(api, "cancel", job="job"))["matched"] == 0
    await api.send("DELETE", "/jobs/job")
    assert await bulk(api, "retry", job="job") == {"matched": 1, "done": 0, "left": {"job_deleted": 1}}


async def test_runs_are_named_by_their_ids(api: Api) -> None:
    ids = await add_failed(api, 3)
    done = await bulk(api, "retry", ids=[*ids[:2], ids[0], "0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37"])
    assert done == {"matched": 2, "done": 2}


async def test_a_cursor_goes_through_all_batches(api: Api) -> None:
    await add_failed(api, 1_000)
    older = [a_finished_run(-number, queue="pull/work", state=State.FAILED, error="e") for number in range(1, 6)]
    await api.store.add_runs(older)
    counted = await bulk(api, "retry", state="failed", dry_run=True)
    assert counted == {"matched": 1_005, "done": 0}
    first = await bulk(api, "retry", state="failed")
    assert (first["matched"], first["done"]) == (1_000, 1_000)
    rest = await bulk(api, "retry", state="failed", cursor=first["cursor"])
    assert rest == {"matched": 5, "done": 5}
    assert (await api.post("/runs/cancel", {"state": "pending", "cursor": first["cursor"]})).code == "invalid_cursor"


async def test_retries_fall_due_at_the_pace_that_is_asked_for(api: Api) -> None:
    await add_failed(api, 3)
    await add_failed_job(api)
    await bulk(api, "retry", state="failed", per_second=0.5)
    due = sorted(run["due_at"] for run in await pending(api))
    assert due == [f"2027-01-15T08:00:0{seconds}Z" for seconds in (0, 2, 4, 6)]


@pytest.mark.parametrize(("overlap", "done"), [("skip", 1), ("buffer_one", 2), ("buffer_all", 3), ("cancel_other", 1)])
async def test_a_policy_lets_as_many_be_retried_as_may_run(api: Api, overlap: str, done: int) -> None:
    await api.add_job(overlap="allow")
    for _ in range(3):
        await api.post("/jobs/job/trigger")
    for run in await api.claim(3):
        body = {"token": run["lease"]["token"], "error": "no", "retryable": False}
        await api.post(f"/runs/{run['id']}/fail", body)
    await api.send("PATCH", "/jobs/job", {"overlap": overlap})
    answer = await bulk(api, "retry", job="job")
    assert (answer["matched"], answer["done"]) == (3, done)
    assert answer.get("left", {}) == ({"overlap": 3 - done} if done < 3 else {})
    assert len(await pending(api)) == done
    assert (await api.get("/runs?state=skipped")).json["items"] == [], "what may not run now can be asked for later"


@pytest.mark.parametrize("overlap", ["allow", "buffer_all"])
async def test_a_run_without_a_key_of_its_job_keeps_no_other_from_its_retry(api: Api, overlap: str) -> None:
    await api.add_job(overlap=overlap)
    for customer in ({"customer": "a"}, {}, {"customer": "b"}):
        await api.post("/jobs/job/trigger", {"payload": customer})
        (run,) = await api.claim()
        body = {"token": run["lease"]["token"], "error": "no", "retryable": False}
        await api.post(f"/runs/{run['id']}/fail", body)
    await api.send("PATCH", "/jobs/job", {"fair": "{payload.customer}"})
    answer = await bulk(api, "retry", job="job")
    assert answer == {"matched": 3, "done": 2, "left": {"key_missing": 1}}
    assert sorted(run["fair"] for run in await pending(api)) == ["a", "b"]
    again = await bulk(api, "retry", job="job")
    assert again == {"matched": 3, "done": 0, "left": {"retried_before": 2, "key_missing": 1}}


async def test_runs_of_a_deleted_job_are_left(api: Api) -> None:
    await add_failed_job(api)
    await api.send("DELETE", "/jobs/job")
    assert await bulk(api, "retry", job="job") == {"matched": 1, "done": 0, "left": {"job_deleted": 1}}


async def test_what_waits_is_cancelled_and_what_runs_is_asked_to_stop(api: Api) -> None:
    for number in range(3):
        await api.add_run(number)
    (claimed,) = await api.claim()
    assert await bulk(api, "cancel", queue="work", dry_run=True) == {"matched": 3, "done": 0}
    assert await bulk(api, "cancel", queue="work", reason="not needed") == {"matched": 3, "done": 3}
    states = {run["id"]: run["state"] for run in (await api.get("/runs")).json["items"]}
    assert sorted(states.values()) == ["cancelled", "cancelled", "cancelling"]
    assert states[claimed["id"]] == "cancelling"
    assert await bulk(api, "cancel", queue="work") == {"matched": 0, "done": 0}


async def test_a_second_is_what_one_request_cancels_at_a_pace(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await api.add_run(number)
    first = await bulk(api, "cancel", queue="work", per_second=2)
    assert (first["matched"], first["done"]) == (2, 2)
    api.clock.advance(1)
    second = await bulk(api, "cancel", queue="work", per_second=2, cursor=first["cursor"])
    assert (second["done"], len(await pending(api))) == (2, 1)
    monkeypatch.setattr("horarium.api.bulk.PACE_WAIT_SECONDS_MAX", 0)
    early = await bulk(api, "cancel", queue="work", per_second=2, cursor=second["cursor"])
    assert early == {"matched": 0, "done": 0, "cursor": second["cursor"]}


@pytest.mark.parametrize(
    ("what", "body", "field"),
    [
        ("retry", {}, None), ("cancel", {"dry_run": True}, None), ("retry", {"state": "completed"}, "state"),
        ("retry", {"ids": [], "job": "a"}, "ids"), ("cancel", {"state": ["pending", "failed"]}, "state"),
        ("retry", {"job": "a", "per_second": 0}, "per_second"), ("retry", {"ids": ["x"]}, "ids[0]"),
        ("cancel", {"job": "a", "stat": 1}, "stat"), ("retry", {"since": "yesterday"}, "since"),
    ],
)  # fmt: skip
async def test_a_selection_that_is_wrong_is_refused(
    refusing: Api, what: str, body: dict[str, Any], field: str | None
) -> None:
    reply = await refusing.post(f"/runs/{what}", body)
    assert (reply.status, reply.code, reply.json.get("field")) == (422, "invalid_request", field)


# ---- who did it


ADMIN = {"authorization": "Bearer first-key-1234"}


async def test_each_run_is_in_the_audit_and_bound_keys_keep_to_their_queues(locked_api: Api) -> None:
    api = locked_api
    roles = ["editor", "worker"]
    made = await api.post("/keys", {"name": "bound", "roles": roles, "queues": ["work"]}, headers=ADMIN)
    bound = {"authorization": f"Bearer {made.json['key']}"}
    others = {"target": {"type": "queue", "queue": "other"}}
    batch = {"runs": [{"target": QUEUE}, others]}
    mine, other = (await api.post("/runs/batch", batch, headers=bound)).json
    assert (mine["outcome"], other["problem"]["code"]) == ("created", "forbidden")
    await api.post("/runs", others, headers=ADMIN)
    cancelled = await api.post("/runs/cancel", {"state": "pending", "reason": "no"}, headers=bound)
    assert cancelled.json == {"matched": 1, "done": 1}, "the other queue's run is none of theirs"
    retried = await api.post("/runs/retry", {"state": "cancelled"}, headers=bound)
    assert retried.json == {"matched": 1, "done": 1}
    lines = (await api.get("/audit?actor=bound", headers=ADMIN)).json["items"]
    run = f"run/{mine['id']}"
    assert sorted((line["action"], line["object"]) for line in lines if line["outcome"] == "done") == [
        ("run.cancel", run), ("run.create", run), ("run.retry", run),
    ]  # fmt: skip


async def test_retries_of_jobs_are_in_the_audit_under_either_policy(locked_api: Api) -> None:
    api = locked_api
    for name, overlap in (("free", "allow"), ("turn", "buffer_all")):
        definition = {"name": name, "trigger": {"type": "interval", "every_seconds": 60}, "target": QUEUE}
        await api.post("/jobs", {**definition, "overlap": overlap}, headers=ADMIN)
        run = (await api.post(f"/jobs/{name}/trigger", headers=ADMIN)).json
        await api.post(f"/runs/{run['id']}/cancel", headers=ADMIN)
        body = {"job": name, "state": "cancelled"}
        assert (await api.post("/runs/retry", body, headers=ADMIN)).json == {"matched": 1, "done": 1}
        (line,) = (await api.get(f"/audit?action=run.retry&object=run/{run['id']}", headers=ADMIN)).json["items"]
        assert line["after"]["job"] == name
