"""Rate limits over the API: as fields of jobs and runs, and by key."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Api, a_definition

RATE = {"key": "api:{payload.customer}", "max": 100, "per_seconds": 60}
RUN = {"target": {"type": "queue", "queue": "q"}, "payload": {"customer": "acme/x"}, "rate": [RATE]}


async def test_a_job_and_its_runs_carry_their_limits(api: Api) -> None:
    job = a_definition("a", rate=[RATE], target={"type": "queue", "queue": "q", "payload": {"customer": "acme"}})
    reply = await api.send("PUT", "/jobs/a", job)
    assert reply.status == 201, reply.body
    assert reply.json["rate"] == [{**RATE, "per_seconds": 60.0}]
    run = (await api.send("POST", "/jobs/a/trigger", {"payload": {"customer": "zeta"}})).json
    assert run["rates"] == [{**RATE, "per_seconds": 60.0, "key": "api:zeta"}]
    assert "waits_for" not in run


async def test_what_a_key_is_made_of_and_is_missing_is_named(api: Api) -> None:
    await api.send("PUT", "/jobs/a", a_definition("a", rate=[RATE], target={"type": "queue", "queue": "q"}))
    for reply in (
        await api.send("POST", "/jobs/a/trigger", None),
        await api.send("POST", "/runs", {**RUN, "payload": {}}),
    ):
        assert (reply.status, reply.json["field"]) == (422, "rate[0].key")
        assert "{payload.customer}" in reply.json["detail"]
    (one,) = (await api.send("POST", "/runs/batch", {"runs": [{**RUN, "payload": {}}]})).json
    assert one["problem"]["field"] == "rate[0].key"


@pytest.mark.parametrize(
    ("rate", "field"),
    [
        ([{**RATE, "key": "{customer}"}], "rate[0].key"),
        ([RATE] * 2, "rate"),
        ([{**RATE, "key": f"k{n}"} for n in range(5)], "rate"),
        ([{**RATE, "burst": 101}], "rate[0]"),
        ([{**RATE, "max": 0}], "rate[0].max"),
        ([{**RATE, "per_seconds": 0.5}], "rate[0].per_seconds"),
    ],
)
async def test_a_limit_that_can_not_be_is_refused(api: Api, rate: list[dict[str, Any]], field: str) -> None:
    reply = await api.send("PUT", "/jobs/a", a_definition("a", rate=rate))
    assert (reply.status, reply.json["field"]) == (422, field), reply.body


async def test_a_run_that_waits_says_for_which_key_and_the_key_when_it_opens(api: Api) -> None:
    runs = [(await api.send("POST", "/runs", {**RUN, "rate": [{**RATE, "max": 1}]})).json for _ in range(2)]
    claimed = (await api.send("POST", "/runs/claim", {"queues": ["q"], "limit": 2})).json["runs"]
    assert [run["id"] for run in claimed] == [runs[0]["id"]]
    shown = (await api.get(f"/runs/{runs[1]['id']}")).json
    assert (shown["state"], shown["attempt"], shown["waits_for"]) == ("pending", 0, "api:acme/x")
    assert shown["history"][-1]["message"].startswith("waits for the rate limit 'api:acme/x' until ")
    (key,) = (await api.get("/rates?prefix=api:")).json["items"]
    assert (key["key"], key["max"], key["per_seconds"], key["burst"]) == ("api:acme/x", 1, 60.0, 1)
    assert key["opens_at"] > shown["due_at"]
    assert (await api.get("/rates?prefix=b")).json == {"items": [], "next_cursor": None}


async def test_the_limit_of_a_key_is_set_and_given_up(api: Api) -> None:
    reply = await api.send(
        "PUT", "/rates/api%3Aacme%2Fx", {"max": 5, "per_seconds": 1, "until": "2100-01-01T00:00:00Z"}
    )
    assert reply.json == {
        "key": "api:acme/x", "max": 5, "per_seconds": 1.0, "burst": 1, "overridden": True,
        "until": "2100-01-01T00:00:00Z", "opens_at": None,
    }  # fmt: skip
    assert (await api.send("DELETE", "/rates/api%3Aacme%2Fx", None)).status == 204
    assert (await api.send("DELETE", "/rates/api%3Aacme%2Fx", None)).status == 404
    over = {"max": 5, "per_seconds": 1, "until": "2000-01-01T00:00:00Z"}
    refused = await api.send("PUT", "/rates/over", over)
    assert (refused.status, refused.json["field"]) == (422, "until")
    assert (await api.get("/rates?prefix=over")).json["items"] == []
    assert (await api.send("PUT", "/rates/a", {"max": 5, "per_seconds": 1, "burst": 6})).json["field"] == "burst"
    assert (await api.send("PUT", f"/rates/{'x' * 201}", {"max": 5, "per_seconds": 1})).json["field"] == "key"


async def test_keys_come_in_pages(api: Api) -> None:
    for number in range(5):
        await api.send("PUT", f"/rates/k{number}", {"max": 5, "per_seconds": 1})
    page = (await api.get("/rates?limit=3")).json
    rest = (await api.get(f"/rates?limit=3&cursor={page['next_cursor']}")).json
    assert [one["key"] for one in (*page["items"], *rest["items"])] == [f"k{number}" for number in range(5)]


async def test_a_one_off_run_has_labels_of_its_own(api: Api) -> None:
    run = {**RUN, "labels": {"team": "billing"}, "rate": [{**RATE, "key": "of:{label.team}"}]}
    reply = await api.send("POST", "/runs", run)
    assert (reply.status, reply.json["labels"], reply.json["rates"][0]["key"]) == (201, run["labels"], "of:billing")
    assert (await api.send("GET", f"/runs/{reply.json['id']}")).json["labels"] == run["labels"]
    wrong = await api.send("POST", "/runs", {**run, "labels": {"": "x"}})
    assert wrong.status == 422
