"""Faults over the API: listed worst first, acknowledged with a reason, open again once they are others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from horarium.clock import to_datetime

from .conftest import Api, a_definition

KEY = "first-key-1234"


async def faults(api: Api, **how: Any) -> dict[str, Any]:
    found = (await api.get("/attention", **how)).json
    assert found["truncated"] is False
    return {each["cause"]: each for each in found["items"]}


async def fail(api: Api, job: str, error: str = "HTTP 503", **how: Any) -> None:
    made = (await api.post(f"/jobs/{job}/trigger", **how)).json
    asked = {"queues": [made["queue"].removeprefix("pull/")], "limit": 1, "worker": "w"}
    (run,) = (await api.post("/runs/claim", asked, **how)).json["runs"]
    report = {"token": run["lease"]["token"], "error": error, "retryable": False}
    assert (await api.post(f"/runs/{run['id']}/fail", report, **how)).status == 200
    api.clock.advance(1)


async def acknowledge(api: Api, cause: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    asked = {"cause": cause, "reason": "known", **body}
    return await api.post("/attention/acknowledge", asked, headers=headers or {})


async def test_a_cause_is_acknowledged_until_it_is_another(api: Api) -> None:
    assert await faults(api) == {}
    await api.add_job("bank")
    await fail(api, "bank")
    await fail(api, "bank")
    since = (await faults(api))["failing/bank"]["since"]
    assert await faults(api) == {
        "failing/bank": {
            "cause": "failing/bank", "since": since, "text": "job bank failed, 2 in a row: HTTP 503",
            "acknowledged": None,
        }
    }  # fmt: skip
    made = await acknowledge(api, "failing/bank")
    assert made.status == 200, made.body
    assert made.json["acknowledged"]["reason"] == "known"
    assert await faults(api) == {"failing/bank": made.json}
    assert (await api.post("/attention/reopen", {"cause": "failing/bank"})).status == 204
    assert (await faults(api))["failing/bank"]["acknowledged"] is None
    await acknowledge(api, "failing/bank")
    await fail(api, "bank", "disk full")
    assert (await faults(api))["failing/bank"]["acknowledged"] is None, "it is another error"


async def test_a_queue_without_a_worker_is_one_cause_and_its_late_jobs_are_none(api: Api) -> None:
    await api.add_job("bank")
    await api.post("/jobs/bank/trigger")
    api.clock.advance(61)
    (cause,) = await faults(api)
    assert cause.startswith("unserved/pull/")
    assert (await acknowledge(api, cause)).json["acknowledged"]["by"] == "local"


async def test_a_hold_and_a_calendar_that_ends_soon_need_attention(api: Api) -> None:
    made = (await api.post("/holds", {"scope": {"queue": "work"}, "reason": "moving"})).json
    await api.post("/holds", {"scope": {"all": True}, "reason": "next year", "from": "2099-01-01T00:00:00Z"})
    today = to_datetime(api.clock.now()).date()
    soon = f"the calendar soon ends on {today + timedelta(days=59)}; beyond that day only its weekend counts"
    for name, days in (("soon", 59), ("later", 61)):
        await api.send("PUT", f"/calendars/{name}", {"ends_on": f"{today + timedelta(days=days)}"})
    await api.send("PUT", "/calendars/endless", {})
    assert {cause: each["text"] for cause, each in (await faults(api)).items()} == {
        f"held/{made['id']}": "queue work is on hold until it is lifted: moving",
        "calendar/soon": soon,
    }
    assert (await acknowledge(api, "calendar/soon")).json["acknowledged"]["reason"] == "known"
    assert (await api.send("DELETE", f"/holds/{made['id']}")).status == 204
    assert set(await faults(api)) == {"calendar/soon"}


async def test_a_run_that_a_hold_keeps_back_is_not_late(api: Api) -> None:
    for name in ("bank", "other"):
        await api.add_job(name)
        await api.post(f"/jobs/{name}/trigger")
    api.clock.advance(31)
    assert set(await faults(api)) == {"late/bank", "late/other"}
    made = (await api.post("/holds", {"scope": {"job": "bank"}, "reason": "moving"})).json
    assert set(await faults(api)) == {f"held/{made['id']}", "late/other"}
    everything = (await api.post("/holds", {"scope": {"all": True}, "reason": "moving"})).json
    assert set(await faults(api)) == {f"held/{made['id']}", f"held/{everything['id']}"}


async def test_what_can_not_be_acknowledged_is_told(api: Api) -> None:
    await api.add_job("bank")
    assert (await acknowledge(api, "failing/bank")).code == "not_found"
    await fail(api, "bank")
    for wrong in ({"reason": ""}, {"until": "2001-01-01T00:00:00Z"}, {"until": "2099-01-01T00:00:00Z"}, {"x": 1}):
        assert (await acknowledge(api, "failing/bank", **wrong)).status == 422, wrong
    assert (await api.post("/attention/reopen", {"cause": "failing/bank"})).code == "not_found"


async def test_a_bound_caller_takes_note_of_its_own_jobs_alone() -> None:
    api, admin = Api([KEY]), {"authorization": f"Bearer {KEY}"}
    asked = {"name": "team", "roles": ["operator"], "labels": {"team": "bank"}}
    key = (await api.post("/keys", asked, headers=admin)).json["key"]
    mine = {"authorization": f"Bearer {key}"}
    for name, team in (("bank", "bank"), ("other", "other")):
        await api.post("/jobs", a_definition(name, labels={"team": team}), headers=admin)
        await fail(api, name, headers=admin)
    assert set(await faults(api, headers=admin)) == {"failing/bank", "failing/other"}
    assert set(await faults(api, headers=mine)) == {"failing/bank"}
    assert (await acknowledge(api, "failing/other", headers=mine)).code == "not_found"
    noted = await acknowledge(api, "failing/bank", headers=mine)
    assert noted.json["acknowledged"]["by"] == "team"
    assert (await faults(api, headers=admin))["failing/bank"] == noted.json
