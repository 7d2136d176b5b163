"""Runs that wait for a decision, over the API: listed, decided once, and by those alone who may."""

from __future__ import annotations

from typing import Any

from .conftest import Api, a_definition

ADMIN = {"authorization": "Bearer first-key-1234"}


async def keyed(api: Api, name: str, *roles: str, queues: list[str] | None = None) -> dict[str, str]:
    asked: dict[str, Any] = {"name": name, "roles": list(roles), **({} if queues is None else {"queues": queues})}
    made = await api.send("POST", "/keys", asked, headers=ADMIN)
    assert made.status == 201, made.body
    return {"authorization": f"Bearer {made.json['key']}"}


async def test_a_run_is_approved_by_another_person_and_once() -> None:
    api = Api(api_keys=["first-key-1234"])
    ann, ben = await keyed(api, "ann", "editor"), await keyed(api, "ben", "operator")
    viewer, other = await keyed(api, "viewer", "viewer"), await keyed(api, "other", "operator", queues=["others"])
    job = a_definition("salaries", approval={"four_eyes": True, "within_seconds": 600})
    made = await api.send("POST", "/jobs", job, headers=ann)
    assert made.json["approval"] == {
        "roles": ["operator"], "within_seconds": 600, "then": "skip", "four_eyes": True
    }  # fmt: skip
    run = (await api.send("POST", "/jobs/salaries/trigger", {"payload": {"month": 11}}, headers=ann)).json
    assert (run["state"], run["history"][-1]["message"][:31]) == ("pending", "it waits for a decision until 2")
    (asked,) = (await api.send("GET", "/approvals", headers=ben)).json["items"]
    assert (asked["id"], asked["asked_by"], asked["then"], asked["why_not"]) == (run["id"], "ann", "skip", None)
    assert asked["payload"] == {"month": 11}
    assert (await api.send("GET", "/approvals", headers=other)).json["items"] == []
    path, yes = f"/approvals/{run['id']}", {"decision": "approve", "reason": "checked"}
    assert (await api.send("POST", path, yes, headers=viewer)).status == 403
    assert (await api.send("POST", path, yes, headers=other)).status == 404
    refused = await api.send("POST", path, yes, headers=ann)
    assert (refused.status, "four_eyes" in refused.json["detail"]) == (403, True)
    done = await api.send("POST", path, yes, headers=ben)
    said = f"version {asked['version']} approved by ben, because: checked"
    assert (done.status, done.json["history"][-1]["message"]) == (200, said)
    again = await api.send("POST", path, {"decision": "reject"}, headers=ADMIN)
    assert (again.status, again.code) == (409, "already_decided")
    assert "approved by ben" in again.json["detail"]
    claimed = await api.send("POST", "/runs/claim", {"queues": ["work"], "worker": "w"}, headers=ADMIN)
    assert [each["id"] for each in claimed.json["runs"]] == [run["id"]]


async def test_what_is_not_asked_about_is_not_found(api: Api) -> None:
    await api.send("POST", "/jobs", a_definition("plain"))
    run = (await api.send("POST", "/jobs/plain/trigger")).json
    assert (await api.send("POST", f"/approvals/{run['id']}", {"decision": "approve"})).code == "not_found"
    assert (await api.send("POST", f"/approvals/{run['id']}", {"decision": "perhaps"})).code == "invalid_request"
    elsewhere = a_definition("pinged", target={"type": "external"}, approval={})
    assert (await api.send("POST", "/jobs", elsewhere)).json["field"] == "approval"


async def test_pages_go_on_where_the_one_before_ended(api: Api) -> None:
    await api.send("POST", "/jobs", a_definition("asks", approval={}))
    made = []
    for _ in range(3):
        made.append((await api.send("POST", "/jobs/asks/trigger")).json["id"])
        api.clock.advance(1)
    page = (await api.send("GET", "/approvals?limit=2")).json
    rest = (await api.send("GET", f"/approvals?limit=2&cursor={page['next_cursor']}")).json
    assert [each["id"] for each in (*page["items"], *rest["items"])] == made
    assert rest["next_cursor"] is None


async def test_what_was_missed_is_one_question_and_answered_once() -> None:
    api = Api(api_keys=["first-key-1234"])
    ben = await keyed(api, "ben", "operator")
    asks = {"policy": "ask", "then": "none", "within_seconds": 7_200}
    trigger = {"type": "interval", "every_seconds": 3_600}
    made = await api.send("POST", "/jobs", a_definition("files", trigger=trigger, catch_up=asks), headers=ADMIN)
    assert made.json["catch_up"] == {**asks, "window_seconds": None}
    api.clock.advance(4.5 * 3_600)
    job = (await api.send("PATCH", "/jobs/files", {"title": "Files"}, headers=ADMIN)).json
    (asked,) = (await api.send("GET", "/approvals", headers=ben)).json["items"]
    assert {name: asked[name] for name in ("about", "job", "fires", "then", "why_not")} == {
        "about": "catch_up", "job": "files", "fires": 4, "then": "none", "why_not": None,
    }  # fmt: skip
    assert (job["missed"]["id"], job["missed"]["fires"]) == (asked["id"], 4)
    path = f"/approvals/{asked['id']}"
    assert (await api.send("POST", path, {"decision": "approve"}, headers=ben)).json["field"] == "decision"
    done = await api.send("POST", path, {"decision": "latest", "reason": "one will do"}, headers=ben)
    assert (done.status, done.json["disposition"], done.json["fires"]) == (200, "missed", 3)
    again = await api.send("POST", path, {"decision": "all"}, headers=ADMIN)
    assert (again.status, again.code) == (409, "already_decided")
    assert "latest, decided by ben, because: one will do" in again.json["detail"]
    runs = (await api.send("GET", "/runs?job=files", headers=ADMIN)).json["items"]
    assert [(run["state"], run["cause"]) for run in runs] == [("pending", "catch_up"), ("skipped", "schedule")]
    entries = (await api.send("GET", "/audit?action=approval.latest", headers=ADMIN)).json["items"]
    assert [(each["object"], each["after"]["missed"]["reason"]) for each in entries] == [("job/files", "one will do")]


async def test_a_job_that_counts_from_ends_has_nothing_to_ask(api: Api) -> None:
    trigger = {"type": "interval", "every_seconds": 60, "from": "end"}
    refused = await api.send("POST", "/jobs", a_definition("loop", trigger=trigger, catch_up={"policy": "ask"}))
    assert (refused.status, refused.json["field"]) == (422, "catch_up.policy")


async def test_a_decision_that_there_is_not_is_told_with_those_that_there_are(api: Api) -> None:
    reply = await api.post("/approvals/x", {"decision": "maybe"})
    assert reply.status == 422
    assert reply.json["detail"] == "decision: expected one of approve, reject, none, latest, all, not 'maybe'"


async def test_a_choice_that_may_be_left_out_is_refused_with_what_may_be_given(api: Api) -> None:
    asks = a_definition("a", catch_up={"policy": "ask", "then": "ask"})
    reply = await api.post("/jobs", asks)
    assert reply.json["detail"] == "catch_up.then: expected one of none, latest, all, not 'ask'"
