"""Fairness over the API: as a field of jobs and runs, and the weights of a queue."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Api, a_definition

RUN = {"target": {"type": "queue", "queue": "q"}, "payload": {"tenant": "acme"}, "fair": "{payload.tenant}"}


async def test_a_job_and_its_runs_carry_their_key(api: Api) -> None:
    target = {"type": "queue", "queue": "q", "payload": {"tenant": "acme"}}
    reply = await api.send("PUT", "/jobs/a", a_definition("a", fair="t:{payload.tenant}", target=target))
    assert (reply.status, reply.json["fair"]) == (201, "t:{payload.tenant}"), reply.body
    assert (await api.send("POST", "/jobs/a/trigger", None)).json["fair"] == "t:acme"
    assert (await api.send("POST", "/runs", RUN)).json["fair"] == "acme"
    assert "fair" not in (await api.send("POST", "/runs", {"target": RUN["target"]})).json


@pytest.mark.parametrize(
    ("fields", "fault"),
    [({"fair": ""}, "fair"), ({"fair": "{tenant}"}, "fair"), ({"payload": {}}, "fair"), ({"fair": 7}, "fair")],
)
async def test_a_key_that_can_not_be_is_refused(api: Api, fields: dict[str, Any], fault: str) -> None:
    reply = await api.send("POST", "/runs", {**RUN, **fields})
    assert (reply.status, reply.json["field"]) == (422, fault), reply.body


async def test_what_a_run_shows_is_when_it_fell_due(api: Api) -> None:
    for _ in range(3):
        await api.send("POST", "/runs", RUN)
    runs = (await api.send("GET", "/runs")).json["items"]
    assert all(run["due_at"] == run["created_at"] for run in runs)


async def test_the_weights_of_a_queue(api: Api) -> None:
    nothing = {"queue": "pull/q", "fair_weights": {}, "hold": False}
    assert (await api.send("GET", "/queues/q")).json == nothing
    reply = await api.send("PUT", "/queues/q", {"fair_weights": {"gold": 3}})
    assert (reply.status, reply.json) == (200, {**nothing, "fair_weights": {"gold": 3}})
    assert (await api.send("GET", "/queues/pull/q")).json == reply.json
    await api.send("PUT", "/queues/handler/h", {"fair_weights": {"a": 1_000}})
    assert [one["queue"] for one in (await api.send("GET", "/queues")).json["items"]] == ["handler/h", "pull/q"]
    assert (await api.send("PUT", "/queues/q", {})).json == nothing
    assert (await api.send("GET", "/queues/http")).json["queue"] == "http"


@pytest.mark.parametrize("weights", [{"a": 0}, {"a": 1_001}, {"a": 1.5}, {"": 1}, {"a": -1}, 3])
async def test_weights_that_can_not_be_are_refused(api: Api, weights: Any) -> None:
    reply = await api.send("PUT", "/queues/q", {"fair_weights": weights})
    assert reply.status == 422
    assert reply.json["field"].startswith("fair_weights")
    assert (await api.send("GET", f"/queues/{'q' * 221}")).status == 422


async def test_queues_are_listed_in_which_runs_wait_and_those_that_are_held(api: Api) -> None:
    await api.send("PUT", "/queues/weighed", {"fair_weights": {"gold": 3}})
    await api.send("POST", "/runs", {"target": {"type": "queue", "queue": "waiting"}})
    for queue in ("held", "handler/report", "waiting"):
        made = await api.send("POST", "/holds", {"scope": {"queue": queue}, "reason": "a test"})
        assert made.status == 201, made.body
    expected = {"pull/weighed": False, "pull/waiting": True, "pull/held": True, "handler/report": True}
    assert {one["queue"]: one["hold"] for one in (await api.get("/queues")).json["items"]} == expected
    assert (await api.get("/queues/held")).json == {"queue": "pull/held", "fair_weights": {}, "hold": True}
    found, cursor = list[str](), ""
    while cursor is not None:
        page = (await api.get(f"/queues?limit=1{cursor and f'&cursor={cursor}'}")).json
        found += (one["queue"] for one in page["items"])
        cursor = page["next_cursor"]
    assert found == sorted(expected)
