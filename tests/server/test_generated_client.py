"""A client that a common generator makes of the OpenAPI document: it is imported, and it works."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.servers.live import live_server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.proof

PROGRAM = """
import importlib, pkgutil, sys
import horarium_client
for module in pkgutil.walk_packages(horarium_client.__path__, "horarium_client."):
    importlib.import_module(module.name)
from horarium_client import Client
from horarium_client.api.jobs import create_job, get_job, patch_job, delete_job
from horarium_client.api.runs import list_runs
from horarium_client.api.system import get_stats
from horarium_client.models import JobDefinition, JobPatch, LabelChanges, Problem

client = Client(base_url=sys.argv[1])
job = {"name": "made", "trigger": {"type": "cron", "expression": "0 3 * * *"}, "target": {"type": "queue",
    "queue": "q"}}
created = create_job.sync(client=client, body=JobDefinition.from_dict(job))
assert created.name == "made", created
changes = JobPatch.from_dict({"priority": 7, "labels": {"team": "sales"}})
assert isinstance(changes.labels, LabelChanges)
assert patch_job.sync(client=client, name="made", body=changes).priority == 7
assert get_job.sync(client=client, name="made").labels.to_dict() == {"team": "sales"}
assert isinstance(get_job.sync(client=client, name="none"), Problem)
assert list_runs.sync(client=client).items == []
assert get_stats.sync(client=client).jobs == 1
assert delete_job.sync_detailed(client=client, name="made").status_code == 204
"""


def test_a_generated_python_client_works(tmp_path: Path) -> None:
    with live_server() as server:
        document = tmp_path / "openapi.json"
        with urllib.request.urlopen(f"{server.url}/docs/openapi.json", timeout=PATIENCE) as answer:
            document.write_bytes(answer.read())
        config = tmp_path / "config.yml"
        config.write_text(json.dumps({"post_hooks": [], "package_name_override": "horarium_client"}))
        made = tmp_path / "made"
        command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--path", str(document)]
        done = subprocess.run(
            [*command, "--config", str(config), "--output-path", str(made / "horarium_client")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout, done.stdout
        subprocess.run([sys.executable, "-c", PROGRAM, server.url], cwd=made, check=True)
