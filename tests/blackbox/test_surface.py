"""The REST surface word by word: paths, fields, defaults, states, headers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.blackbox.outside import Server, instant, serving

FULL: dict[str, Any] = {
    "enabled": True,
    "labels": {"team": "billing"},
    "catch_up": {"policy": "all", "window_seconds": 3600.0},
    "overlap": "buffer_one",
    "retry": {"attempts_max": 5, "backoff_seconds": 1.0, "backoff_factor": 3.0, "backoff_max_seconds": 60.0,
              "age_max_seconds": 600.0, "silences_max": 4},
    "timeouts": {"start_seconds": 10.0, "execution_seconds": 20.0, "heartbeat_seconds": 5},
    "priority": 7,
    "concurrency": {"key": "db", "max": 3},
    "rate": [{"key": "api", "max": 5, "per_seconds": 60.0, "burst": 2}],
    "fair": "acme",
    "jitter_seconds": 2.0,
    "starts_at": "2027-01-01T00:00:00Z",
    "ends_at": "2028-01-01T00:00:00Z",
    "fires_max": 100,
    "retention": {"finished_seconds": 60, "runs_max": 10},
    "title": "Nächtlicher Bericht: \"alles\" / 100 %",
    "buffer_max": 3,
}  # fmt: skip

TRIGGERS = [
    {"type": "rrule", "rrule": "DTSTART;TZID=Europe/Berlin:20250101T083000\nRRULE:FREQ=DAILY"},
    {"type": "rrule", "rrule": "FREQ=WEEKLY;BYDAY=MO"},
    {"type": "rrule", "rrule": "RRULE:FREQ=MONTHLY;BYMONTHDAY=31;SKIP=BACKWARD;RSCALE=GREGORIAN"},
    {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"},
    {"type": "cron", "expression": "*/10 * * * * *"},
    {"type": "cron", "expression": "@daily"},
    {"type": "interval", "every_seconds": 1},
    {"type": "interval", "every_seconds": 90, "anchor": "2026-01-01T00:00:00+02:00"},
    {"type": "once", "at": "2199-01-01T00:00:00Z"},
    {"type": "phrase", "text": "every other tuesday at 9:34am", "timezone": "America/New_York"},
]
TARGETS = [
    {"type": "http", "url": "https://example.com/x", "method": "PUT", "headers": {"A": "b"}, "body": {"x": 1},
     "timeout_seconds": 5.0, "expected_status": [200, 202], "completion": "callback"},
    {"type": "queue", "queue": "reports", "payload": {"n": 1}},
    {"type": "handler", "name": "report", "args": {"n": 1}},
    {"type": "bus", "bus": "default", "payload": [1]},
]  # fmt: skip


def test_a_job_comes_back_as_it_was_written(server: Server, name: str) -> None:
    job = server.add(name, 60, {"type": "queue", "queue": "q", "payload": None}, **FULL)
    assert {field: job[field] for field in FULL} == FULL
    assert job["target"] == {"type": "queue", "queue": "q", "payload": None}
    assert server("GET", f"/jobs/{name}") == job
    assert server("PUT", f"/jobs/{name}", job, 200) == job


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: str(list(trigger.values())[1]))
def test_every_trigger_is_stored_previewed_and_shown(server: Server, name: str, trigger: dict[str, Any]) -> None:
    stored = server.add(name, trigger)["trigger"]
    for field, value in trigger.items():
        same = instant(stored[field]) == instant(value) if field in ("at", "anchor") else stored[field] == value
        assert same, (field, stored[field], value)
    for shown in (
        server("GET", f"/jobs/{name}/fires?count=3"),
        server("POST", "/preview", {"trigger": trigger, "count": 3}),
    ):
        assert set(shown) == {"fires", "words"}
        assert shown["words"]
        fires = [instant(fire) for fire in shown["fires"]]
        assert fires == sorted(set(fires))
        assert len(fires) == (1 if trigger["type"] == "once" else 3)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target["type"]))
def test_every_target_is_stored_and_shown(server: Server, name: str, target: dict[str, Any]) -> None:
    stored = server.add(name, {"type": "once", "at": "2199-01-01T00:00:00Z"}, target)["target"]
    assert {field: stored[field] for field in target} == target


def test_the_defaults_are_shown(server: Server, name: str) -> None:
    target = server.add(name, 3600, {"type": "http", "url": "https://example.com/"})["target"]
    assert (target["method"], target["completion"]) == ("POST", "response")
    job = server("GET", f"/jobs/{name}")
    assert (job["enabled"], job["overlap"], job["catch_up"]["policy"], job["priority"]) == (True, "allow", "latest", 0)
    bus = server.add(f"{name}.bus", 3600, {"type": "bus"})
    assert bus["target"]["bus"] == "default"


def test_a_run_has_its_fields(server: Server, name: str) -> None:
    server.add(name, 3600, {"type": "queue", "queue": name, "payload": {"n": 1}})
    made = server.ask("POST", f"/api/v1/jobs/{name}/trigger", {})
    assert made.status == 201
    assert made.headers["location"] == f"/api/v1/runs/{made.json['id']}"
    fields = {
        "id",
        "job",
        "fire_at",
        "due_at",
        "state",
        "attempt",
        "started_at",
        "finished_at",
        "error",
        "result",
        "history",
    }
    assert fields <= set(made.json)
    (claimed,) = server.claim(name)
    assert set(claimed["lease"]) == {"token", "expires_at"}
    assert (claimed["payload"], claimed["attempt"], claimed["state"]) == ({"n": 1}, 1, "running")
    assert all(set(event) == {"at", "state", "message"} for event in claimed["history"])
    beat = server("POST", f"/runs/{claimed['id']}/heartbeat", {"token": claimed["lease"]["token"]})
    assert set(beat) == {"cancel_requested", "expires_at"}
    done = server("POST", f"/runs/{claimed['id']}/complete", {"token": claimed["lease"]["token"]}, 200)
    assert (done["state"], done["job"]) == ("completed", name)
    assert instant(done["started_at"]) <= instant(done["finished_at"])


def test_a_claim_without_work_answers_204_after_its_wait(server: Server, name: str) -> None:
    for wait in (0, 0.2):
        reply = server.ask("POST", "/api/v1/runs/claim", {"queues": [name], "wait_seconds": wait, "worker": "w"})
        assert (reply.status, reply.body) == (204, b"")


def test_a_waiting_claim_is_answered_as_soon_as_there_is_work(server: Server, name: str) -> None:
    server.add(name, 1)
    (run,) = server.claim(name, wait=10)
    assert instant(run["started_at"]) >= instant(run["due_at"])


def test_a_batch_settles_each_run_by_itself(server: Server, name: str) -> None:
    server.add(name, 3600, retry={"attempts_max": 1})
    for _ in range(3):
        server("POST", f"/jobs/{name}/trigger")
    good, bad, stale = server.claim(name, limit=3)
    reports = [
        {"id": good["id"], "token": good["lease"]["token"], "outcome": "completed", "result": {"n": 1}},
        {"id": bad["id"], "token": bad["lease"]["token"], "outcome": "failed", "error": "no"},
        {"id": stale["id"], "token": stale["lease"]["token"] + 1, "outcome": "completed"},
    ]
    first, second, third = server("POST", "/runs/settle", reports, 200)
    assert (first["state"], second["state"], third["problem"]["code"]) == ("completed", "failed", "lease_lost")
    assert server.run(stale["id"])["state"] == "running"


def test_triggering_twice_with_one_key_makes_one_run(server: Server, name: str) -> None:
    server.add(name, 3600)
    first, second = (
        server("POST", f"/jobs/{name}/trigger", {}, headers={"Idempotency-Key": "abc"})["id"] for _ in range(2)
    )
    assert first == second
    assert server("POST", f"/jobs/{name}/trigger", {}, headers={"Idempotency-Key": "abd"})["id"] != first


def test_creating_twice_conflicts_but_not_under_one_key(server: Server, name: str) -> None:
    server.add(name, 3600)
    job = {
        "name": name,
        "trigger": {"type": "interval", "every_seconds": 3600},
        "target": {"type": "queue", "queue": name},
    }
    assert server.refused("POST", "/jobs", job)["status"] == 409
    server("POST", "/jobs", job, 200, headers={"Idempotency-Key": "again"})


def test_lists_are_paged_by_cursor(server: Server, name: str) -> None:
    for number in range(5):
        server.add(f"{name}.{number}", 3600, {"type": "queue", "queue": name}, labels={"page": name})
        server("POST", f"/jobs/{name}.{number}/trigger")
    for path in (f"/jobs?label=page={name}", f"/runs?queue={name}"):
        first = server("GET", f"{path}&limit=2")
        assert set(first) == {"items", "next_cursor"}
        second = server("GET", f"{path}&limit=2&cursor={first['next_cursor']}")
        third = server("GET", f"{path}&limit=2&cursor={second['next_cursor']}")
        assert third["next_cursor"] is None
        ids = [item["id"] for page in (first, second, third) for item in page["items"]]
        assert len(set(ids)) == 5
    assert server("GET", "/nodes")["items"][0]["roles"]
    assert set(server("GET", "/nodes")) == {"items", "next_cursor"}


def test_runs_are_found_by_time(server: Server, name: str) -> None:
    server.add(name, {"type": "cron", "expression": "0 3 * * *"})
    server("POST", f"/jobs/{name}/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-05T00:00:00Z"})
    found = server("GET", f"/runs?job={name}&since=2026-01-02T00:00:00Z&until=2026-01-04T00:00:00%2B00:00")["items"]
    assert [run["fire_at"] for run in found] == ["2026-01-03T03:00:00Z", "2026-01-02T03:00:00Z"]


def test_a_deleted_job_is_gone_and_its_pending_runs_are_cancelled(server: Server, name: str) -> None:
    server.add(name, 3600)
    run = server("POST", f"/jobs/{name}/trigger")
    server("DELETE", f"/jobs/{name}", status=204)
    assert server.refused("GET", f"/jobs/{name}")["status"] == 404
    assert server.run(run["id"])["state"] == "cancelled"
    server.add(name, 3600)


def test_a_patch_changes_only_what_it_names_and_nothing_that_is_ours(server: Server, name: str) -> None:
    job = server.add(name, 3600, labels={"a": "1", "b": "2"}, priority=3)
    forged = {"next_fire_at": "2099-01-01T00:00:00Z", "id": "x", "version": 9, "fires_count": 5}
    patched = server("PATCH", f"/jobs/{name}", {"labels": {"a": None}, "priority": None, **forged})
    assert (patched["labels"], patched["priority"]) == ({"b": "2"}, 0)
    assert (patched["next_fire_at"], patched["id"], patched["fires_count"]) == (job["next_fire_at"], job["id"], 0)


def test_the_pages_outside_of_the_api(server: Server) -> None:
    assert server.ask("GET", "/healthz").status == 200
    assert server.ask("GET", "/readyz").status == 200
    assert b"horarium_" in server.ask("GET", "/metrics").body
    document = server.ask("GET", "/docs/openapi.json").json
    assert document["openapi"].startswith("3.1")
    assert server.ask("GET", "/docs/openapi.yml").status == 200
    assert server.ask("GET", "/swagger-ui").headers["content-type"].startswith("text/html")
    paths = {
        "/jobs": {"get", "post"}, "/jobs/{name}": {"get", "put", "patch", "delete"}, "/jobs/{name}/pause": {"post"},
        "/jobs/{name}/resume": {"post"}, "/jobs/{name}/trigger": {"post"}, "/jobs/{name}/backfill": {"post"},
        "/jobs/{name}/fires": {"get"}, "/preview": {"post"}, "/runs": {"get"}, "/runs/{id}": {"get"},
        "/runs/{id}/cancel": {"post"}, "/runs/{id}/retry": {"post"}, "/runs/claim": {"post"},
        "/runs/{id}/heartbeat": {"post"}, "/runs/{id}/complete": {"post"}, "/runs/{id}/fail": {"post"},
        "/runs/settle": {"post"}, "/nodes": {"get"}, "/stats": {"get"},
    }  # fmt: skip
    for path, methods in paths.items():
        assert methods <= set(document["paths"][f"/api/v1{path}"]), path


@pytest.mark.slow
def test_keys_open_the_api(store: str) -> None:
    with serving(store, "--api-key", "first-key", env={"HORARIUM_API_KEYS": "not-this"}, key="first-key") as own:
        own("GET", "/jobs")
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic Zmlyc3Qta2V5"},
            {"Authorization": ""},
        ):
            reply = own.ask("GET", "/api/v1/jobs", headers={"Authorization": "", **header})
            assert (reply.status, reply.problem["code"]) == (401, "unauthorized")
            assert reply.headers["www-authenticate"].startswith("Bearer")
        own.key = None
        assert [own.ask("GET", path).status for path in ("/healthz", "/readyz")] == [200, 200]


@pytest.mark.slow
def test_keys_from_the_environment(store: str) -> None:
    with serving(store, env={"HORARIUM_API_KEYS": "one-key,two-key"}) as own:
        for key, status in (("one-key", 200), ("two-key", 200), ("one-key,two-key", 401), (None, 401)):
            own.key = key
            assert own.ask("GET", "/api/v1/jobs").status == status
