"""No caller reaches a unique key of another kind: of a retry, a follow-up, a trigger, or of work of others."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.errors import InvalidRequest
from horarium.model import KEY_BYTES_MAX, callers_key, key_as_given

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


async def test_an_answer_says_what_became_of_the_call(api: Api) -> None:
    asked = {"target": QUEUE, "unique": {"key": "k", "on_conflict": "replace"}, "payload": 1}
    made = await api.post("/runs", asked)
    assert (made.status, made.json["outcome"]) == (201, "created")
    again = await api.post("/runs", {**asked, "payload": 2})
    assert (again.status, again.json["outcome"], again.json["payload"]) == (200, "replaced", 2)
    assert (again.json["id"], (await api.get(f"/runs/{again.json['id']}")).json["payload"]) == (made.json["id"], 2)
    kept = await api.post("/runs", {**asked, "unique": {"key": "k"}})
    assert (kept.status, kept.json["outcome"]) == (200, "exists")
    debounced = {"target": QUEUE, "debounce": {"key": "d", "seconds": 30}}
    lines = (await api.post("/runs/batch", {"runs": [debounced, debounced, asked]})).json
    assert [line["outcome"] for line in lines] == ["created", "debounced", "replaced"]
    assert (await api.post("/runs", {**debounced, "unique_key": "d"})).status == 422


async def test_a_bound_key_replaces_no_run_of_others(api: Api) -> None:
    key = {"name": "k", "roles": ["producer"], "queues": ["mine"]}
    made = (await api.post("/keys", key)).json["key"]
    rule = {"unique": {"key": "k", "on_conflict": "replace"}}
    await api.post("/runs", {"target": {**QUEUE, "queue": "theirs"}, "payload": 1, **rule})
    bound = {"headers": {"authorization": f"Bearer {made}"}}
    refused = await api.post("/runs", {"target": QUEUE, "payload": 2, **rule}, **bound)
    assert (refused.code, refused.json["detail"]) == ("conflict", "unique.key: 'k' is taken; choose another one")
    assert (await api.get("/runs")).json["items"][0]["payload"] == 1


@pytest.mark.parametrize(
    ("path", "rule"),
    [(path, rule) for path in ("/runs", "/runs/batch", "/batches") for rule in ({}, {"unique_key": "k1"})]
    + [(path, rule) for path in ("/runs", "/runs/batch")
       for rule in ({"unique": {"key": "k1", "on_conflict": "replace"}}, {"debounce": {"key": "k1", "seconds": 9}})],
)  # fmt: skip
async def test_a_run_in_another_queue_is_no_answer(api: Api, path: str, rule: dict[str, Any]) -> None:
    """Nobody is told of a run that is to do other work, and no payload goes to the workers of others."""
    mine = {"target": QUEUE, "payload": 1, **rule}
    theirs = {"target": {**QUEUE, "queue": "theirs"}, "payload": 2, **rule}
    for asked in (mine, theirs):
        reply = await api.post(path, asked if path == "/runs" else {"runs": [asked]}, **TRIGGERED)
    problem = reply.json[0]["problem"] if path == "/runs/batch" else reply.json
    refused = (409, "conflict") if rule else (422, "invalid_request")
    assert (problem["status"], problem["code"]) == refused, reply.body
    runs = (await api.get("/runs")).json["items"]
    assert [(run["queue"], run["payload"]) for run in runs] == [("pull/mine", 1)]


@pytest.mark.parametrize(
    "other",
    [{"payload": 2}, {"payload": None}, {"priority": 1}, {"retry": {"attempts_max": 1}}, {"labels": {"team": "b"}},
     {"target": {"type": "http", "url": "https://example.com/x"}}, {"fair": "a"}],
    ids=str,
)  # fmt: skip
async def test_a_key_of_another_request_is_refused_and_that_of_the_same_is_not(api: Api, other: dict[str, Any]) -> None:
    """The Idempotency-Key HTTP header field (IETF draft), section 2.7."""
    asked = {"target": QUEUE, "payload": {"a": 1, "b": 2}, "delay_seconds": 5, "labels": {"team": "a"}}
    first = await api.post("/runs", asked, **TRIGGERED)
    api.clock.advance(1)
    again = await api.post("/runs", {**asked, "payload": {"b": 2, "a": 1}}, **TRIGGERED)
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    reply = await api.post("/runs", {**asked, **other}, **TRIGGERED)
    assert (reply.status, reply.json["field"]) == (422, "Idempotency-Key"), reply.body
    assert first.json["id"] in reply.json["detail"]
    assert (await api.post("/runs", {**asked, **other})).status == 201


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_a_key_of_another_trigger_or_retry_is_refused(api: Api, overlap: str) -> None:
    await api.add_job(overlap=overlap)
    run = (await api.post("/jobs/job/trigger", {"payload": {"a": 1, "b": 2}}, **TRIGGERED)).json["id"]
    await api.post(f"/runs/{run}/cancel")
    retried = (await api.post(f"/runs/{run}/retry", **TRIGGERED)).json["id"]
    made = {"/jobs/job/trigger": run, f"/runs/{run}/retry": retried}
    for path, id in made.items():
        again = await api.post(path, {"payload": {"b": 2, "a": 1}}, **TRIGGERED)
        assert (again.status, again.json["id"]) == (201, id)
        reply = await api.post(path, {"payload": 3}, **TRIGGERED)
        assert (reply.status, reply.json["field"]) == (422, "Idempotency-Key"), reply.body
        assert id in reply.json["detail"]
    assert (await api.post("/jobs/job/trigger", **TRIGGERED)).status == 422
    assert (await api.post(f"/runs/{run}/retry", **TRIGGERED)).json["id"] == retried
    assert len((await api.get("/runs")).json["items"]) == 2


@pytest.mark.parametrize("key", ["Kim Müller", "日本 \n", "a%20b", "%", "=", " ", "a 2", "ä" * 100])
async def test_a_key_is_any_text(api: Api, key: str) -> None:
    first = await api.post("/runs", {"target": QUEUE, "unique_key": key})
    again = await api.post("/runs", {"target": QUEUE, "unique_key": key})
    other = await api.post("/runs", {"target": QUEUE, "unique_key": quote(key, safe="")[:150] + "+"})
    assert (first.status, again.status, other.status) == (201, 200, 201)
    assert again.json["id"] == first.json["id"]


async def test_a_key_of_more_than_200_bytes_is_refused(api: Api) -> None:
    reply = await api.post("/runs", {"target": QUEUE, "unique_key": "ä" * 101})
    assert (reply.status, "200 bytes" in reply.json["detail"]) == (422, True), reply.json


@given(st.text(min_size=1, max_size=50).filter(lambda key: len(key.encode("utf-8", "replace")) <= KEY_BYTES_MAX))
def test_a_stored_key_is_that_of_one_caller(key: str) -> None:
    try:
        stored = callers_key(key)
    except InvalidRequest:
        assert any("\ud800" <= each <= "\udfff" for each in key)
        return
    assert stored.isascii()
    assert " " not in stored
    assert key_as_given(stored) == key


async def test_a_debounce_that_ends_before_its_first_wait_is_refused(api: Api) -> None:
    rule = {"key": "k", "seconds": 30, "max_seconds": 29}
    reply = await api.post("/runs", {"target": {"type": "queue", "queue": "q"}, "debounce": rule})
    assert (reply.status, reply.json["field"]) == (422, "debounce.max_seconds"), reply.body
    rule["max_seconds"] = 30
    assert (await api.post("/runs", {"target": {"type": "queue", "queue": "q"}, "debounce": rule})).status == 201
