"""Doors, seen from who may do what: each change is in the audit under the name of who asked, and a key that is bound to
queues finds nothing behind a door that leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from horarium.access.roles import Scope
from horarium.api.guards import Keys
from horarium.doors.rrule_scheduler import RruleScheduler
from horarium.doors.scrape_jobs import Listed, definition
from horarium.doors.scrape_scheduler import ScrapeScheduler
from horarium.doors.simple_scheduler import SimpleScheduler
from horarium.doors.web import Door, key_check
from horarium.wire.definitions import read_definition
from tests.doors.conftest import House
from tests.doors.test_rrule_scheduler import GOOD
from tests.waiting import until

KEY = "k" * 20
LOCKED = [{"door_open": False, "api_keys": (KEY,)}]
CHANGES = {
    "POST /api/schedules", "PUT /api/schedules/{id}", "DELETE /api/schedules/{id}",
    "POST /api/jobs", "PATCH /api/jobs/{name}", "DELETE /api/jobs/{name}", "GET /api/runs/{id}/cancel",
}  # fmt: skip


async def told(house: House) -> list[tuple[str, str, str]]:
    reply = await house.ask("GET", "/api/v1/audit?limit=200", authorization=f"Bearer {KEY}")
    return [(line["actor"], line["kind"], line["action"]) for line in reply.json["items"][::-1]]


def test_no_door_has_other_changes(house_parts: tuple[Any, Any]) -> None:
    operations, keys = house_parts
    admit = key_check(keys, False)
    doors: list[Door] = [
        RruleScheduler(operations, None, admit),  # type: ignore[arg-type]
        SimpleScheduler(operations, keys, None, "default", False),  # type: ignore[arg-type]
        ScrapeScheduler(operations, None, admit, 1),  # type: ignore[arg-type]
    ]
    routes = [route for door in doors for route in door.routes()]
    assert {f"{route.method} {route.path}" for route in routes if str(route.scope).endswith(":write")} == CHANGES
    assert all(route.scope is Scope.WORK for route in routes if route.path.startswith("/jobs"))


@pytest.fixture
def house_parts() -> tuple[Any, Any]:
    from tests.api.conftest import Api

    return Api().operations, Keys([], None, None, None, lambda why: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", LOCKED)
async def test_each_change_is_in_the_audit_in_the_name_of_who_asked(house: House) -> None:
    house.token = KEY
    made = await house.ask("POST", "/api/schedules", GOOD)
    assert made.status == 201, made.body
    path = f"/api/schedules/{made.json.get('id') or made.json['_id']}"
    assert (await house.ask("PUT", path, {**GOOD, "rrule": "FREQ=WEEKLY"})).status < 300
    assert (await house.ask("DELETE", path)).status < 300
    ours = ("api-key", "key")
    assert await told(house) == [(*ours, "job.create"), (*ours, "job.update"), (*ours, "job.delete")]

    ann = {"authorization": f"Bearer {house.sign(sub='ann')}"}
    job = {"name": "nightly", "nextRunAt": "2035-01-01T00:00:00Z", "enabled": True}
    for method, asked, body in (
        ("POST", "/api/jobs", job),
        ("PATCH", "/api/jobs/nightly", {"enabled": False}),
    ):
        reply = await house.ask(method, asked, body, **ann)
        assert reply.status < 300, (asked, reply.body)
    await house.runtime.operations.jobs.resume_job("nightly")
    run = await house.runtime.operations.jobs.trigger_job("nightly")
    assert (await house.ask("GET", f"/api/runs/{run.id}/cancel", **ann)).status == 204
    assert (await house.ask("DELETE", "/api/jobs/nightly", **ann)).status == 204
    theirs = (await told(house))[3:]
    assert [action for _, _, action in theirs] == ["job.create", "job.update", "run.cancel", "job.delete"]
    assert {line[:2] for line in theirs} == {("ann", "oidc")}


@pytest.mark.parametrize("settings", LOCKED)
async def test_a_bound_key_finds_nothing_behind_a_door_to_other_queues(house: House) -> None:
    house.token = KEY
    made = await house.ask("POST", "/api/schedules", GOOD)
    path = f"/api/schedules/{made.json.get('id') or made.json['_id']}"
    listed: dict[str, Any] = definition(Listed("https://example.org/", 1, {}), 1, 0)
    await house.runtime.operations.jobs.put_job(read_definition(listed))

    async def a_key(name: str, queue: str) -> dict[str, str]:
        fields = {"name": name, "roles": ["editor", "worker"], "queues": [queue]}
        reply = await house.ask("POST", "/api/v1/keys", fields, **{"content-type": "application/json"})
        assert reply.status == 201, reply.body
        return {"authorization": f"Bearer {reply.json['key']}"}

    images, scrape = await a_key("images", "images"), await a_key("scrape", "scrape")
    for key in (images, scrape):
        assert (await house.ask("GET", path, **key)).status == 403
        assert (await house.ask("GET", f"{path}/events/pending", **key)).status == 403
        assert (await house.ask("DELETE", path, **key)).status == 403
        assert (await house.ask("POST", "/api/schedules", GOOD, **key)).status == 403
    await until(lambda: _refused_at(house, {("images", f"DELETE {path}"), ("scrape", f"DELETE {path}")}))
    id = listed["name"]
    assert (await house.ask("GET", "/jobs/next", **images)).status == 403
    assert (await house.ask("POST", f"/jobs/{id}/complete", **images)).status == 403
    assert (await house.ask("GET", "/jobs/next", **scrape)).status == 200
    assert (await house.ask("POST", f"/jobs/{id}/complete", **scrape)).status == 204


async def _refused_at(house: House, wanted: set[tuple[str, str]]) -> bool:
    """Whether the audit has these refusals, each once: who asked, and for what."""
    reply = await house.ask("GET", "/api/v1/audit?action=access&limit=200", authorization=f"Bearer {KEY}")
    told = [(line["actor"], line["after"]["request"]) for line in reply.json["items"] if line["outcome"] == "refused"]
    assert len(told) == len(set(told))
    return wanted <= set(told)


@pytest.mark.parametrize("settings", [{"api_keys": (KEY,)}])
async def test_tokens_that_are_refused_at_a_door_are_noticed(house: House) -> None:
    assert (await house.ask("GET", "/api/jobs", authorization="Bearer a.b.c")).status == 401

    async def refused() -> Any:
        return (await house.ask("GET", "/api/v1/audit?action=sign-in", authorization=f"Bearer {KEY}")).json["items"]

    (line,) = await until(refused, what="the entry of the failed sign-in")
    assert (line["outcome"], line["after"]["request"]) == ("refused", "GET /api/jobs")
    metrics = (await house.ask("GET", "/metrics", authorization=f"Bearer {KEY}")).body.decode()
    assert 'reason="unauthorized"} 1' in metrics, metrics
