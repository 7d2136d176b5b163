"""A definition is read at once, straight into its struct; only one that can't be is read field by field. Both say the
same of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from horarium.api.problems import problem_of
from horarium.api.reading import read_job, read_new_job, to_definition
from horarium.errors import CallerError

from .conftest import a_definition

CHANGED: list[dict[str, Any]] = [
        {"priority": 3.0}, {"priority": 3.5}, {"priority": "3"}, {"fires_max": 7.0}, {"fires_max": 10**30},
        {"labels": {"a": "b"}}, {"labels": {"a": 1}}, {"title": "x" * 500}, {"starts_at": "2100-01-01T00:00:00Z"},
        {"starts_at": "soon"}, {"enabled": False}, {"retry": {"attempts_max": 2.0}}, {"retry": {"attempts": 2}},
        {"trigger": {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}}, {"trigger": 5},
        {"trigger": {"type": "cron", "expression": "x" * 9_000}}, {"trigger": {"type": "no"}}, {"id": "mine"},
        {"target": {"type": "external"}}, {"target": {"type": "nowhere"}}, {"next_fire_at": None, "version": 9},
        {"target": {"type": "http", "url": "https://example.com/?token=x", "signing_secret": "s" * 20}},
        {"on": {"failed": [{"notify": "ops"}]}}, {"on": {"nope": []}}, {"concurrency": {"key": "k", "max": 2.0}},
]  # fmt: skip
TWICE = msgspec.json.encode(a_definition("twice"))[:-1]
GOOD = msgspec.json.encode(a_definition("made"))
BODIES = [
    *(msgspec.json.encode(a_definition("job") | changes) for changes in CHANGED),
    TWICE + b', "priority": 1, "priority": 2}', TWICE + b', "priority": "x", "priority": 2}',
    TWICE + b', "fires_max": 1' + b"0" * 400 + b"}", b"", b"{", b"[]", b"null", b"5", b"\xff", b'{"unknown": 1}',
    b'{"name": "a\\u0000"}', b"[" * 100 + b"]" * 100, b'{"name": 1e999}', b'{"priority": 3.0, "name": "x"}',
    GOOD, GOOD[:-1] + b', "nope": 1}', b" " + GOOD, b"x" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_a_definition_is_read_at_once_as_it_is_read_field_by_field(body: bytes) -> None:
    assert _outcome(read_new_job, body) == _outcome(lambda text: to_definition(read_job(text)), body)


def _outcome(read: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return read(body)
    except CallerError as error:
        return type(error), problem_of(error)
