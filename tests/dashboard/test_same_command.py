"""A command line that a page offers makes the job that the page shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from horarium.cli import cli
from horarium.dashboard.fields import as_command
from horarium.wire.definitions import read_definition
from tests.servers.live import LiveServer, live_server

pytestmark = pytest.mark.slow

CRON = {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Berlin"}
HTTP = {"type": "http", "url": "https://example.com/it's", "method": "PUT", "headers": {"X-A": "b c"}, "body": {"a": 1}}
OFTEN = {"type": "interval", "every_seconds": 90.0}
SAID_BY_FLAGS: list[dict[str, Any]] = [
    {"trigger": CRON, "target": HTTP, "labels": {"team": "ops"}, "title": "Every night"},
    {"trigger": {"type": "phrase", "text": "every weekday at 6pm"}, "target": {"type": "queue", "queue": "work"}},
    {"trigger": OFTEN, "target": {"type": "handler", "name": "f", "args": {"x": [1]}}, "overlap": "skip"},
    {"trigger": {"type": "after", "jobs": ["a", "b"], "outcome": "finished", "within": "week", "timezone": "Asia/Tokyo",
                 "deadline_seconds": 1234567}, "target": {"type": "queue", "queue": "q"}},
    {"trigger": {"type": "after", "jobs": ["a"], "outcome": "completed", "within": {"seconds": 5400}},
     "target": {"type": "queue", "queue": "q"}, "timeouts": {"execution_seconds": 1234567.5}},
    {"trigger": CRON, "target": {"type": "external"}, "retry": {"backoff_seconds": 9.0}},
    {"trigger": CRON, "target": {"type": "queue", "queue": "q", "payload": "p"}, "catch_up": {"policy": "none"},
     "retry": {"attempts_max": 7}, "timeouts": {"execution_seconds": 60.0}},
]  # fmt: skip
SAID_BY_A_FILE: list[dict[str, Any]] = [
    {"trigger": CRON, "target": HTTP, "retention": {"finished_seconds": 60.0}},
    {"trigger": CRON, "target": {**HTTP, "expected_status": [204]}, "catch_up": {"window_seconds": 5.0}},
    {"trigger": OFTEN, "target": {"type": "queue", "queue": "q"}, "enabled": False, "buffer_max": 2},
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as started:
        yield started


def typed_in(command: str, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The job as the server has it once the command was typed."""
    monkeypatch.setenv("HORARIUM_URL", server.url)
    line, _, rest = command.partition(" <<'END'\n")
    words = shlex.split(line.replace("\\\n", ""))
    assert words[0] == "horarium"
    result = CliRunner().invoke(cli, [*words[1:], "--json"], input=rest.removesuffix("\nEND") or None)
    assert result.exit_code == 0, (command, result.output, result.stderr)
    made: dict[str, Any] = json.loads(result.stdout)
    return made


@pytest.mark.parametrize("fields", [*SAID_BY_FLAGS, *SAID_BY_A_FILE])
def test_it_makes_the_same_job(fields: dict[str, Any], server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = {"name": f"job-{[*SAID_BY_FLAGS, *SAID_BY_A_FILE].index(fields)}", **fields}
    read_definition(definition)
    command = as_command(definition)
    assert ("--file" in command) is (fields in SAID_BY_A_FILE)
    made = typed_in(command, server, monkeypatch)
    for field, value in definition.items():
        if isinstance(value, dict) and field != "labels":
            assert value.items() <= made[field].items(), field
        else:
            assert made[field] == value, field
