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

KEY = "k" * 32
PROGRAM = """
import importlib, pkgutil, sys
import horarium_client
for module in pkgutil.walk_packages(horarium_client.__path__, "horarium_client."):
    importlib.import_module(module.name)
from horarium_client import AuthenticatedClient, Client
from horarium_client.api.access import create_key, get_me, list_keys, revoke_key
from horarium_client.api.jobs import create_job, delete_job, get_job, patch_job, pause_job, preview_trigger
from horarium_client.api.jobs import resume_job, trigger_job
from horarium_client.api.runs import add_run, get_run, list_runs
from horarium_client.api.system import get_stats
from horarium_client.api.work import claim_runs, complete_run, fail_run, heartbeat_run, settle_runs
from horarium_client.models import (
    ClaimRequest, CompleteRequest, FailRequest, HeartbeatRequest, JobDefinition, JobPatch, KeyRequest, LabelChanges,
    PreviewRequest, Problem, Report, RunDefinition,
)

url, key = sys.argv[1:]
assert isinstance(get_stats.sync(client=Client(base_url=url)), Problem)
client = AuthenticatedClient(base_url=url, token=key)
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
asked = PreviewRequest.from_dict({"trigger": {"type": "cron", "expression": "0 3 * * *"}, "count": 3})
assert len(preview_trigger.sync(client=client, body=asked).fires) == 3

assert pause_job.sync(client=client, name="made").state == "paused"
assert resume_job.sync(client=client, name="made").state == "enabled"
first = trigger_job.sync(client=client, name="made")
more = [
    add_run.sync(client=client, body=RunDefinition.from_dict({"target": {"type": "queue", "queue": "q"}, "payload": n}))
    for n in range(3)
]
claim = ClaimRequest.from_dict({"queues": ["q"], "limit": 10, "worker": "generated"})
claimed = {run.id: run for run in claim_runs.sync(client=client, body=claim).runs}
assert set(claimed) == {first.id, *(run.id for run in more)}
tokens = {id: run.lease.token for id, run in claimed.items()}
assert claim_runs.sync_detailed(client=client, body=claim).status_code == 204
beat = HeartbeatRequest.from_dict({"token": tokens[first.id]})
assert heartbeat_run.sync_detailed(client=client, id=first.id, body=beat).status_code == 200
done = CompleteRequest.from_dict({"token": tokens[first.id], "result": {"rows": 7}})
assert complete_run.sync(client=client, id=first.id, body=done).state == "completed"
wrong = CompleteRequest.from_dict({"token": tokens[more[0].id] + 1})
assert isinstance(complete_run.sync(client=client, id=more[0].id, body=wrong), Problem)
failed = FailRequest.from_dict({"token": tokens[more[0].id], "error": "it broke", "retryable": False})
assert fail_run.sync(client=client, id=more[0].id, body=failed).state == "failed"
settled = [{"id": run.id, "token": tokens[run.id], "outcome": "completed"} for run in more[1:]]
batch = settle_runs.sync(client=client, body=[Report.from_dict(each) for each in settled])
assert [each.state for each in batch] == ["completed"] * 2, batch
assert {get_run.sync(client=client, id=run.id).state for run in more[1:]} == {"completed"}
assert get_run.sync(client=client, id=first.id).result == {"rows": 7}

made = create_key.sync(client=client, body=KeyRequest.from_dict({"name": "dashboard", "roles": ["viewer"]}))
reader = AuthenticatedClient(base_url=url, token=made.key)
assert get_me.sync(client=reader).name == "dashboard"
assert get_job.sync(client=reader, name="made").name == "made"
assert delete_job.sync_detailed(client=reader, name="made").status_code == 403
assert [key.name for key in list_keys.sync(client=client).items] == ["dashboard"]
assert revoke_key.sync_detailed(client=client, name="dashboard").status_code == 204
assert get_job.sync_detailed(client=reader, name="made").status_code == 401
assert delete_job.sync_detailed(client=client, name="made").status_code == 204
"""


def test_a_generated_python_client_works(tmp_path: Path) -> None:
    with live_server([KEY]) as server:
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
        subprocess.run([sys.executable, "-c", PROGRAM, server.url, KEY], cwd=made, check=True)
