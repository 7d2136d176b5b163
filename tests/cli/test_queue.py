"""`horarium queue`, and `--fair` of jobs and runs, on a real server."""

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


def test_keys_and_weights_are_given_by_flags(url: str) -> None:
    flags = ["--queue", "q", "--payload", '{"t": "acme"}', "--fair", "{payload.t}", "--json"]
    assert json.loads(call(url, "run", "add", *flags).output)["fair"] == "acme"
    call(url, "job", "add", "j", "--every", "1h", "--queue", "q", "--payload", '{"t": "a"}', "--fair", "{payload.t}")
    assert "{payload.t}" in call(url, "job", "show", "j").output
    weights = ("--weight", "gold=3", "--weight", "a=b=2")
    told = json.loads(call(url, "queue", "set", "q", *weights, "--json").output)
    assert told == {"queue": "pull/q", "fair_weights": {"gold": 3, "a=b": 2}, "hold": False}
    assert "gold=3" in call(url, "queue", "show", "q").output
    assert "pull/q" in call(url, "queue", "list").output
    assert "KEY=N" in call(url, "queue", "set", "q", "--weight", "gold", status=2).stderr
    assert "take turns" in call(url, "queue", "set", "q").output
