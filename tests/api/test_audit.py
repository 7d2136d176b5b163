"""Every change that a request makes is in the audit, with who made it and what it was before; no request that changes
nothing is. And the way back: the versions of a job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horarium.clock import SECOND, to_text
from horarium.model.records import RecordFilter
from horarium.testing.values import NOW
from horarium.wire.definitions import JobDefinition

from .conftest import Api, a_definition

ADMIN = {"authorization": "Bearer first-key-1234"}
MASKED = "********"


def at(seconds: int) -> str:
    """An instant so long after the beginning."""
    return to_text(NOW + seconds * SECOND)


async def lines(api: Api, query: str = "", headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The audit, the oldest first."""
    reply = await api.get(f"/audit?limit=200&{query}", headers=headers or {})
    assert reply.status == 200, reply.body
    items: list[dict[str, Any]] = reply.json["items"]
    return items[::-1]


async def told(api: Api, query: str = "") -> list[str]:
    return [f"{line['action']} {line['object']} {line['outcome']}" for line in await lines(api, query)]


async def test_each_change_of_a_job_is_told_once(api: Api) -> None:
    changed = {"trigger": {"type": "interval", "every_seconds": 30}}
    for method, path, body in (
        ("POST", "/jobs", a_definition()),
        ("POST", "/jobs", a_definition()),
        ("PUT", "/jobs/job", a_definition()),
        ("PUT", "/jobs/job", a_definition(**changed)),
        ("PATCH", "/jobs/job", {"priority": 3}),
        ("PATCH", "/jobs/job", {"priority": 3}),
        ("POST", "/jobs/job/pause", {"reason": "moving"}),
        ("POST", "/jobs/job/pause", None),
        ("POST", "/jobs/job/resume", None),
        ("POST", "/jobs/job/resume", None),
        ("POST", "/import", {"jobs": [a_definition(priority=4), a_definition("other")]}),
        ("POST", "/import", {"jobs": [a_definition(priority=4), a_definition("other")]}),
        ("POST", "/import", {"jobs": [a_definition(priority=9)], "dry_run": True}),
        ("DELETE", "/jobs/job", None),
        ("DELETE", "/jobs/job", None),
    ):
        api.clock.advance(1)
        await api.send(method, path, body)
    assert [line for line in await told(api) if "other" not in line] == [
        "job.create job/job done",
        "job.update job/job done",
        "job.update job/job done",
        "job.pause job/job done",
        "job.resume job/job done",
        "job.update job/job done",
        "job.delete job/job done",
    ]
    assert await told(api, "object=job/other") == ["job.create job/other done"]


async def test_the_audit_says_who_paused_a_job_when_and_what_it_was_before(locked_api: Api) -> None:
    made = await locked_api.post("/keys", {"name": "ann", "roles": ["operator"]}, headers=ADMIN)
    ann = {"authorization": f"Bearer {made.json['key']}"}
    await locked_api.post("/jobs", a_definition("nightly"), headers=ADMIN)
    locked_api.clock.advance(60)
    assert (await locked_api.post("/jobs/nightly/pause", {"reason": "moving"}, headers=ann)).status == 200
    (line,) = await lines(locked_api, "object=job/nightly&action=job.pause", ADMIN)
    assert (line["actor"], line["kind"], line["outcome"]) == ("ann", "key", "done")
    assert line["at"] == at(60)
    assert (line["before"]["enabled"], line["after"]["enabled"]) == (True, False)
    assert line["after"]["pause_reason"] == "moving"
    assert line["before"]["trigger"] == {"type": "interval", "every_seconds": 60}
    assert line["request_id"]


async def test_each_run_asked_for_is_told_once(api: Api) -> None:
    await api.add_job()
    await api.add_job("turn", overlap="skip")
    for name in ("job", "turn"):
        keyed = {"idempotency-key": "k"}
        first = await api.post(f"/jobs/{name}/trigger", headers=keyed)
        again = await api.post(f"/jobs/{name}/trigger", headers=keyed)
        assert first.json["id"] == again.json["id"]
        (line,) = await lines(api, f"object=job/{name}&action=job.trigger")
        assert (line["after"]["run_id"], line["after"]["unique_key"]) == (first.json["id"], f"{name}/k")
    assert (await api.post("/jobs/none/trigger")).status == 404
    assert len(await lines(api, "action=job.trigger")) == 2


async def test_cancels_retries_and_backfills_are_told(api: Api) -> None:
    await api.add_job()
    run = (await api.post("/jobs/job/trigger")).json["id"]
    for _ in range(2):
        await api.post(f"/runs/{run}/cancel", {"reason": "wrong"})
    api.clock.advance(1)
    again = (await api.post(f"/runs/{run}/retry")).json["id"]
    assert (await api.post(f"/runs/{again}/retry")).status == 409
    (cancelled, retried) = await lines(api, f"object=run/{run}")
    assert (cancelled["action"], cancelled["before"]) == ("run.cancel", {"state": "pending"})
    assert cancelled["after"] == {"state": "cancelled", "reason": "wrong"}
    assert (retried["action"], retried["after"]["run_id"]) == ("run.retry", again)
    one_off = await api.add_run(7)
    await api.post(f"/runs/{one_off.id}/cancel")
    api.clock.advance(1)
    fresh = (await api.post(f"/runs/{one_off.id}/retry")).json["id"]
    assert [line["after"].get("run_id") for line in await lines(api, f"object=run/{one_off.id}")] == [None, fresh]
    api.clock.advance(600)
    span = {"start": at(0), "end": at(400)}
    made = (await api.post("/jobs/job/backfill", span)).json["runs"]
    again_made = (await api.post("/jobs/job/backfill", span)).json["runs"]
    assert len(made) == len(again_made) > 0
    (line,) = await lines(api, "action=job.backfill")
    assert (line["object"], line["after"]["runs"]) == ("job/job", len(made))


async def test_what_fails_or_only_looks_is_not_told(api: Api) -> None:
    await api.add_job()
    before = await told(api)
    for method, path, body in (
        ("POST", "/jobs", {"name": "broken"}), ("PUT", "/jobs/x", a_definition("y")), ("PATCH", "/jobs/job", b"{"),
        ("GET", "/jobs", None), ("GET", "/jobs/job", None), ("POST", "/preview", {"trigger": {"type": "once"}}),
        ("POST", "/runs/claim", {"queues": ["work"], "worker": "w"}), ("DELETE", "/jobs/none", None),
        ("POST", "/jobs/job/backfill", {"start": at(5), "end": at(4)}),
    ):  # fmt: skip
        await api.send(method, path, body)
    assert await told(api) == before
    api.failing.add("commit_plans")
    assert (await api.post("/jobs/job/pause")).status == 503
    api.failing.clear()
    assert await told(api) == before


async def test_no_secret_enters_the_audit_or_a_list_of_versions(api: Api) -> None:
    target = {"type": "http", "url": "https://example.com/?token=canary-1", "headers": {"Authorization": "canary-2"}}
    await api.add_job(target=target | {"signing_secret": "whsec_Y2FuYXJ5LTM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ="})
    await api.send("PATCH", "/jobs/job", {"priority": 1})
    for path in ("/audit", "/jobs/job/versions"):
        text = (await api.get(path)).body.decode()
        assert MASKED in text
        assert "canary" not in text
        assert "Y2FuYXJ5" not in text


async def test_a_job_goes_back_to_what_it_was(api: Api) -> None:
    await api.add_job(target={"type": "http", "url": "https://example.com/", "headers": {"Authorization": "sec-1"}})
    api.clock.advance(1)
    await api.send("PATCH", "/jobs/job", {"trigger": {"type": "interval", "every_seconds": 5}, "labels": {"a": "1"}})
    api.clock.advance(1)
    await api.send("PATCH", "/jobs/job", {"target": {"headers": {"Authorization": "sec-2"}}})
    api.clock.advance(1)
    await api.post("/jobs/job/pause", {"reason": "moving"})
    page = (await api.get("/jobs/job/versions")).json
    assert [item["action"] for item in page["items"]] == ["job.pause", "job.update", "job.update", "job.create"]
    assert {item["actor"] for item in page["items"]} == {"local"}
    versions = [item["version"] for item in page["items"]]
    assert versions == sorted(versions, reverse=True)
    assert versions[-1] == 1
    assert page["items"][-1]["definition"]["trigger"]["every_seconds"] == 60
    first = await api.post("/jobs/job/revert", {"version": 1})
    assert first.status == 200
    assert (first.json["enabled"], first.json["trigger"]["every_seconds"]) == (True, 60)
    assert first.json["labels"] == {}
    stored = (await api.store.get_jobs(["job"]))[0]
    assert stored is not None
    assert stored.target.headers == {"Authorization": "sec-1"}  # type: ignore[union-attr]
    (line,) = await lines(api, "action=job.revert")
    assert (line["before"]["enabled"], line["after"]["enabled"]) == (False, True)
    again = await api.post("/jobs/job/revert", {"version": 1})
    assert again.json["updated_at"] == first.json["updated_at"]
    assert len(await lines(api, "action=job.revert")) == 1


async def test_any_number_that_a_job_had_leads_to_its_content_then(api: Api) -> None:
    await api.add_job(priority=1)
    for priority in (2, 3):
        # Runs asked for by hand in turn, and plans, count the job's version up, and make no version to go back to.
        await api.send("PATCH", "/jobs/job", {"overlap": "skip"})
        await api.post("/jobs/job/trigger")
        await api.send("PATCH", "/jobs/job", {"priority": priority})
    now = (await api.get("/jobs/job")).json["version"]
    priorities = []
    for version in range(1, now + 1):
        job = (await api.post("/jobs/job/revert", {"version": version})).json
        priorities.append(job["priority"])
    assert priorities == sorted(priorities)
    assert set(priorities) == {1, 2, 3}
    for wrong in (0, -1, 10_000, "1", None):
        reply = await api.post("/jobs/job/revert", {"version": wrong})
        assert reply.code in ("not_found", "invalid_request"), wrong
    assert (await api.post("/jobs/none/revert", {"version": 1})).code == "not_found"


@pytest.mark.parametrize("changed", [False, True])
async def test_a_deleted_job_is_made_again_with_its_secrets_as_long_as_the_audit_is_kept(
    api: Api, changed: bool
) -> None:
    headers = {"Authorization": "sec-1"}
    await api.add_job(target={"type": "http", "url": "https://example.com/", "headers": headers}, labels={"a": "1"})
    if changed:
        await api.send("PATCH", "/jobs/job", {"priority": 7})
    before = (await api.get("/jobs/job")).json
    assert (await api.send("DELETE", "/jobs/job")).status == 204
    found = (await api.get("/jobs/job/versions")).json["items"]
    assert [each["definition"].get("priority", 0) for each in found] == ([7, 0] if changed else [0])
    assert b"sec-1" not in (await api.get("/jobs/job/versions")).body
    made = await api.post("/jobs/job/revert", {"version": found[0]["version"]})
    assert made.status == 200
    assert made.json["id"] != before["id"]
    assert {name: made.json[name] for name in ("priority", "labels", "trigger", "target", "enabled")} == {
        name: before[name] for name in ("priority", "labels", "trigger", "target", "enabled")
    }
    (stored,) = await api.store.get_jobs(["job"])
    assert stored is not None
    assert stored.target.headers == headers  # type: ignore[union-attr]
    await api.send("DELETE", "/jobs/job")
    gone = 1
    while gone:
        gone = await api.operations.versions.prune(api.clock.now() + 1, 100)
    assert (await api.get("/jobs/job/versions")).code == "not_found"
    assert (await api.post("/jobs/job/revert", {"version": 1})).code == "not_found"
    left = (await api.store.list_records(RecordFilter(""), None, 200)).items
    assert not [each.name for each in left if each.name.startswith(("version/", "ended-job/", "deleted-job/"))]


async def test_a_job_that_was_made_by_no_known_caller_is_kept_when_it_is_deleted(api: Api) -> None:
    await api.operations.jobs.put_job(msgspec.convert(a_definition("quiet"), JobDefinition))
    await api.send("DELETE", "/jobs/quiet")
    assert (await api.post("/jobs/quiet/revert", {"version": 9})).json["name"] == "quiet"


async def test_a_bound_key_sees_no_deleted_job_of_others(locked_api: Api) -> None:
    api, admin = locked_api, {"authorization": "Bearer first-key-1234"}
    key = {"name": "ours", "roles": ["editor"], "queues": ["ours"]}
    bound = {"authorization": f"Bearer {(await api.post('/keys', key, headers=admin)).json['key']}"}
    await api.post("/jobs", a_definition("theirs"), headers=admin)
    await api.send("DELETE", "/jobs/theirs", headers=admin)
    for reply in (
        await api.get("/jobs/theirs/versions", headers=bound),
        await api.post("/jobs/theirs/revert", {"version": 1}, headers=bound),
    ):
        assert reply.code == "not_found"
        assert reply.json["detail"] == (await api.get("/jobs/never/versions", headers=bound)).json["detail"].replace(
            "never", "theirs"
        )


async def test_versions_differ_in_what_was_changed_alone(api: Api) -> None:
    """Defaults are left out of each of them, also where the job was read from the store in between."""
    await api.add_job("nightly")
    await api.post("/jobs/nightly/pause")
    await api.send("PATCH", "/jobs/nightly", {"retry": {"attempts_max": 7}})
    await api.post("/jobs/nightly/revert", {"version": 1})
    found = [each["definition"] for each in (await api.get("/jobs/nightly/versions")).json["items"]]
    assert [each.pop("enabled") for each in found] == [True, False, False, True]
    assert [each.pop("retry", None) for each in found] == [None, {"attempts_max": 7}, None, None]
    assert all(each == found[0] for each in found)
    assert found[0].keys() == {"name", "trigger", "target"}


async def test_versions_are_listed_in_pages_and_a_job_that_never_changed_has_one(api: Api) -> None:
    await api.add_job()
    for priority in range(1, 6):
        await api.send("PATCH", "/jobs/job", {"priority": priority})
    seen: list[int] = []
    cursor = ""
    while True:
        page = (await api.get(f"/jobs/job/versions?limit=2{cursor}")).json
        seen += [item["definition"].get("priority", 0) for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [5, 4, 3, 2, 1, 0]
    assert (await api.get("/jobs/job/versions?cursor=x")).code == "invalid_cursor"
    assert (await api.get("/jobs/none/versions")).code == "not_found"


async def test_a_bound_key_sees_and_touches_the_jobs_and_runs_of_its_queues_alone(locked_api: Api) -> None:
    api = locked_api

    async def key(**fields: Any) -> dict[str, str]:
        made = await api.post("/keys", {"name": "bound", "roles": ["editor", "worker"], **fields}, headers=ADMIN)
        assert made.status == 201, made.body
        return {"authorization": f"Bearer {made.json['key']}"}

    mine = {"type": "queue", "queue": "mine"}
    await api.post("/jobs", a_definition("theirs"), headers=ADMIN)
    await api.post("/jobs", a_definition("ours", target=mine), headers=ADMIN)
    their_run = (await api.post("/jobs/theirs/trigger", headers=ADMIN)).json["id"]
    our_run = (await api.post("/jobs/ours/trigger", headers=ADMIN)).json["id"]
    bound = await key(queues=["mine"])
    before = await lines(api, "", ADMIN)

    assert [job["name"] for job in (await api.get("/jobs", headers=bound)).json["items"]] == ["ours"]
    assert [run["id"] for run in (await api.get("/runs", headers=bound)).json["items"]] == [our_run]
    for path in ("/jobs/theirs", "/jobs/theirs/fires", "/jobs/theirs/versions", f"/runs/{their_run}"):
        assert (await api.get(path, headers=bound)).code == "not_found", path
        assert (await api.get(path.replace("theirs", "ours").replace(their_run, our_run), headers=bound)).status == 200
    assert (await api.get("/nodes", headers=bound)).code == "forbidden"

    for method, path, body in (
        ("PUT", "/jobs/theirs", a_definition("theirs", target=mine)), ("PATCH", "/jobs/theirs", {"priority": 1}),
        ("DELETE", "/jobs/theirs", None), ("POST", "/jobs/theirs/pause", None), ("POST", "/jobs/theirs/resume", None),
        ("POST", "/jobs/theirs/trigger", None), ("POST", "/jobs/theirs/revert", {"version": 1}),
        ("POST", "/jobs/theirs/backfill", {"start": at(0), "end": at(1)}),
        ("POST", f"/runs/{their_run}/cancel", None), ("POST", f"/runs/{their_run}/retry", None),
    ):  # fmt: skip
        assert (await api.send(method, path, body, headers=bound)).code == "not_found", path
    for method, path, body in (
        ("POST", "/jobs", a_definition("new")), ("PUT", "/jobs/new", a_definition("new")),
        ("PATCH", "/jobs/ours", {"target": {"queue": "work"}}), ("PUT", "/jobs/ours", a_definition("ours")),
        ("POST", "/jobs", a_definition("new", target={"type": "handler", "name": "mine"})),
        ("POST", "/jobs", a_definition("new", target={"type": "http", "url": "https://example.com/"})),
    ):  # fmt: skip
        assert (await api.send(method, path, body, headers=bound)).code == "forbidden", path
    imported = await api.post("/import", {"jobs": [a_definition("theirs"), a_definition("new")]}, headers=bound)
    assert [item["problem"]["code"] for item in imported.json] == ["forbidden", "forbidden"]
    assert [line for line in await lines(api, "", ADMIN) if line["outcome"] == "done"] == before

    assert (await api.send("PATCH", "/jobs/ours", {"priority": 1}, headers=bound)).status == 200
    assert (await api.post("/jobs", a_definition("new", target=mine), headers=bound)).status == 201
    assert (await api.post("/jobs/ours/trigger", headers=bound)).status == 201
    assert {line["actor"] for line in await lines(api, "", ADMIN)} == {"api-key", "bound"}


async def test_each_run_of_a_request_for_many_is_told(api: Api) -> None:
    await api.add_job("free")
    await api.add_job("turn", overlap="buffer_all")
    target = {"type": "queue", "queue": "work"}
    made = await api.post("/runs/batch", {"runs": [{"target": target}, {"target": target, "unique_key": "k"}]})
    assert [item["outcome"] for item in made.json] == ["created", "created"]
    again = await api.post("/runs", {"target": target, "unique_key": "k"})
    assert again.status == 200
    ids = [item["id"] for item in made.json]
    ids += [(await api.post(f"/jobs/{name}/trigger")).json["id"] for name in ("free", "turn")]
    assert {line["object"] for line in await lines(api, "action=run.create")} == {f"run/{id}" for id in ids[:2]}
    for _ in range(2):
        await api.post("/runs/cancel", {"ids": ids, "reason": "wrong"})
        await api.post("/runs/retry", {"ids": ids})
    for action in ("run.cancel", "run.retry"):
        entries = await lines(api, f"action={action}")
        assert sorted(line["object"] for line in entries) == sorted(f"run/{id}" for id in ids), action
    fresh = {line["after"]["run_id"] for line in await lines(api, "action=run.retry")}
    assert len(fresh) == 4
    assert not fresh & set(ids)
    for id in fresh:
        assert (await api.get(f"/runs/{id}")).json["state"] == "pending"


async def test_a_request_for_many_touches_the_queues_of_a_bound_caller_alone(locked_api: Api) -> None:
    api = locked_api
    made = await api.post("/keys", {"name": "bound", "roles": ["operator"], "queues": ["mine"]}, headers=ADMIN)
    bound = {"authorization": f"Bearer {made.json['key']}"}
    ids = []
    for queue in ("mine", "work"):
        reply = await api.post("/runs", {"target": {"type": "queue", "queue": queue}}, headers=ADMIN)
        ids.append(reply.json["id"])
    refused = await api.post("/runs", {"target": {"type": "queue", "queue": "work"}}, headers=bound)
    assert refused.code == "forbidden"
    for asked in ({"ids": ids, "dry_run": True}, {"ids": ids}, {"state": "pending"}):
        assert (await api.post("/runs/cancel", asked, headers=bound)).json["matched"] <= 1
    states = [(await api.get(f"/runs/{id}", headers=ADMIN)).json["state"] for id in ids]
    assert states == ["cancelled", "pending"]
