"""No caller reaches a unique key of another kind: of a retry, a follow-up, a trigger, or of work of others."""

from __future__ import annotations

import pytest

from .conftest import Api, a_definition

QUEUE = {"type": "queue", "queue": "mine"}
TRIGGERED = {"headers": {"idempotency-key": "k1"}}


@pytest.mark.parametrize("overlap", ["allow", "skip"])
@pytest.mark.parametrize("written", ["other/k1", "@other/k1", "=other/k1", "k1", "/k1", "/@other/k1"])
async def test_no_run_of_a_caller_answers_for_a_trigger(api: Api, written: str, overlap: str) -> None:
    await api.post("/jobs", a_definition("other", overlap=overlap))
    taken = await api.post("/runs", {"target": QUEUE, "unique_key": written})
    first, again = (
        await api.post("/jobs/other/trigger", **TRIGGERED),
        await api.post("/jobs/other/trigger", **TRIGGERED),
    )
    assert (first.status, first.json["job"], again.json["id"]) == (201, "other", first.json["id"])
    assert first.json["id"] != taken.json["id"]


async def test_no_run_of_a_caller_takes_the_place_of_an_alert_or_a_retry(api: Api) -> None:
    channel = {"type": "webhook", "url": "https://alerts.example.com"}
    assert (await api.send("PUT", "/channels/ops", channel)).status < 300
    await api.post("/jobs", a_definition("job", target=QUEUE, on={"failed": [{"notify": "ops"}]}))
    run = (await api.post("/jobs/job/trigger")).json["id"]
    for key in (f"{run}/failed/notify:ops", f"retry/{run}"):
        assert (await api.post("/runs", {"target": {**QUEUE, "queue": "aside"}, "unique_key": key})).status == 201
    (claimed,) = (await api.post("/runs/claim", {"queues": ["mine"], "worker": "w"})).json["runs"]
    await api.post(f"/runs/{run}/fail", {"token": claimed["lease"]["token"], "error": "no", "retryable": False})
    told = await api.store.get_run_by_key(f"{run}/failed/notify:ops")
    assert told is not None
    assert told.queue == "notify"
    assert (await api.post("/runs/retry", {"ids": [run]})).json["done"] == 1


@pytest.mark.parametrize("job", ["retry", "follow"])
async def test_the_name_of_a_job_makes_no_key_of_another_kind(api: Api, job: str) -> None:
    await api.post("/jobs", a_definition(job, overlap="allow"))
    made = await api.post(f"/jobs/{job}/trigger", headers={"idempotency-key": "3/some-run"})
    assert made.status == 201
    assert await api.store.get_run_by_key(f"{job}/3/some-run") is None


async def test_a_key_of_a_job_that_was_deleted_is_a_conflict_for_the_next_of_its_name(api: Api) -> None:
    await api.post("/jobs", a_definition("job", overlap="allow"))
    first = await api.post("/jobs/job/trigger", **TRIGGERED)
    await api.send("DELETE", "/jobs/job")
    assert (await api.post("/jobs/job/trigger", **TRIGGERED)).json["id"] == first.json["id"], "its answer was lost"
    await api.post("/jobs", a_definition("job", overlap="allow"))
    reply = await api.post("/jobs/job/trigger", **TRIGGERED)
    assert (reply.status, reply.code) == (409, "conflict")
