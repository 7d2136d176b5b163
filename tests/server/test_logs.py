"""The lines that a server writes."""

from __future__ import annotations

import json
import logging

import pytest

from horarium.server.logs import Lines

HOSTILE = "a\n2030-01-01T00:00:00Z [error    ] made up \x1b[31mred"


def a_record(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "horarium", "levelno": logging.WARNING, "levelname": "WARNING", "msg": "run failed", **extra}
    )


def test_a_line_has_its_instant_its_level_and_its_fields() -> None:
    line = Lines(as_json=False, colors=False).format(a_record(created=1_000_000.25, run="r", job="j"))
    assert line == "1970-01-12T13:46:40.250000Z [warning  ] run failed                     job=j run=r"


def test_a_line_for_machines_is_json() -> None:
    said = json.loads(Lines(as_json=True, colors=False, node="n-2").format(a_record(created=0.0, job=HOSTILE)))
    assert said == {
        "event": "run failed", "job": HOSTILE, "node": "n-2", "level": "warning",
        "timestamp": "1970-01-01T00:00:00.000000Z",
    }  # fmt: skip


@pytest.mark.parametrize("record", [a_record(job=HOSTILE), a_record(msg=HOSTILE), a_record(msg="%s", args=(HOSTILE,))])
def test_what_users_name_begins_no_line_and_controls_no_terminal(record: logging.LogRecord) -> None:
    line = Lines(as_json=False, colors=False).format(record)
    assert "\n" not in line
    assert "\x1b" not in line


def test_what_was_raised_follows_line_by_line() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        raised = (ValueError, error, error.__traceback__)
    first, *rest = Lines(as_json=False, colors=False).format(a_record(exc_info=raised)).split("\n")
    assert "run failed" in first
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: \ufffd[2J"
