"""Runs over HTTP, as people see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horarium.model import State
from tests.waiting import until

from .conftest import Api


async def test_a_run_is_shown(api: Api) -> None:
    run = await api.add_run(payload=b'{"a":1}')
    shown = (await api.get(f"/runs/{run.id}")).json
    assert (shown["state"], shown["queue"], shown["payload"]) == ("pending", "pull/work", {"a": 1})
    assert shown["idempotency_key"] == run.id
    assert shown["history"][0]["state"] == "pending"


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_a_retry_with_a_key_makes_one_run_of_each_run(api: Api, overlap: str) -> None:
    await api.add_job(overlap=overlap)
    old = [(await api.post("/jobs/job/trigger", headers={"idempotency-key": "k"})).json["id"]]
    await api.post(f"/runs/{old[0]}/cancel")
    for _ in range(2):
        old.append((await api.post("/runs", {"target": {"type": "queue", "queue": "work"}})).json["id"])
        await api.post(f"/runs/{old[-1]}/cancel")
    made = set()
    for id in old:
        how: dict[str, Any] = {"headers": {"idempotency-key": "k"}}
        replies = await asyncio.gather(*(api.post(f"/runs/{id}/retry", {"payload": 1}, **how) for _ in range(5)))
        (new,) = {reply.json["id"] for reply in replies}
        made.add(new)
        assert {reply.status for reply in replies} == {201}
    assert len(made - {*old}) == 3
    without = [(await api.post(f"/runs/{old[-1]}/retry")).json["id"] for _ in range(2)]
    assert len({*without} - made) == 2
    spaced = await api.post(f"/runs/{old[-1]}/retry", headers={"idempotency-key": "a b"})
    assert spaced.json["field"] == "Idempotency-Key"


@pytest.mark.parametrize("id", ["nope", "0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37", "a" * 65])
async def test_an_unknown_run_is_not_found(refusing: Api, id: str) -> None:
    for method, path, body in [
        ("GET", "", None), ("POST", "/cancel", None), ("POST", "/retry", None), ("POST", "/heartbeat", {"token": 1}),
        ("POST", "/complete", {"token": 1}), ("POST", "/fail", {"token": 1, "error": "x"}),
    ]:  # fmt: skip
        assert (await refusing.send(method, f"/runs/{id}{path}", body)).code == "not_found", path


async def test_a_caller_waits_for_the_end_of_a_run(api: Api) -> None:
    run = await api.add_run()
    assert (await api.get(f"/runs/{run.id}?wait_seconds=0.01")).json["state"] == "pending"
    waiting = asyncio.create_task(api.get(f"/runs/{run.id}?wait_seconds=60"))
    await until(lambda: api.operations.waiting._waiting == 1)
    (claimed,) = await api.claim()
    await api.post(f"/runs/{run.id}/complete", {"token": claimed["lease"]["token"], "result": [1]})
    assert ((await waiting).json["state"], (await waiting).json["result"]) == ("completed", [1])
    assert (await api.get(f"/runs/{run.id}?wait_seconds=60")).json["state"] == "completed"
    for wrong in ("61", "-1", "soon"):
        assert (await api.get(f"/runs/{run.id}?wait_seconds={wrong}")).status == 422


async def test_a_server_that_stops_lets_those_go_that_wait(api: Api) -> None:
    run = await api.add_run()
    waiting = asyncio.create_task(api.get(f"/runs/{run.id}?wait_seconds=60"))
    await until(lambda: api.operations.waiting._waiting == 1)
    api.operations.waiting.close()
    assert (await waiting).json["state"] == "pending"
    assert (await api.get(f"/runs/{run.id}?wait_seconds=60")).json["state"] == "pending"


async def test_a_run_is_retried_with_another_payload(api: Api) -> None:
    run = await api.add_run(payload=b'{"a":1}', state=State.FAILED)
    again = (await api.post(f"/runs/{run.id}/retry", {"payload": {"a": 2}})).json
    assert (again["payload"], again["id"] == run.id) == ({"a": 2}, False)
    for same in (None, {}, {"payload": None}):
        assert (await api.post(f"/runs/{run.id}/retry", same)).json["payload"] == {"a": 1}
    assert (await api.post(f"/runs/{run.id}/retry", {"pay": 1})).status == 422
    await api.add_job("job", target={"type": "queue", "queue": "work", "payload": 7})
    planned = (await api.post("/jobs/job/trigger")).json["id"]
    await api.post(f"/runs/{planned}/cancel")
    assert (await api.post(f"/runs/{planned}/retry", {"payload": 8})).json["payload"] == 8
    assert (await api.post(f"/runs/{planned}/retry")).json["payload"] is None  # the job's own


async def test_runs_are_listed_newest_first_in_pages(api: Api) -> None:
    runs = [await api.add_run(number) for number in range(3)]
    first = (await api.get("/runs?limit=2")).json
    assert [run["id"] for run in first["items"]] == [runs[2].id, runs[1].id]
    rest = (await api.get(f"/runs?limit=2&cursor={first['next_cursor']}")).json
    assert ([run["id"] for run in rest["items"]], rest["next_cursor"]) == ([runs[0].id], None)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("state=pending", [1, 0]),
        ("state=running,completed", [2]),
        ("state=running&state=pending", [2, 1, 0]),
        ("queue=work", [2, 1, 0]),
        ("queue=pull/work", [2, 1, 0]),
        ("queue=http", []),
        ("job=other", []),
        ("since=2027-01-15T07:00:00.001Z", [2, 1]),
        ("until=2027-01-15T08:00:00.001%2B01:00", [0]),
        ("since=1950-01-01T00:00:00Z&until=9000-01-01T00:00:00Z", [2, 1, 0]),
        ("until=2027-01-15T08:00:00.001+01:00", [0]),
    ],
)
async def test_runs_are_found(api: Api, query: str, numbers: list[int]) -> None:
    runs = [await api.add_run(number, priority=number // 2) for number in range(3)]
    await api.claim()
    items = (await api.get(f"/runs?{query}")).json["items"]
    assert [run["id"] for run in items] == [runs[number].id for number in numbers]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/runs?state=done", "state[0]"), ("/runs?limit=0", "limit"), ("/runs?limit=201", "limit"),
        ("/runs?limit=", "limit"), ("/runs?limit=1&limit=2", "limit"), ("/runs?since=yesterday", "since"),
        ("/runs?since=2027-01-15T08:00:00", "since"), ("/runs?since=0.5", "since"),
        ("/runs?job=%00", "job"), ("/runs?queue=a%0a", "queue"), ("/runs?stat=running", "stat"),
        ("/jobs?label=a", "label[0]"), ("/jobs?label=a%3D%00", "label[0]"), ("/jobs?prefix=a/b", "prefix"),
        ("/jobs?enabled=maybe", "enabled"), ("/jobs/job/fires?count=0", "count"), ("/jobs/job/fires?count=x", "count"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_named(refusing: Api, path: str, field: str) -> None:
    reply = await refusing.get(path)
    assert (reply.code, reply.json["field"]) == ("invalid_request", field)


@pytest.mark.parametrize("cursor", ["x", "!!!", "MTpydW5zOi4u", "%ff", "MTpqb2JzOmE", "Mjpqb2JzOmE", "a" * 400])
async def test_a_cursor_that_is_not_ours_is_refused(refusing: Api, cursor: str) -> None:
    reply = await refusing.get(f"/runs?cursor={cursor}")
    assert (reply.status, reply.code) == (400, "invalid_cursor" if cursor != "%ff" else "malformed_request")


async def test_a_cursor_belongs_to_its_list(api: Api) -> None:
    for name in ("a", "b"):
        await api.add_job(name)
    cursor = (await api.get("/jobs?limit=1")).json["next_cursor"]
    assert (await api.get(f"/runs?cursor={cursor}")).code == "invalid_cursor"


async def test_a_pending_run_is_cancelled_at_once(api: Api) -> None:
    run = await api.add_run()
    reply = await api.post(f"/runs/{run.id}/cancel", {"reason": "wrong customer"})
    assert (reply.status, reply.json["state"], reply.json["error"]) == (200, "cancelled", "wrong customer")


async def test_a_running_run_is_asked_to_stop(api: Api) -> None:
    run = await api.add_run()
    (claimed,) = await api.claim()
    assert (await api.post(f"/runs/{run.id}/cancel")).json["state"] == "cancelling"
    pulse = (await api.post(f"/runs/{run.id}/heartbeat", {"token": claimed["lease"]["token"]})).json
    assert pulse["cancel_requested"] is True


async def test_a_finished_run_can_not_be_cancelled(api: Api) -> None:
    run = await api.add_run()
    await api.post(f"/runs/{run.id}/cancel")
    assert (await api.post(f"/runs/{run.id}/cancel")).code == "state_conflict"


async def test_a_cancelled_run_is_retried_as_a_new_one(api: Api) -> None:
    run = await api.add_run(payload=b"[1]")
    assert (await api.post(f"/runs/{run.id}/retry")).code == "state_conflict"
    await api.post(f"/runs/{run.id}/cancel")
    reply = await api.post(f"/runs/{run.id}/retry")
    assert reply.status == 201
    assert reply.json["id"] != run.id
    assert reply.headers["location"] == f"/api/v1/runs/{reply.json['id']}"
    assert (await api.get(f"/runs/{run.id}")).json["state"] == State.CANCELLED
    assert (await api.claim())[0]["payload"] == [1]
