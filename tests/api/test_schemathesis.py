"""The document and the server agree: schemathesis reads the one and tries the other, with right and with wrong data."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema
from schemathesis.python import asgi

from horarium.api import bulk
from horarium.operations.bounds import evaluating
from horarium.operations.runs import logs
from horarium.services.polling import claims

from .conftest import Api, a_definition

pytestmark = pytest.mark.slow

KEY = "a-key-of-the-tests-that-is-too-long-to-be-guessed"
HEADERS = {"Authorization": f"Bearer {KEY}"}
CONFIG: dict[str, Any] = {
    "seed": 20270115,
    "checks": {
        # A JSON schema can't say what a cron expression, a zone or a phrase is, nor that an end follows a start:
        # content that fits the schema may still be refused, with 422 and nothing else.
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "422", "429"],
        },
        # A list of too many items may be too many bytes before anything is counted.
        "negative_data_rejection": {
            "expected-statuses": [
                "400",
                "401",
                "403",
                "404",
                "405",
                "406",
                "409",
                "413",
                "415",
                "422",
                "428",
                "429",
                "5xx",
            ],
        },
    },
    "phases": {"stateful": {"enabled": True, "generation": {"max-examples": 4}}},
    # NUL is refused in jobs, and kept in payloads of runs and results: test_errors has both. The schema of a payload,
    # which is any JSON, can't say so.
    "generation": {"allow-x00": False, "database": "none"},
}

WITHOUT_CORNERS = [
    {"include-method": ["POST", "PUT", "PATCH"], "phases": {"coverage": {"enabled": False}}},
    *({"include-name": name, "phases": {"coverage": {"enabled": False}, "fuzzing": {"enabled": False}}}
      for name in ("POST /api/v1/jobs", "PUT /api/v1/jobs/{name}", "POST /api/v1/runs")),
]  # fmt: skip
"""The corners of the schema of a body cost thousands of requests: `make certain` tries them. Of the widest three even a
body that is made up takes a second of the processor."""
STREAM = {"include-name": "GET /api/v1/events", "request-timeout": 0.3}
"""It ends with its client alone, which otherwise waits for ten seconds each time."""
NO_NUL = "^[^\\x00]*$"
COUNTED_QUICKLY = 10_000
"""Characters of a text, where they are counted by its pattern."""
LEAST = {"accepted": 400, "examples": 20, "coverage": 800, "fuzzing": 100, "stateful": 10}
LEAST_OF_ALL = {**LEAST, "accepted": 500, "coverage": 2_000}
"""Requests of each phase, about half of what they are: that a phase is not left out unseen; and how many of all were
answered with 2xx, since none would be with a key that is not sent."""


def drop_cursors(document: dict[str, Any]) -> None:
    """Nothing waits for the end of a run here. A cursor is opaque, and one that was made up is refused with 400, as
    test_runs proves: none is made up here."""
    for item in document["paths"].values():
        for operation in item.values():
            operation["parameters"] = [
                each for each in operation["parameters"] if each["name"] not in ("cursor", "after", "wait_seconds")
            ]
    for name, shape in document["components"]["schemas"].items():
        if name.endswith("Request"):
            shape.get("properties", {}).pop("cursor", None)


def drop_limits_of_jobs(document: dict[str, Any]) -> None:
    """Every corner of a rate limit is tried with one-off runs; with each corner of a job that would be tens of
    thousands of requests."""
    document["components"]["schemas"]["JobDefinition"]["properties"]["rate"] = {"type": "array", "maxItems": 0}


def drop_long_patterns(shape: Any) -> None:
    """schemathesis writes the longest length of a text into its pattern, and a pattern that counts to 131,071 takes a
    second to compile, twenty times. NUL, which is all that these forbid, is made up nowhere here."""
    for part in shape.values() if isinstance(shape, dict) else shape if isinstance(shape, list) else ():
        drop_long_patterns(part)
    if isinstance(shape, dict) and shape.get("pattern") == NO_NUL and shape.get("maxLength", 0) > COUNTED_QUICKLY:
        del shape["pattern"]


class Here:
    """An event loop that is turned by the thread that asks: schemathesis turns one in a thread of its own, and half of
    the time each of the two waited until the machine had let the other begin."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def call(self, work: Callable[[], Any]) -> Any:
        """As a portal of anyio does: call it in the loop, and wait for what it returns."""

        async def called() -> Any:
            result = work()
            return await result if inspect.isawaitable(result) else result

        return self._loop.run_until_complete(called())

    def start_task_soon(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """It goes on while others are waited for."""
        return self._loop.create_task(work())

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """Requests are answered in the thread that makes them, by a release of schemathesis that lets us say so."""
    loop = Here()
    monkeypatch.setattr(asgi, "_get_portal", lambda: loop, raising=False)
    yield loop
    getattr(asgi, "shutdown_lifespans", lambda: None)()
    loop.close()


def failures(
    api: Api, operations: list[dict[str, Any]], headers: dict[str, str], examples: int
) -> tuple[list[str], Counter[str]]:
    """What schemathesis found, in words; and how many requests it made in each phase. As many as it takes: no clock
    ends it, and its seed is always the same."""
    generation = {**CONFIG["generation"], "max-examples": examples}
    config = SchemathesisConfig.from_dict(
        {**CONFIG, "generation": generation, "headers": headers, "operations": [*operations, STREAM]}
    )
    schema = schemathesis.openapi.from_asgi("/docs/openapi.json", api.app, config=config)
    drop_cursors(schema.raw_schema)
    drop_limits_of_jobs(schema.raw_schema)
    drop_long_patterns(schema.raw_schema)
    found: list[str] = []
    requests: Counter[str] = Counter()
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            found.append(str(event))
        if isinstance(event, events.ScenarioFinished):
            answers = [each.response for each in event.recorder.interactions.values()]
            requests[event.phase.value] += len(answers)
            requests["accepted"] += sum(answer is not None and answer.status_code < 300 for answer in answers)
            if event.status in (Status.FAILURE, Status.ERROR):
                for checks in event.recorder.checks.values():
                    found += [
                        f"{event.label}: {check.name}: {check.failure_info}" for check in checks if check.failure_info
                    ]
    return found, requests


@pytest.mark.parametrize(
    ("operations", "headers", "examples"),
    [
        pytest.param(WITHOUT_CORNERS, HEADERS, 4, id="some"),
        pytest.param([], HEADERS, 8, id="all", marks=pytest.mark.proof),
        pytest.param([], {}, 8, id="all-without-keys", marks=pytest.mark.proof),
    ],
)
def test_the_server_does_what_its_document_says(
    monkeypatch: pytest.MonkeyPatch,
    here: Here,
    operations: list[dict[str, Any]],
    headers: dict[str, str],
    examples: int,
) -> None:
    for module, longest in ((claims, "WAIT_SECONDS_MAX"), (logs, "WAIT_SECONDS_MAX"), (bulk, "PACE_WAIT_SECONDS_MAX")):
        monkeypatch.setattr(module, longest, 0.01)
    monkeypatch.setattr(evaluating, "REST", 0.0)
    monkeypatch.setattr("requests.sessions.get_environ_proxies", lambda *given, **more: {})  # all variables, each time
    api = Api([KEY] if headers else [])
    asyncio.run(api.post("/jobs", a_definition("nightly-report"), headers=headers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, requests = failures(api, operations, headers, examples)
    assert not found, "\n".join(found)
    enough = LEAST if operations else LEAST_OF_ALL
    assert {phase: requests[phase] >= least for phase, least in enough.items()} == dict.fromkeys(enough, True), requests
