"""Bad input at the door: refused with a problem that names the field, at once, and nothing is written."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest

from tests.blackbox.outside import Server

GOOD: dict[str, Any] = {
    "trigger": {"type": "interval", "every_seconds": 60},
    "target": {"type": "queue", "queue": "bad"},
}
LONG = "x" * 100_000

FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("colour", {"colour": "red"}),
    ("overlap", {"overlap": "never"}),
    ("catch_up", {"catch_up": {"policy": "some"}}),
    ("catch_up", {"catch_up": {"policy": "all", "window_seconds": -1}}),
    ("retry", {"retry": {"attempts_max": 0}}),
    ("retry", {"retry": {"attempts_max": 10**9}}),
    ("timeouts", {"timeouts": {"heartbeat_seconds": 0}}),
    ("priority", {"priority": "high"}),
    ("concurrency", {"concurrency": {"max": 1}}),
    ("concurrency", {"concurrency": {"key": "k", "max": 0}}),
    ("jitter_seconds", {"jitter_seconds": -1}),
    ("starts_at", {"starts_at": "2027-01-01T00:00:00"}),
    ("ends_at", {"starts_at": "2027-01-02T00:00:00Z", "ends_at": "2027-01-01T00:00:00Z"}),
    ("fires_max", {"fires_max": 0}),
    ("retention", {"retention": {"runs_max": -1}}),
    ("labels", {"labels": {f"k{n}": "v" for n in range(65)}}),
    ("labels", {"labels": {"a b": "v"}}),
    ("target", {"target": {"type": "fax"}}),
    ("target", {"target": {"type": "queue", "queue": "../x"}}),
    ("target", {"target": {"type": "http", "url": "https://example.com", "headers": {"A": "b\r\nC: d"}}}),
    ("target", {"target": {"type": "http", "url": "https://example.com", "headers": {"webhook-id": "x"}}}),
    ("target", {"target": {"type": "http", "url": "https://example.com", "signing_secret": "whsec_short"}}),
    *(
        ("name", {"name": name})
        for name in ("", "../etc", "a/b", "a b", "a\nb", "$(id)", "%0a", "{{7*7}}", "<svg>", LONG)
    ),
]
TRIGGERS: list[dict[str, Any]] = [
    *({"type": "interval", "every_seconds": n} for n in (0, -1, 0.01, 1e300, 10**40, "1", True, None)),
    *(
        {"type": "once", "at": text}
        for text in ("2020-01-01T00:00:00Z", "2030-01-01T00:00:00", "9999-12-31T23:59:59Z", "x")
    ),
    *(
        {"type": "cron", "expression": text}
        for text in ("", "* * * *", "0 0 30 2 *", "*/0 * * * *", "0-99999999 * * * *", "* * * * *\n* * * * *",
                     "* * * * * $(id)", "@reboot", LONG, "1," * 50_000, "* " * 50_000)
    ),
    *(
        {"type": "cron", "expression": "0 3 * * *", "timezone": zone}
        for zone in ("Mars/Phobos", "../../etc/passwd", 5, "")
    ),
    *(
        {"type": "phrase", "text": text}
        for text in ("", LONG, "every " * 20_000, "on february 30", "tuesday at 9 bananas")
    ),
    *(
        {"type": "rrule", "rrule": text}
        for text in ("", "FREQ=DAILY;INTERVAL=0", "FREQ=DAILY;COUNT=0", "FREQ=DAILY;COUNT=-1", "FREQ=DAILY;FREQ=DAILY",
                     "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
                     "FREQ=MINUTELY;INTERVAL=1440;BYHOUR=5;BYMINUTE=3;BYSECOND=61", "FREQ=DAILY;INTERVAL=1" + "0" * 20,
                     "FREQ=DAILY;BYSETPOS=" + "1," * 100_000 + "1", "FREQ=DAILY;UNTIL=20200101T000000Z",
                     "DTSTART:20260101T000000Z\nRRULE:FREQ=MINUTELY\nEXRULE:FREQ=MINUTELY",
                     "DTSTART;TZID=Nope/Zone:20260101T000000\nRRULE:FREQ=DAILY")
    ),
    {"type": "sundial"}, {}, {"type": "any_of", "triggers": []},
]  # fmt: skip


def refused(server: Server, body: Any, **more: Any) -> dict[str, Any]:
    problem = server.refused("POST", "/jobs", body, **more)
    assert "Traceback" not in json.dumps(problem)
    assert "regex" not in problem["detail"]
    assert len(problem["detail"]) < 1_000
    return problem


@pytest.mark.parametrize(("field", "change"), FIELDS, ids=range(len(FIELDS)))
def test_a_wrong_field_is_named(server: Server, field: str, change: dict[str, Any]) -> None:
    problem = refused(server, {"name": "bad", **GOOD, **change})
    named = [problem.get("field") or "", *(fault["field"] for fault in problem.get("errors", ()))]
    assert any(each.startswith(field) for each in named), problem
    assert server.ask("GET", "/api/v1/jobs/bad").status == 404


@pytest.mark.parametrize("trigger", TRIGGERS, ids=range(len(TRIGGERS)))
def test_a_rule_that_cannot_be_is_refused_at_once(server: Server, trigger: dict[str, Any]) -> None:
    problem = refused(server, {"name": "bad", **GOOD, "trigger": trigger})
    named = [problem.get("field") or "", *(fault["field"] for fault in problem.get("errors", ()))]
    assert any(each.startswith("trigger") for each in named), problem
    if trigger != {"type": "once", "at": "2020-01-01T00:00:00Z"} and "UNTIL" not in str(trigger):
        server.refused("POST", "/preview", {"trigger": trigger})


def body(payload: str) -> bytes:
    return b'{"name": "bad", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "queue", ' + (
        f'"queue": "bad", "payload": {payload}'.encode("latin-1") + b"}}"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"{", b"{} x", b"\xff", b"\xef\xbb\xbf{}", b"[" * 200_000, b'{"a":' * 100_000,
        body(r'"\u0000"'), body(r'"\ud800"'), body("NaN"), body("Infinity"), body("1e400"),
        body("[" * 100 + "]" * 100), body('"\xff"'),
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_no_good_json_is_refused(server: Server, raw: bytes) -> None:
    refused(server, None, raw=raw)
    assert server.ask("GET", "/api/v1/jobs/bad").status == 404


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    for raw in (b"x" * (1024 * 1024 + 1), (b"x" * 65_536 for _ in range(48)), b"x" * (30 << 20)):
        reply = server.ask("POST", "/api/v1/jobs", raw=raw)
        assert (reply.status, reply.problem["code"]) == (413, "body_too_large")
    assert server.refused("POST", "/runs/x/complete", {"token": 1, "result": "x" * 70_000})["status"] == 413
    assert process.memory_info().rss - before < 20 << 20


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?limit=0", "/jobs?limit=201", "/jobs?limit=x", "/jobs?cursor=zzz", "/jobs?cursor=%ff", "/jobs?colour=red",
        "/jobs?label=x", "/runs?state=lost", "/runs?since=yesterday", "/runs?until=2026-01-01T00:00:00", "/runs/nope",
        "/runs?cursor=MTpqb2JzOmE", "/jobs/..%2f..%2fetc%2fpasswd", "/jobs/%00", "/jobs/nope/fires?count=1001", "/nope",
    ],
)  # fmt: skip
def test_a_wrong_question_gets_a_problem(server: Server, path: str) -> None:
    server.refused("GET", path)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/runs/claim", {}),
        ("/runs/claim", {"queues": []}),
        ("/runs/claim", {"queues": ["a b"]}),
        ("/runs/claim", {"queues": ["q"], "limit": 1001}),
        ("/runs/claim", {"queues": ["q"], "wait_seconds": 61}),
        ("/runs/settle", {}),
        ("/runs/settle", [{}] * 1001),
        ("/runs/settle", [{"id": "x", "token": 1, "outcome": "perhaps"}]),
        ("/runs/nope/heartbeat", {"token": "x"}),
        ("/runs/nope/complete", {"token": 2**70}),
        ("/preview", {"trigger": {"type": "interval", "every_seconds": 1}, "count": 1001}),
        ("/preview", {"trigger": {"type": "interval", "every_seconds": 1}, "after": "9999-01-01T00:00:00Z"}),
        ("/jobs/nope/backfill", {"start": "x", "end": "y"}),
    ],
)
def test_a_wrong_order_gets_a_problem(server: Server, path: str, asked: Any) -> None:
    problem = server.refused("POST", path, asked)
    assert "regex" not in problem["detail"]


def test_a_page_of_another_site_may_change_nothing(server: Server) -> None:
    foreign = ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"})
    for headers in foreign:
        assert server.refused("POST", "/jobs", {"name": "bad", **GOOD}, headers=headers)["status"] == 403
    assert server.refused("POST", "/jobs", raw=b"a=b", headers={"Content-Type": "text/plain"})["status"] == 415


def test_every_answer_carries_the_headers_of_care(server: Server) -> None:
    for path in ("/", "/swagger-ui", "/api/v1/jobs", "/nope", "/healthz"):
        headers = server.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "unsafe" not in headers["content-security-policy"].split("style-src")[0]
        assert headers["access-control-allow-origin"] is None
        assert headers["server"] is None


def test_what_get_answers_head_does_too(server: Server) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/swagger-ui", "/docs/openapi.json", "/api/v1/jobs"):
        reply = server.ask("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
