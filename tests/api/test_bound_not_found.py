"""What others have looks to a bound caller like what is not there: the same status, code and text."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Reply
from .test_bound_keys import OURS, SECRET, SOME_ID, THEIRS, Two


def told(reply: Reply, *names: str) -> tuple[int, Any]:
    """What an answer says, without the names that were asked for."""
    text = reply.body.decode()
    for name in names:
        text = text.replace(name, "NAME")
    return reply.status, text


@pytest.mark.parametrize("by", ["queues", "labels"])
async def test_holds_jobs_and_versions_of_others_look_like_none(by: str) -> None:
    two = Two(by)
    await two.set_up()
    hold = await two.admin("POST", "/holds", {"scope": {"job": f"{SECRET}-0"}, "reason": "x"})
    deleted = f"{SECRET}-deleted"
    await two.admin("POST", "/jobs", {
        "name": deleted, "trigger": {"type": "interval", "every_seconds": 60}, "labels": {"team": f"{SECRET}-team"},
        "target": {"type": "queue", "queue": THEIRS},
    })  # fmt: skip
    await two.admin("DELETE", f"/jobs/{deleted}")
    asked: list[tuple[str, str, Any, str, str]] = [
        ("PATCH", "/holds/{}", {"reason": "y"}, hold["id"], "no-such"),
        ("DELETE", "/holds/{}", None, hold["id"], "no-such"),
        ("GET", "/holds/{}", None, hold["id"], "no-such"),
    ]
    for name in (f"{SECRET}-0", deleted):
        asked += [
            ("POST", "/holds", {"scope": {"job": name}, "reason": "y"}, name, "no-such"),
            ("GET", "/jobs/{}/versions", None, name, "no-such"),
            ("POST", "/jobs/{}/revert", {"version": 1}, name, "no-such"),
        ]
    for method, path, body, theirs, none in asked:
        one = await two.api.send(method, path.format(theirs), body, headers=two.key)
        if path == "/holds":
            body = {**body, "scope": {"job": none}}
        other = await two.api.send(method, path.format(none), body, headers=two.key)
        assert told(one, theirs) == told(other, none), (method, path)
        assert one.status in (404, 422)
    assert (await two.admin("GET", f"/holds/{hold['id']}")) == hold


async def test_a_run_of_others_in_a_list_of_reports_is_told_by_item() -> None:
    two = Two()
    await two.set_up()
    theirs, ours = two.runs[f"{THEIRS} claimed "], two.runs[f"{OURS} claimed "]
    token = (await two.admin("GET", f"/runs/{ours}"))["attempt"]
    reports = [{"id": id, "token": token, "outcome": "completed"} for id in (theirs, SOME_ID, ours)]
    reply = await two.api.post("/runs/settle", reports, headers=two.key)
    assert reply.status == 200, reply.body
    foreign, missing, settled = reply.json
    assert settled["state"] == "completed"
    assert (foreign["problem"]["code"], foreign["problem"]["status"]) == ("forbidden", 403)
    assert (missing["problem"]["code"], missing["problem"]["status"]) == ("not_found", 404)
    assert (await two.admin("GET", f"/runs/{theirs}"))["state"] == "running"
