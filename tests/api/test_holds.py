"""The endpoints under /holds, and what others say of a hold."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from horarium.clock import SECOND
from horarium.model import Plan
from horarium.testing.values import NOW
from tests.api.conftest import Api, a_definition

HOURLY = {"type": "cron", "expression": "0 * * * *"}
AFTER = {"type": "after", "jobs": ["extract"], "within": "day"}


async def test_a_hold_from_its_making_to_its_end() -> None:
    api = Api()
    made = await api.post("/holds", {"scope": {"queue": "q"}, "reason": "moving", "until": "2199-01-01T00:00:00Z"})
    assert made.status == 201, made.body
    id = made.json["id"]
    assert dict(made.headers)["location"] == f"/api/v1/holds/{id}"
    assert (made.json["active"], made.json["until"], made.json["from"]) == (
        True,
        "2199-01-01T00:00:00Z",
        made.json["created_at"],
    )
    assert (await api.get("/holds?active=true")).json["items"] == [made.json]
    changed = await api.send("PATCH", f"/holds/{id}", {"until": None, "reason": "longer"})
    assert (changed.json["until"], changed.json["reason"]) == (None, "longer")
    assert (await api.send("DELETE", f"/holds/{id}", None)).status == 204
    assert (await api.get("/holds")).json["items"] == []
    shown = (await api.get(f"/holds/{id}")).json
    assert shown["lifted_at"] is not None
    assert not shown["active"]
    assert (await api.send("DELETE", "/holds/none", None)).code == "not_found"


async def test_what_can_not_be_held_is_refused_with_its_field() -> None:
    api = Api()
    for body, field in (
        ({"scope": {}, "reason": "x"}, "scope"),
        ({"scope": {"all": True, "job": "a"}, "reason": "x"}, "scope"),
        ({"scope": {"all": True}}, "reason"),
        ({"scope": {"all": True}, "reason": "x", "missed": "maybe"}, "missed"),
        ({"scope": {"all": True}, "reason": "x", "repeat": {"trigger": {"type": "cron"}, "seconds": 5}}, "repeat"),
        ({"scope": {"all": True}, "reason": "x", "repeat": {"trigger": AFTER, "seconds": 5}}, "repeat"),
    ):
        reply = await api.post("/holds", body)
        assert (reply.status, reply.json["field"].partition(".trigger")[0]) == (422, field), reply.body


async def test_a_hold_that_would_never_be_in_force_is_refused() -> None:
    """NOW is 2027-01-15 08:00 UTC."""
    api = Api()
    daily = {"trigger": {"type": "cron", "expression": "0 22 * * *"}, "seconds": 3600}
    over = {"trigger": {"type": "once", "at": "2027-01-15T06:00:00Z"}, "seconds": 3600}
    held = {"scope": {"all": True}, "reason": "x"}
    refused = {**held, "repeat": daily, "until": "2027-01-15T21:00:00Z"}
    reply = await api.post("/holds", refused)
    assert (reply.status, reply.code, reply.json["field"]) == (422, "invalid_request", "until"), reply.body
    assert "2027-01-15T22:00:00Z" in reply.json["detail"]
    reply = await api.post("/holds", {**held, "repeat": over})
    assert (reply.status, reply.json["field"]) == (422, "repeat.trigger"), reply.body
    under_way = {**over, "seconds": 3 * 3600}
    assert (await api.post("/holds", {**held, "repeat": under_way})).json["active"] is True
    made = await api.post("/holds", {**refused, "until": "2027-01-15T22:30:00Z"})
    assert made.status == 201, made.body
    changed = await api.send("PATCH", f"/holds/{made.json['id']}", {"until": "2027-01-15T22:00:00Z"})
    assert (changed.status, changed.json["field"]) == (422, "until"), changed.body
    again = await api.post("/holds", {**held, "repeat": daily})
    api.clock.advance(20 * 3600)
    ended = await api.send("PATCH", f"/holds/{again.json['id']}", {"until": "2027-01-16T05:00:00Z"})
    assert ended.status == 200, ended.body  # it was in force


async def test_stats_say_which_queues_are_held() -> None:
    api = Api()
    for queue in ("q", "p"):
        await api.post("/runs", {"target": {"type": "queue", "queue": queue}})

    async def held() -> tuple[bool, dict[str, bool]]:
        stats = (await api.get("/stats")).json
        return stats["hold"], {each["queue"]: each["hold"] for each in stats["queues"]}

    assert await held() == (False, {"pull/q": False, "pull/p": False})
    await api.post("/holds", {"scope": {"queue": "q"}, "reason": "moving"})
    assert await held() == (False, {"pull/q": True, "pull/p": False})
    await api.post("/holds", {"scope": {"all": True}, "reason": "moving"})
    assert await held() == (True, {"pull/q": True, "pull/p": True})


async def test_by_hand_it_is_201_and_the_run_says_that_it_waits() -> None:
    api = Api()
    await api.post("/jobs", a_definition("a"))
    await api.post("/holds", {"scope": {"all": True}, "reason": "new disks"})
    for path, body in (("/jobs/a/trigger", {}), ("/runs", {"target": {"type": "queue", "queue": "q"}})):
        reply = await api.post(path, body)
        assert reply.status in (200, 201, 202), reply.body
        last: dict[str, Any] = reply.json["history"][-1]
        assert last["message"].startswith("waits until it is lifted"), last
        assert last["message"].endswith("new disks"), last


async def test_what_is_done_again_or_backfilled_under_a_hold_says_that_it_waits() -> None:
    api = Api()
    target = {"type": "queue", "queue": "q"}
    once = {"attempts_max": 1}
    for name, overlap in (("free", "allow"), ("in-turn", "buffer_all")):
        await api.post("/jobs", a_definition(name, target=target, retry=once, overlap=overlap, trigger=HOURLY))
        await api.post(f"/jobs/{name}/trigger")
    await api.post("/runs", {"target": target, "retry": once})
    rows = [{"target": target, "retry": once}] * 2
    batch = (await api.post("/batches", {"runs": rows})).json["id"]
    claimed = (await api.post("/runs/claim", {"queues": ["q"], "limit": 9, "worker": "w"})).json["runs"]
    assert len(claimed) == 5
    for run in claimed:
        await api.post(f"/runs/{run['id']}/fail", {"token": run["lease"]["token"], "error": "no"})
    await api.post("/holds", {"scope": {"all": True}, "reason": "new disks"})
    assert (await api.post(f"/batches/{batch}/retry")).json["failed"] == 0
    assert (await api.post("/runs/retry", {"state": "failed", "queue": "q"})).json["done"] == 3
    span = {"start": "2027-01-13T00:00:00Z", "end": "2027-01-14T00:00:00Z"}
    backfilled = (await api.post("/jobs/free/backfill", span)).json["runs"]
    waiting = (await api.get("/runs?state=pending&limit=200")).json["items"]
    assert len(waiting) == 5 + len(backfilled) > 5
    for run in waiting:
        assert run["history"][-1]["message"].startswith("waits until it is lifted"), run
    assert (await api.post("/runs/claim", {"queues": ["q"], "limit": 9, "worker": "w"})).status == 204


async def test_what_comes_next_says_that_it_is_held_and_what_becomes_of_it() -> None:
    api = Api()
    await api.post("/jobs", a_definition("daily", trigger={"type": "cron", "expression": "0 12 * * *"}))
    plain = (await api.get("/upcoming")).json["items"]
    assert [("held" in each, each["fire_at"]) for each in plain] == [(False, "2027-01-15T12:00:00Z")]
    hold = {"scope": {"job": "daily"}, "reason": "moving", "until": "2027-01-15T20:00:00Z", "missed": "skip"}
    made = (await api.post("/holds", hold)).json
    today, tomorrow = (await api.get("/upcoming?until=2027-01-17T00:00:00Z")).json["items"]
    assert today["held"] == {"id": made["id"], "until": hold["until"], "reason": "moving", "missed": "skip"}
    assert "held" not in tomorrow
    await api.send("PATCH", f"/holds/{made['id']}", {"until": None})
    assert [each["held"]["until"] for each in (await api.get("/upcoming")).json["items"]] == [None]


async def test_an_explanation_says_one_thing_of_a_fire_time_in_a_hold(api: Api) -> None:
    await api.post("/jobs", a_definition("daily", trigger={"type": "cron", "expression": "0 12 * * *"}))
    hold = {"scope": {"job": "daily"}, "reason": "moving", "until": "2027-01-15T20:00:00Z", "missed": "skip"}
    made = (await api.post("/holds", hold)).json["id"]
    told = (await api.get("/jobs/daily/explain?at=2027-01-15T12:00:00Z")).json
    assert (told["fires"], told["disposition"]) == (False, "held")
    kept = f"held by {made}: moving"
    assert told["reason"] == f"the rule fires then; {kept}: it does not run, neither then nor when the hold ends"
    await api.post("/jobs/daily/fires/2027-01-15T12:00:00Z/move", {"to": "2027-01-15T13:00:00Z"})
    told = (await api.get("/jobs/daily/explain?at=2027-01-15T12:00:00Z")).json
    assert "will run" not in told["reason"]
    await api.send("DELETE", f"/holds/{made}")
    del hold["missed"]
    made = (await api.post("/holds", hold)).json["id"]
    told = (await api.get("/jobs/daily/explain?at=2027-01-15T12:00:00Z")).json
    assert told["fires"]
    assert told["reason"].endswith(
        f"; it waits until 2027-01-15T20:00:00Z: held by {made}: moving; then it is caught up, as the job says"
    )


async def test_a_hold_is_said_of_a_job_that_counts_from_ends_while_its_next_run_is_due(api: Api) -> None:
    await api.add_job("delay", trigger={"type": "interval", "every_seconds": 600, "from": "end"})
    made = (await api.post("/holds", {"scope": {"job": "delay"}, "reason": "moving"})).json["id"]
    api.clock.advance(900)
    assert f"held by {made}: moving" in (await api.get("/jobs/delay/explain")).json["reason"]


async def test_what_comes_next_of_a_fixed_delay_is_as_its_job_says() -> None:
    api = Api()
    await api.post("/jobs", a_definition("delay", trigger={"type": "interval", "every_seconds": 600, "from": "end"}))
    job = await api.operations.jobs.get_job("delay")
    shifted = replace(job, next_fire_at=(job.next_fire_at or 0) + 7 * SECOND)
    assert await api.store.commit_plans([Plan(shifted)], NOW) == [True]
    coming = (await api.get("/upcoming?limit=2")).json["items"]
    assert [each["fire_at"] for each in coming] == (await api.get("/jobs/delay/fires?count=2")).json["fires"]
    assert coming[0]["fire_at"] == (await api.get("/jobs/delay")).json["next_fire_at"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [("API.Example.com", "api.example.com"), ("api.example.com:8443", "api.example.com:8443"),
     ("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:8080", "::1:8080"), ("[::1]", "::1")],
)  # fmt: skip
async def test_a_host_is_kept_as_requests_have_it(api: Api, said: str, kept: str) -> None:
    reply = await api.post("/holds", {"scope": {"host": said}, "reason": "moving"})
    assert (reply.status, reply.json["scope"]) == (201, {"host": kept})


@pytest.mark.parametrize("said", ["http://x/", "https://x", "x/y", "x:99999", "x y", "a@x", ":80", "x:"])
async def test_what_is_no_host_is_refused_since_it_would_hold_nothing(api: Api, said: str) -> None:
    reply = await api.post("/holds", {"scope": {"host": said}, "reason": "moving"})
    assert (reply.status, reply.json["field"]) == (422, "scope.host")
