"""Each limit, at its edge and one beyond."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
import pytest

from horarium.api.limits import (
    BODY_BYTES_MAX,
    JSON_DEPTH_MAX,
    KEY_CHARS_MAX,
    REPORT_BYTES_MAX,
    RULE_BYTES_MAX,
)
from horarium.api.problems import MalformedBody
from horarium.api.reading import check_text
from horarium.model import LABELS_MAX
from horarium.ports import BATCH_MAX, PAGE_MAX
from horarium.triggers import FIRES_MAX

from .conftest import JSON, Api, a_definition, ask


def padded(body: dict[str, Any], size: int) -> bytes:
    """The body, as large as that by spaces."""
    text = msgspec.json.encode(body)
    return text + b" " * (size - len(text))


async def test_a_body_of_one_mebibyte_is_taken_and_not_one_byte_more(api: Api) -> None:
    assert (await api.post("/jobs", padded(a_definition(), BODY_BYTES_MAX))).status == 201
    reply = await api.post("/jobs", padded(a_definition("b"), BODY_BYTES_MAX + 1))
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert "1,048,576" in reply.json["detail"]


@pytest.mark.parametrize("report", ["heartbeat", "complete", "fail"])
async def test_a_report_is_smaller(api: Api, report: str) -> None:
    run = await api.add_run()
    await api.claim()
    body = {"token": 1, "error": "x"} if report == "fail" else {"token": 1}
    too_large = await api.post(f"/runs/{run.id}/{report}", padded(body, REPORT_BYTES_MAX + 1))
    assert (too_large.status, too_large.code) == (413, "body_too_large")
    assert (await api.post(f"/runs/{run.id}/{report}", padded(body, REPORT_BYTES_MAX))).status == 200


async def test_a_body_that_is_announced_too_large_is_not_read(api: Api) -> None:
    headers = {"host": "testserver", "content-type": JSON, "content-length": str(BODY_BYTES_MAX + 1)}
    reply = await ask(api.app, "POST", "/api/v1/jobs", headers, [b" " * 1024] * 2048)
    assert (reply.status, reply.unread) == (413, 2048)


async def test_a_body_that_announces_no_size_is_read_up_to_the_limit(api: Api) -> None:
    headers = {"host": "testserver", "content-type": JSON, "transfer-encoding": "chunked"}
    reply = await ask(api.app, "POST", "/api/v1/jobs", headers, [b" " * 1024] * 2048)
    assert (reply.status, reply.unread) == (413, 2048 - 1025)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


async def test_json_nests_64_levels_and_no_deeper(api: Api) -> None:
    await api.add_job()
    fits = b'{"payload": ' + nested(JSON_DEPTH_MAX - 1) + b"}"
    assert (await api.post("/jobs/job/trigger", fits)).status == 201
    reply = await api.post("/jobs/job/trigger", b'{"payload": ' + nested(JSON_DEPTH_MAX) + b"}")
    assert (reply.status, reply.code) == (400, "malformed_body")
    with pytest.raises(MalformedBody, match="nests deeper"):
        check_text(b'["]","\\"]}","","\\\\",' * (JSON_DEPTH_MAX + 1), nul=False)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"{}"] * 500) + b"]",
        b'["' + b"[" * 500 + b'"]',
        b'["\\"' + b"[" * 500 + b'\\\\"]',
        b"[" + b",".join([b'{"a":["]]]]"]}'] * 100) + b"]",
    ],
)
def test_brackets_side_by_side_or_in_a_text_do_not_nest(body: bytes) -> None:
    check_text(body, nul=False)


@pytest.mark.parametrize(
    "body",
    [b"[" * 500_000, b"[" * 65 + b'"' + b'\\"' * 500_000, b"[]" * 500_000, b"{" * 65 + b'"' * 900_000, b'"[' * 300_000],
)
def test_no_body_takes_long_to_look_at(body: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(MalformedBody):
        check_text(body, nul=False)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("size", [RULE_BYTES_MAX + 1, 200_000])
async def test_a_rule_of_more_than_8_kib_is_refused(api: Api, size: int) -> None:
    trigger = {"type": "cron", "expression": "* " * (size // 2 + 1)}
    for path, body in (("/jobs", a_definition(trigger=trigger)), ("/preview", {"trigger": trigger})):
        reply = await api.post(path, body)
        assert (reply.code, reply.json["field"]) == ("invalid_trigger", "trigger")
        assert "8,192" in reply.json["detail"]
    await api.add_job()
    assert (await api.send("PATCH", "/jobs/job", {"trigger": trigger})).code == "invalid_trigger"


async def test_a_batch_holds_1000_reports(api: Api) -> None:
    report = {"id": "0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37", "token": 1, "outcome": "completed"}
    assert len((await api.post("/runs/settle", [report] * BATCH_MAX)).json) == BATCH_MAX
    assert (await api.post("/runs/settle", [report] * (BATCH_MAX + 1))).code == "invalid_request"


async def test_a_claim_brings_1000_runs(api: Api) -> None:
    for number in range(BATCH_MAX + 1):
        await api.add_run(number)
    assert len(await api.claim(BATCH_MAX)) == BATCH_MAX


async def test_a_page_holds_200_items(api: Api) -> None:
    for number in range(PAGE_MAX + 1):
        await api.add_run(number)
    assert len((await api.get(f"/runs?limit={PAGE_MAX}")).json["items"]) == PAGE_MAX
    assert len((await api.get("/runs")).json["items"]) == 50
    assert (await api.get(f"/runs?limit={PAGE_MAX + 1}")).status == 422


async def test_a_thousand_fire_times_are_shown(api: Api) -> None:
    await api.add_job()
    assert len((await api.get(f"/jobs/job/fires?count={FIRES_MAX}")).json["fires"]) == FIRES_MAX
    assert (await api.get(f"/jobs/job/fires?count={FIRES_MAX + 1}")).status == 422
    trigger = {"type": "interval", "every_seconds": 1}
    assert len((await api.post("/preview", {"trigger": trigger, "count": FIRES_MAX})).json["fires"]) == FIRES_MAX
    assert (await api.post("/preview", {"trigger": trigger, "count": FIRES_MAX + 1})).json["field"] == "count"


async def test_a_job_has_64_labels(api: Api) -> None:
    labels = {f"l{number}": "x" for number in range(LABELS_MAX)}
    assert (await api.post("/jobs", a_definition(labels=labels))).status == 201
    reply = await api.post("/jobs", a_definition("b", labels={**labels, "one": "more"}))
    assert (reply.code, reply.json["field"]) == ("invalid_job", "labels")


async def test_an_idempotency_key_has_200_characters(api: Api) -> None:
    await api.add_job()
    for length, status in ((KEY_CHARS_MAX, 201), (KEY_CHARS_MAX + 1, 422), (0, 422)):
        reply = await api.post("/jobs/job/trigger", headers={"idempotency-key": "k" * length})
        assert reply.status == status


async def test_a_payload_of_more_than_256_kib_is_refused(api: Api) -> None:
    await api.add_job()
    assert (await api.post("/jobs/job/trigger", {"payload": "x" * 262_142})).status == 201
    assert (await api.post("/jobs/job/trigger", {"payload": "x" * 262_143})).json["field"] == "payload"
