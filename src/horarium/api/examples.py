"""The examples of the document. Each is sent to the real API by a test."""

from __future__ import annotations

from horarium.api.endpoints import Example
from horarium.api.limits import KEY_CHARS_MAX

IDEMPOTENCY = {
    "Idempotency-Key": f"Makes it safe to send the request again: 1 to {KEY_CHARS_MAX} visible ASCII characters."
}

RUN_ID = "0193a5c2-7b00-7f2e-9c41-5d1f0a8b6e37"

JOBS = (
    Example(
        "cron and a worker",
        {
            "name": "nightly-report",
            "trigger": {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"},
            "target": {"type": "queue", "queue": "reports", "payload": {"format": "pdf"}},
            "labels": {"team": "billing"},
            "retry": {"attempts_max": 5, "backoff_seconds": 30},
        },
    ),
    Example(
        "interval and HTTP",
        {
            "name": "ping",
            "trigger": {"type": "interval", "every_seconds": 60},
            "target": {"type": "http", "url": "https://example.com/hooks/ping", "timeout_seconds": 10},
            "overlap": "skip",
        },
    ),
    Example(
        "after two others, once a day",
        {
            "name": "load",
            "trigger": {"type": "after", "jobs": ["extract-a", "extract-b"], "within": "day"},
            "target": {"type": "queue", "queue": "load"},
        },
    ),
)
PATCHES = (Example("another priority", {"priority": 10, "labels": {"team": "sales"}}),)
IMPORTS = (
    Example(
        "two jobs",
        {
            "jobs": [
                {
                    "name": f"poll-{number}",
                    "trigger": {"type": "interval", "every_seconds": 60},
                    "target": {"type": "queue", "queue": "polls", "payload": {"customer": number}},
                }
                for number in (1, 2)
            ]
        },
    ),
)
RUNS = (
    Example(
        "in five minutes",
        {
            "target": {"type": "queue", "queue": "images", "payload": {"width": 640}},
            "delay_seconds": 300,
            "unique_key": "image-7",
        },
    ),
    Example(
        "the last of many edits",
        {
            "target": {"type": "queue", "queue": "index", "payload": {"page": 7}},
            "debounce": {"key": "page-7", "seconds": 30, "max_seconds": 300},
        },
    ),
)
RUN_BATCHES = (
    Example(
        "two runs",
        {"runs": [{"target": {"type": "queue", "queue": "images", "payload": {"image": number}}} for number in (7, 8)]},
    ),
)
RETRIES = (
    Example("what failed since then", {"job": "nightly-report", "since": "2026-01-01T00:00:00Z", "per_second": 10}),
    Example("how many there are", {"state": "failed", "error_contains": "connection refused", "dry_run": True}),
)
CANCELS = (Example("a queue", {"queue": "images", "reason": "the wrong images"}),)
PAYLOADS = (Example("another payload", {"payload": {"width": 320}}), Example("the same", {}))
REASONS = (Example("a reason", {"reason": "wrong customer"}),)
BACKFILLS = (Example("a day", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}),)
HISTORIES = (
    Example(
        "one run",
        {
            "system": "cron",
            "runs": [
                {
                    "fire_at": "2026-01-01T03:00:00Z",
                    "started_at": "2026-01-01T03:00:01Z",
                    "finished_at": "2026-01-01T03:00:09Z",
                    "state": "completed",
                }
            ],
        },
    ),
)
PREVIEWS = (
    Example(
        "cron",
        {
            "trigger": {"type": "cron", "expression": "30 9 * * MON-FRI", "timezone": "America/New_York"},
            "after": "2026-01-01T00:00:00Z",
            "count": 3,
        },
    ),
)
CLAIMS = (Example("ten runs", {"queues": ["reports"], "limit": 10, "wait_seconds": 0, "worker": "worker-1"}),)
"""Without a wait: who tries an example out is not kept waiting."""
HEARTBEATS = (Example("with progress", {"token": 1, "progress": {"percent": 40}}),)
LOGS = (Example("two lines", {"token": 1, "lines": ["page 1 of 20", {"text": "disk is slow", "stream": "stderr"}]}),)
COMPLETIONS = (Example("with a result", {"token": 1, "result": {"pages": 12}}),)
FAILURES = (Example("try again", {"token": 1, "error": "the printer is on fire", "retryable": True}),)
SETTLEMENTS = (
    Example(
        "two runs",
        [
            {"id": RUN_ID, "token": 1, "outcome": "completed", "result": {"pages": 12}},
            {"id": "0193a5c2-7b01-7a10-8d77-2f6b3c90d4e5", "token": 3, "outcome": "failed", "error": "no paper"},
        ],
    ),
)
PLANS = (
    Example(
        "a folder of one team",
        {
            "documents": {
                "jobs": [
                    {
                        "name": "nightly-report",
                        "labels": {"team": "billing"},
                        "trigger": {"type": "cron", "expression": "30 2 * * *", "timezone": "Europe/Berlin"},
                        "target": {"type": "queue", "queue": "reports"},
                    }
                ],
                "calendars": [{"name": "office", "holidays": ["2027-01-01"]}],
            },
            "prune": {"labels": {"team": "billing"}},
        },
    ),
)
