"""`horarium rate`, and `--rate` of jobs and runs, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from horarium.cli import cli
from tests.servers.live import live_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


def call(url: str, *args: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, args, env={"HORARIUM_URL": url})
    assert result.exit_code == status, (result.output, result.stderr)
    return result


def test_limits_are_given_by_flags_and_set_by_key(url: str) -> None:
    flags = ["--queue", "q", "--payload", '{"c": "acme"}', "--rate", "api:{payload.c}=100/1m", "--rate", "all=5/2s"]
    run = json.loads(call(url, "run", "add", *flags, "--json").output)
    assert [(rate["key"], rate["max"], rate["per_seconds"]) for rate in run["rates"]] == [
        ("api:acme", 100, 60.0),
        ("all", 5, 2.0),
    ]
    job = json.loads(call(url, "job", "add", "j", "--every", "1h", "--queue", "q", "--rate", "a=1/1h", "--json").output)
    assert job["rate"] == [{"key": "a", "max": 1, "per_seconds": 3600.0}]
    assert "3600" in call(url, "job", "show", "j").output
    assert "100/1m" in call(url, "run", "add", "--queue", "q", "--rate", "a=100", status=2).stderr
    assert json.loads(call(url, "rate", "set", "api:acme", "10/1m", "--burst", "3", "--json").output)["burst"] == 3
    assert "api:acme" in call(url, "rate", "list", "--prefix", "api").output
    assert json.loads(call(url, "rate", "list", "--json").output)[0]["overridden"] is True
    call(url, "rate", "reset", "api:acme")
    call(url, "rate", "reset", "api:acme", status=1)


@pytest.mark.parametrize("flags", [[], ["--active"]])
def test_holds_are_listed_as_json(url: str, flags: list[str]) -> None:
    made = json.loads(call(url, "hold", "add", "--queue", "held", "--reason", "a test", "--json").output)
    assert [each["id"] for each in json.loads(call(url, "hold", "list", "--json", *flags).output)] == [made["id"]]
    call(url, "hold", "lift", made["id"])
    assert json.loads(call(url, "hold", "list", "--json", *flags).output) == []
