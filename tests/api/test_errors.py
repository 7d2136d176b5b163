"""Every refusal is a problem with a stable code, and none shows what it should not."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horarium import errors
from horarium.api.problems import OUTAGE_OVER_SECONDS, PROBLEMS, problem_of
from horarium.errors import HorariumError

from .conftest import Api, a_definition, ask

DOCS = Path(__file__).parents[2] / "docs" / "api.md"


def tree(root: type[HorariumError]) -> Iterator[type[HorariumError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def _of_the_server(module: str) -> bool:
    return module.startswith("horarium.") and not module.startswith(("horarium.client", "horarium.cli"))


def test_every_error_has_a_status_and_a_title() -> None:
    inner = {"error", "broken_invariant"}
    codes = {kind.code for kind in tree(HorariumError) if _of_the_server(kind.__module__)}
    assert codes - inner <= set(PROBLEMS)


def test_every_code_stands_in_the_docs_with_its_status() -> None:
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {code: str(status) for code, (status, _) in PROBLEMS.items()}


@pytest.mark.parametrize(
    "path", ["/nope", "//nope", "//api", "//api/v2/jobs", "/jobs/a/b", "/jobs/a/pause/x", "//.env"]
)
async def test_an_unknown_address_is_a_problem(refusing: Api, path: str) -> None:
    assert (await refusing.get(path)).code == "no_such_route"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/jobs", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/jobs/a", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("PUT", "/runs", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/runs/claim", None),
        ("BREW", "/jobs", "GET, HEAD, OPTIONS, POST"),
        ("DELETE", "//healthz", "GET, HEAD, OPTIONS"),
        ("TRACE", "//swagger-ui", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_which_are_right(
    refusing: Api, method: str, path: str, allowed: str | None
) -> None:
    reply = await refusing.send(method, path)
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    if allowed is not None:
        assert reply.headers["allow"] == allowed


async def test_options_lists_all_methods_of_a_path(api: Api) -> None:
    for path, methods in (("/jobs/a", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"), ("/runs", "GET, HEAD, OPTIONS, POST")):
        reply = await api.send("OPTIONS", path)
        assert (reply.status, reply.headers["allow"]) == (204, methods)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b"{'a': 1}", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\xff"}', b'{"a": "\\ud800"}',
        b'{"a": "\\udc00 and more text"}', b"\xef\xbb\xbf{}", b'{"a": 1} x', b'{"a": "\x01"}', b"\x00", b"[" * 5000,
        "{}".encode("utf-16"),
    ],
)  # fmt: skip
async def test_a_body_that_is_no_json_is_malformed(refusing: Api, body: bytes) -> None:
    for method, path in (("POST", "/jobs"), ("PATCH", "/jobs/job"), ("POST", "/runs/claim"), ("POST", "/runs/settle")):
        reply = await refusing.send(method, path, body)
        assert (reply.status, reply.code) == (400, "malformed_body"), path


@pytest.mark.parametrize("body", [b"null", b"1", b'"x"', b"true", b"[]", b"1e400", b"-1E+999", b"9" * 5000])
async def test_a_body_of_another_shape_is_invalid(refusing: Api, body: bytes) -> None:
    for method, path in (("POST", "/jobs"), ("PUT", "/jobs/job"), ("POST", "/runs/claim"), ("POST", "/preview")):
        assert (await refusing.send(method, path, body)).status == 422


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000])
async def test_a_number_that_no_reader_could_take_is_refused(api: Api, number: str) -> None:
    await api.add_job()
    run = await api.add_run()
    bodies = {
        "/jobs": f'{{"name": "x", "trigger": {{}}, "target": {{"type": "queue", "queue": "q", "payload": {number}}}}}',
        "/jobs/job/trigger": f'{{"payload": {number}}}',
        f"/runs/{run.id}/complete": f'{{"token": 1, "result": {number}}}',
        f"/runs/{run.id}/heartbeat": f'{{"token": {number}}}',
        "/runs/claim": f'{{"queues": ["q"], "wait_seconds": {number}}}',
    }
    for path, body in bodies.items():
        assert (await api.post(path, body.encode())).code == "invalid_request", path


async def test_a_large_integer_is_kept_exactly(api: Api) -> None:
    await api.add_job()
    body = b'{"payload": 123456789012345678901234567890}'
    assert (await api.post("/jobs/job/trigger", body)).status == 201
    assert b"123456789012345678901234567890" in (await api.post("/runs/claim", {"queues": ["work"]})).body


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"a": "\x00"}}, {"target": {"type": "queue", "queue": "q", "payload": {"\x00": 1}}},
        {"target": {"type": "http", "url": "https://x/\x00"}}, {"trigger": {"type": "phrase", "text": "every day\x00"}},
    ],
)  # fmt: skip
async def test_a_nul_in_a_job_is_refused(refusing: Api, fields: dict[str, Any]) -> None:
    reply = await refusing.post("/jobs", a_definition(**fields))
    assert (reply.status, reply.code) == (422, "invalid_request")


async def test_an_escaped_backslash_before_u0000_is_no_nul(api: Api) -> None:
    assert (await api.post("/jobs", a_definition(labels={"a": "\\u0000"}))).status == 201


async def test_a_nul_in_a_report_is_kept_or_replaced(api: Api) -> None:
    first, second = await api.add_run(0), await api.add_run(1)
    await api.claim(2)
    done = await api.post(f"/runs/{first.id}/complete", {"token": 1, "result": "a\x00b"})
    failed = await api.post(f"/runs/{second.id}/fail", {"token": 1, "error": "a\x00b"})
    assert (done.json["result"], failed.json["error"]) == ("a\x00b", "a\N{REPLACEMENT CHARACTER}b")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
async def test_a_body_must_be_json(refusing: Api, kind: str) -> None:
    for method, path in (("POST", "/jobs"), ("PUT", "/jobs/x"), ("POST", "/runs/claim"), ("POST", "/jobs/x/pause")):
        reply = await refusing.send(method, path, b"{}", headers={"content-type": kind})
        assert (reply.status, reply.code) == (415, "unsupported_media_type")


async def test_a_body_without_a_type_is_not_taken_for_json(api: Api) -> None:
    for headers in ({"content-length": "2"}, {"transfer-encoding": "chunked"}):
        reply = await ask(api.app, "POST", "/api/v1/jobs", {"host": "testserver", **headers}, [b"{}"])
        assert reply.code == "unsupported_media_type"


async def test_no_body_is_of_any_type(api: Api) -> None:
    await api.add_job()
    for path in ("pause", "resume", "trigger"):
        reply = await api.post(f"/jobs/job/{path}", headers={"content-type": "application/octet-stream"})
        assert reply.status in (200, 201)


async def test_a_merge_patch_is_for_patch_only(api: Api) -> None:
    reply = await api.post("/jobs", a_definition(), headers={"content-type": "application/merge-patch+json"})
    assert reply.status == 415


@pytest.mark.parametrize(
    "call", ["get_jobs", "add_jobs", "list_jobs", "list_runs", "claim_runs", "stats", "list_nodes"]
)
async def test_a_store_that_is_down_is_an_outage(api: Api, call: str) -> None:
    api.failing.add(call)
    asked = {
        "get_jobs": ("GET", "/jobs/job", None), "add_jobs": ("POST", "/jobs", a_definition()),
        "list_jobs": ("GET", "/jobs", None), "list_runs": ("GET", "/runs", None),
        "claim_runs": ("POST", "/runs/claim", {"queues": ["q"], "wait_seconds": 5}), "stats": ("GET", "/stats", None),
        "list_nodes": ("GET", "/nodes", None),
    }[call]  # fmt: skip
    reply = await api.send(*asked)
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "store_unavailable", "1")


async def test_an_outage_is_told_of_once_however_many_requests_it_refuses(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.failing.add("list_jobs")
    with caplog.at_level(logging.WARNING, "horarium.api"):
        for _ in range(50):
            assert (await api.get("/jobs")).status == 503
            api.clock.advance(seconds=OUTAGE_OVER_SECONDS - 1)
        assert [record.message.partition(":")[0] for record in caplog.records] == ["GET /api/v1/jobs"]
        api.clock.advance(seconds=1)
        await api.get("/jobs")
    assert [record.message for record in caplog.records][1] == "49 more requests were refused in the outage before"
    assert len(caplog.records) == 3


async def test_what_nobody_expected_shows_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("postgresql://user:canary@host/db")

    monkeypatch.setattr(api.operations.jobs, "get_job", broken)
    with caplog.at_level(logging.ERROR, "horarium.api"):
        reply = await api.get("/jobs/job")
        assert (reply.status, reply.code) == (500, "internal_error")
        assert "GET /api/v1/jobs/job failed" in caplog.text
        assert caplog.text.count("Traceback") == 1
        for _ in range(5):
            await api.get("/jobs/job")
        assert caplog.text.count("Traceback") == 1, "one place is traced once a minute"
        assert caplog.text.count("GET /api/v1/jobs/job failed: RuntimeError") == 5
        api.clock.advance(61)
        await api.get("/jobs/job")
        assert caplog.text.count("Traceback") == 2
    assert b"canary" not in reply.body


def test_a_broken_invariant_shows_nothing() -> None:
    problem = problem_of(errors.BrokenInvariant("canary"))
    assert (problem.code, problem.status) == ("internal_error", 500)
    assert "canary" not in problem.detail


async def test_a_query_string_that_can_not_be_read_is_malformed(api: Api) -> None:
    assert (await api.get("/jobs?prefix=%ff")).code == "malformed_request"
    assert (await api.get("/jobs?" + "&".join(["label=a=b"] * 101))).code == "malformed_request"


async def test_every_answer_carries_security_headers(api: Api) -> None:
    for path in ("/jobs", "/nope", "//healthz", "//swagger-ui", "//docs/openapi.json", "//"):
        headers = (await api.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
