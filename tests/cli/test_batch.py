"""`horarium batch` on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horarium.cli import cli
from horarium.client import Client
from tests.servers.live import live_server
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ROW = {"target": {"type": "queue", "queue": "rows"}, "retry": {"attempts_max": 1}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


def call(url: str, *args: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["batch", *args, "--url", url])
    assert result.exit_code == exit_code, result.output
    return result.output


def asked(url: str, *args: str, exit_code: int = 0) -> Any:
    return json.loads(call(url, *args, "--json", exit_code=exit_code))


def work(url: str, number: int, fail: bool = False) -> None:
    with Client(url) as client:
        for run in client.claim(["rows"], limit=number, worker="w"):
            assert run.lease
            client.fail(run.id, run.lease.token, "no") if fail else client.complete(run.id, run.lease.token)


def test_a_file_of_runs_is_a_batch_that_is_waited_for(url: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join([json.dumps(ROW)] * 1_003) + "\n\n")
    made = asked(url, "add", str(rows), "--name", "import", "--on-finished", "trigger:report")
    assert (made["state"], made["total"], made["on"]) == ("closed", 1_003, {"finished": [{"trigger": "report"}]})
    work(url, 1_000)
    work(url, 3, fail=True)
    done = asked(url, "show", made["id"], "--wait", exit_code=1)
    assert (done["state"], done["completed"], done["failed"]) == ("finished", 1_000, 3)
    assert asked(url, "retry", made["id"])["state"] == "closed"
    eventually(lambda: asked(url, "show", made["id"])["unfinished"] == 3, what="the last page is done again")
    work(url, 3)
    assert asked(url, "show", made["id"], "--wait")["completed"] == 1_003
    assert made["id"] in [each["id"] for each in asked(url, "list", "--state", "finished")]


def test_an_open_batch_is_filled_closed_and_cancelled(url: str, tmp_path: Path) -> None:
    rows = tmp_path / "more.jsonl"
    rows.write_text(json.dumps(ROW))
    made = asked(url, "add", "--name", "by and by", "--open", "--on-failed", "handler:mend")
    assert "is open: of 1 run " in call(url, "add", str(rows), "--to", made["id"])
    assert "by and by" in call(url, "list", "--state", "open")
    assert asked(url, "close", made["id"])["state"] == "closed"
    assert asked(url, "cancel", made["id"], "--reason", "enough")["cancelled"] == 1
    assert "give notify:CHANNEL" in call(url, "add", "--on-failed", "office", exit_code=2)
    rows.write_text("{")
    assert "line 1" in call(url, "add", str(rows), exit_code=2)
    assert "that has its name" in call(url, "add", str(rows), "--to", made["id"], "--name", "x", exit_code=2)
