"""Keys with roles and queues, and what they open. Each route with each role: `test_scopes_table`."""

from __future__ import annotations

from typing import Any

from horarium.access.remembered import REMEMBERED_SECONDS
from horarium.testing.values import NOW

from .conftest import Api, a_definition

ADMIN = {"authorization": "Bearer first-key-1234"}


async def a_key(api: Api, **fields: Any) -> dict[str, str]:
    """A key as an admin makes it, as a header."""
    reply = await api.post("/keys", {"name": "key", "roles": ["viewer"], **fields}, headers=ADMIN)
    assert reply.status == 201, reply.body
    return {"authorization": f"Bearer {reply.json['key']}"}


async def test_who_asks_is_told(locked_api: Api, api: Api) -> None:
    key = await a_key(locked_api, name="ci", roles=["worker", "viewer"], queues=["images"])
    assert (await locked_api.get("/me", headers=key)).json == {
        "subject": "ci", "name": "ci", "kind": "key", "roles": ["viewer", "worker"],
        "scopes": ["jobs:read", "runs:read", "work"], "queues": ["images"],
    }  # fmt: skip
    assert (await locked_api.get("/me", headers=ADMIN)).json["roles"] == ["admin"]
    local = (await api.get("/me")).json
    assert (local["kind"], local["roles"], local["queues"]) == ("local", ["admin"], None)


async def test_a_named_key_counts_where_none_is_needed(api: Api) -> None:
    reply = await api.post("/keys", {"name": "low", "roles": ["viewer"]})
    key = {"authorization": f"Bearer {reply.json['key']}"}
    assert (await api.get("/jobs", headers=key)).status == 200
    assert (await api.post("/keys", {"name": "x", "roles": ["admin"]}, headers=key)).code == "forbidden"
    assert (await api.get("/jobs", headers={"authorization": "Bearer hk_wrong"})).code == "unauthorized"


async def test_a_worker_touches_its_queues_alone(locked_api: Api) -> None:
    key = await a_key(locked_api, roles=["worker"], queues=["other"])
    run = await locked_api.add_run(1)
    (claimed,) = (await locked_api.store.claim_runs(["pull/work"], 1, "w", NOW, NOW, NOW)).runs

    async def post(path: str, body: Any) -> str:
        return (await locked_api.post(path, body, headers=key)).code

    token = claimed.token
    for queues in (["work"], ["pull/work"], ["other", "work"], ["handler/work"]):
        assert await post("/runs/claim", {"queues": queues, "worker": "w"}) == "forbidden"
    assert await post(f"/runs/{run.id}/heartbeat", {"token": token}) == "forbidden"
    assert await post(f"/runs/{run.id}/complete", {"token": token}) == "forbidden"
    assert await post(f"/runs/{run.id}/fail", {"token": token, "error": "x"}) == "forbidden"
    report = [{"id": run.id, "token": token, "outcome": "completed"}]
    (settled,) = (await locked_api.post("/runs/settle", report, headers=key)).json
    assert settled["problem"]["code"] == "forbidden"
    assert (await locked_api.get(f"/runs/{run.id}", headers=ADMIN)).json["state"] == "running"
    asked = {"queues": ["other"], "worker": "w"}
    assert (await locked_api.post("/runs/claim", asked, headers=key)).status == 204


async def test_who_may_trigger_a_job_may_not_say_what_it_gets(locked_api: Api) -> None:
    """A payload of its own is a definition: on a queue of programs it would say which one is started."""
    assert (await locked_api.post("/jobs", a_definition("job"), headers=ADMIN)).status == 201
    own = {"payload": {"command": ["/bin/sh", "-c", "id"]}}
    batch = {"runs": [{"target": {"type": "queue", "queue": "shell"}, **own}]}
    for role, defines in (("operator", False), ("producer", True), ("editor", True)):
        key = await a_key(locked_api, name=role, roles=[role])
        triggers = role != "producer"
        assert (await locked_api.post("/jobs/job/trigger", {}, headers=key)).status == (201 if triggers else 403)
        assert (await locked_api.post("/jobs/job/trigger", {"payload": None}, headers=key)).status == (
            201 if triggers else 403
        )
        for name in ("job", "none"):
            reply = await locked_api.post(f"/jobs/{name}/trigger", own, headers=key)
            if triggers and defines:
                assert reply.status == (201 if name == "job" else 404)
            else:
                missing = ["runs:define"] if triggers else ["runs:write"]
                assert (reply.status, reply.json["missing_scopes"]) == (403, missing)
        for path, body, done in (("/runs", batch["runs"][0], 201), ("/runs/batch", batch, 200)):
            reply = await locked_api.post(path, body, headers=key)
            assert reply.status == (done if defines else 403), (role, path)
    refused = (await locked_api.get("/audit?actor=operator", headers=ADMIN)).json["items"]
    assert {(entry["action"], entry["outcome"]) for entry in refused if entry["outcome"] == "refused"} >= {
        ("job.trigger", "refused")
    }


async def test_a_key_that_is_revoked_opens_nothing(locked_api: Api) -> None:
    key = await a_key(locked_api, name="ci")
    assert (await locked_api.get("/jobs", headers=key)).status == 200
    assert (await locked_api.send("DELETE", "/keys/ci", headers=ADMIN)).status == 204
    locked_api.clock.advance(REMEMBERED_SECONDS)
    assert (await locked_api.get("/jobs", headers=key)).status == 401
    assert (await locked_api.send("DELETE", "/keys/ci", headers=ADMIN)).code == "not_found"


async def test_a_key_whose_time_is_over_is_told_so(locked_api: Api) -> None:
    key = await a_key(locked_api, name="ci", expires_at="2027-02-01T00:00:00Z")
    assert (await locked_api.get("/jobs", headers=key)).status == 200
    locked_api.clock.advance(400 * 86_400)
    reply = await locked_api.get("/jobs", headers=key)
    assert (reply.status, reply.code) == (401, "unauthorized")
    assert "the key 'ci' ended at 2027-02-01T00:00:00Z" in reply.json["detail"]


async def test_a_key_may_end_beyond_all_that_can_be_kept(locked_api: Api) -> None:
    for name, far in {"a": "9999-12-31T23:59:59Z", "b": "9999-12-31T23:59:59-23:00"}.items():
        made = await locked_api.post("/keys", {"name": name, "roles": ["viewer"], "expires_at": far}, headers=ADMIN)
        assert (made.status, made.json["expires_at"]) == (201, "2201-01-01T00:00:00Z")


async def test_a_key_is_shown_once_and_listed_without_its_secret(locked_api: Api) -> None:
    key = await a_key(locked_api, name="ci", expires_at="2027-02-01T00:00:00Z")
    page = await locked_api.get("/keys?limit=1", headers=ADMIN)
    (item,) = page.json["items"]
    assert (item["name"], item["roles"], item["expires_at"]) == ("ci", ["viewer"], "2027-02-01T00:00:00Z")
    assert key["authorization"].partition(" ")[2] not in page.body.decode()
    assert (await locked_api.post("/keys", {"name": "ci", "roles": ["admin"]}, headers=ADMIN)).code == "already_exists"


async def test_the_audit_tells_who_made_and_revoked_a_key(locked_api: Api) -> None:
    admin = await a_key(locked_api, name="boss", roles=["admin"])
    locked_api.clock.advance(1)
    await locked_api.post("/keys", {"name": "ci", "roles": ["viewer"]}, headers=admin)
    locked_api.clock.advance(1)
    await locked_api.send("DELETE", "/keys/ci", headers=admin)
    lines = (await locked_api.get("/audit?object=key/ci", headers=ADMIN)).json["items"]
    told = [(line["actor"], line["kind"], line["action"], line["outcome"]) for line in lines]
    assert told == [("boss", "key", "key.revoke", "done"), ("boss", "key", "key.create", "done")]
    assert lines[1]["after"]["roles"] == ["viewer"]
    assert "hk_" not in str(lines)
    first = (await locked_api.get("/audit?limit=1", headers=ADMIN)).json
    rest = (await locked_api.get(f"/audit?cursor={first['next_cursor']}", headers=ADMIN)).json
    assert [line["object"] for line in (*first["items"], *rest["items"])] == ["key/ci", "key/ci", "key/boss"]
