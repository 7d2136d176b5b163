"""What docs/workers.md shows is run as it stands, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from horarium.client import Client
from horarium.client.commands import variables_of
from horarium.model import CommandTarget
from tests.blackbox.outside import environment
from tests.client.test_shell_commands import claimed
from tests.servers.live import live_server
from tests.waiting import PATIENCE, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
SHOWN = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as server:
        yield server.url


@pytest.mark.slow
def test_the_life_in_a_shell_goes_as_told(url: str) -> None:
    script = blocks("sh")[0].replace(SHOWN, url)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    *_, beat, run = (json.loads(line) for line in done.stdout.splitlines())
    assert beat["cancel_requested"] is False
    assert (run["state"], run["result"]) == ("completed", {"pages": 12})


@pytest.mark.slow
def test_the_worker_in_python_works(url: str) -> None:
    (program,) = blocks("python")
    with Client(url) as client:
        target = {"type": "queue", "queue": "reports"}
        client.put_job({"name": "py", "trigger": {"type": "cron", "expression": "0 3 * * *"}, "target": target})
        run = client.trigger_job("py")
        with subprocess.Popen([sys.executable, "-c", program.replace(SHOWN, url)], env=environment()) as worker:
            found = eventually(lambda: (seen := client.get_run(run.id)).state == "completed" and seen)
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
    assert (found.result, found.progress) == ({"pages": 12}, {"parts": 3})


def test_every_field_and_variable_of_a_command_stands_in_the_page() -> None:
    names = *CommandTarget.__struct_fields__, *variables_of(claimed({"command": ["ls"]})), "HORARIUM_PAYLOAD"
    assert [name for name in names if f"`{name}`" not in PAGE] == []
