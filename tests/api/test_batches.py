"""Batches over HTTP."""

from __future__ import annotations

from typing import Any

from .conftest import Api

ROW = {"target": {"type": "queue", "queue": "rows"}, "payload": {"row": 1}, "retry": {"attempts_max": 1}}


async def work(api: Api, *ends: str) -> None:
    """Claim as many runs, and end them so."""
    asked = {"queues": ["rows"], "limit": len(ends), "worker": "w"}
    for run, end in zip((await api.post("/runs/claim", asked)).json["runs"], ends, strict=True):
        body = {"token": run["lease"]["token"]} | ({"error": "no"} if end == "fail" else {})
        assert (await api.post(f"/runs/{run['id']}/{end}", body)).status == 200


def counts(batch: dict[str, Any]) -> tuple[str, int, int, int, int]:
    return batch["state"], batch["total"], batch["completed"], batch["failed"], batch["cancelled"]


async def test_a_batch_is_made_filled_closed_and_done_again(api: Api) -> None:
    reply = await api.post("/batches", {"name": "import", "open": True, "on": {"finished": [{"trigger": "report"}]}})
    batch = reply.json
    assert (reply.status, reply.headers["location"]) == (201, f"/api/v1/batches/{batch['id']}")
    assert (counts(batch), batch["runs"]) == (("open", 0, 0, 0, 0), [])
    at = f"/batches/{batch['id']}"
    filled = await api.post(f"{at}/runs", {"runs": [ROW, ROW]})
    assert (filled.status, counts(filled.json)) == (200, ("open", 2, 0, 0, 0))
    assert [each["outcome"] for each in filled.json["runs"]] == ["created", "created"]
    assert (await api.get(f"/runs/{filled.json['runs'][0]['id']}")).json["batch"] == batch["id"]
    assert (await api.post(f"{at}/close")).json["state"] == "closed"
    assert (await api.post(f"{at}/runs", {"runs": [ROW]})).code == "state_conflict"
    await work(api, "complete", "fail")
    assert counts((await api.get(at)).json) == ("closed", 2, 1, 1, 0)
    again = (await api.post(f"{at}/retry")).json
    assert counts(again) == ("closed", 2, 1, 0, 0)
    cancelled = (await api.post(f"{at}/cancel", {"reason": "enough"})).json
    assert counts(cancelled) == ("finished", 2, 1, 0, 1)
    assert (await api.get(f"{at}?wait_seconds=60")).json == cancelled, "it need not be waited for"
    listed = (await api.get("/batches?state=finished&limit=1")).json
    assert ([each["id"] for each in listed["items"]], listed["next_cursor"]) == ([batch["id"]], None)
    assert (await api.get("/batches?state=open")).json["items"] == []


async def test_without_open_a_batch_of_runs_is_closed(api: Api) -> None:
    assert (await api.post("/batches", {"runs": [ROW]})).json["state"] == "closed"
    assert (await api.post("/batches", {})).json["state"] == "open"
    assert (await api.post("/batches", {"runs": [], "open": False})).json["state"] == "finished"


async def test_lists_are_paged(api: Api) -> None:
    made = []
    for number in range(3):
        api.clock.advance(1)
        made.append((await api.post("/batches", {"runs": [ROW] * 3, "name": str(number)})).json["id"])
    first = (await api.get("/batches?limit=2")).json
    rest = (await api.get(f"/batches?limit=2&cursor={first['next_cursor']}")).json
    assert [each["id"] for each in [*first["items"], *rest["items"]]] == made[::-1]
    page = (await api.get(f"/batches/{made[0]}/runs?limit=2")).json
    last = (await api.get(f"/batches/{made[0]}/runs?limit=2&cursor={page['next_cursor']}")).json
    assert [len(page["items"]), len(last["items"]), last["next_cursor"]] == [2, 1, None]


async def test_a_wrong_run_or_action_is_refused_by_its_place(api: Api) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"runs": [ROW, {**ROW, "priority": 5_000}]}, "runs[1].priority"),
        ({"runs": [{**ROW, "debounce": {"key": "k", "seconds": 1}}]}, "runs[0].debounce"),
        ({"on": {"finished": [{"notify": "a", "trigger": "b"}]}}, "on.finished[0]"),
        ({"on": {"failed": [{"trigger": "b"}, {"trigger": "b"}]}}, "on.failed[1]"),
        ({"runs": [ROW], "on": {"failed": [{"notify": "opps"}]}}, "there is no channel 'opps'"),
    ]
    for body, place in cases:
        reply = await api.post("/batches", body)
        assert (reply.status, place in reply.body.decode()) == (422, True), reply.body
    assert (await api.get("/batches")).json["items"] == []
    assert (await api.get("/runs")).json["items"] == []
    assert (await api.get("/batches/none")).code == "not_found"


async def test_a_request_that_is_sent_again_does_nothing_twice(api: Api) -> None:
    key = {"idempotency-key": "k"}
    first = (await api.send("POST", "/batches", {"runs": [ROW, ROW], "open": True}, headers=key)).json
    again = (await api.send("POST", "/batches", {"runs": [ROW, ROW], "open": True}, headers=key)).json
    assert (again["id"], again["total"]) == (first["id"], 2)
    assert [each["id"] for each in again["runs"]] == [each["id"] for each in first["runs"]]
    for _ in range(2):
        more = await api.send("POST", f"/batches/{first['id']}/runs", {"runs": [ROW]}, headers={"idempotency-key": "l"})
        assert more.json["total"] == 3


async def test_a_key_of_another_request_for_a_batch_is_refused(api: Api) -> None:
    key, asked = {"idempotency-key": "k"}, {"name": "a", "runs": [ROW, ROW], "open": True}
    id = (await api.send("POST", "/batches", asked, headers=key)).json["id"]
    other = {**ROW, "payload": "other"}
    on: dict[str, Any] = {"finished": [{"trigger": "x"}]}
    for changed in ({"name": "b"}, {"runs": [ROW, other]}, {"runs": [ROW] * 3}, {"on": on}):
        reply = await api.send("POST", "/batches", {**asked, **changed}, headers=key)
        assert (reply.status, reply.json["field"]) == (422, "Idempotency-Key"), (changed, reply.body)
        assert id in reply.json["detail"] or "run " in reply.json["detail"]
    for row, status in ((ROW, 200), (ROW, 200), (other, 422)):
        more = await api.send("POST", f"/batches/{id}/runs", {"runs": [row]}, headers={"idempotency-key": "l"})
        assert more.status == status, more.body
    assert (await api.get(f"/batches/{id}")).json["total"] == 3
