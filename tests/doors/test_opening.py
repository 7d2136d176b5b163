"""Doors are closed unless they are named, and what comes in by one is seen as it is everywhere else."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from horarium import SyncScheduler, at
from horarium.clock import to_instant
from horarium.doors.web import go_time
from tests.cli.test_processes import line_with, process
from tests.doors.conftest import House
from tests.doors.test_import import command
from tests.doors.test_simple_scheduler import action, define, run_until, say
from tests.waiting import PATIENCE

OPENED = """
import sys
from horarium.node.backends import make_store
from horarium.node.runtime import Options, Runtime
from horarium.server.config import Settings
from horarium.server.process import _app
_app(Runtime(make_store("memory://"), Options()), Settings({settings}))
print(sorted(name for name in sys.modules if name.startswith("horarium.doors")))
"""


@pytest.mark.parametrize(
    ("settings", "loaded"),
    [
        ("", ()),
        ("doors=('scrape-scheduler',)", ("opening", "scrape_jobs", "scrape_scheduler", "web")),
    ],
)
def test_nothing_of_a_closed_door_is_loaded(settings: str, loaded: tuple[str, ...]) -> None:
    script = OPENED.format(settings=settings)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    expected = [f"horarium.doors.{name}" for name in loaded]
    assert done.stdout.strip() == str(["horarium.doors", *expected] if loaded else []), done.stderr


@pytest.mark.parametrize("settings", [{"doors": ()}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/schedules/" + "6" * 24), ("GET", "/api/jobs"), ("GET", "/api/runs"), ("GET", "/api/status"),
        ("POST", "/jobs/327c3fda87ce/complete"),
    ],
)  # fmt: skip
async def test_a_closed_door_is_no_path_at_all(house: House, method: str, path: str) -> None:
    house.token = house.sign()
    reply = await house.ask(method, path)
    assert reply.status in (404, 405)
    assert "--door" in reply.json["detail"], "whose client was switched over too early is told why"


@pytest.mark.parametrize("settings", [{"oidc_issuer": None}, {"oidc_issuer": None, "doors": ()}])
async def test_the_pages_of_jobs_are_there_beside_a_door_below_the_same_path(house: House) -> None:
    reply = await house.ask("GET", "/jobs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert (await house.ask("GET", "/jobs/none")).headers["content-type"].startswith("text/html")


@pytest.mark.slow
def test_a_server_that_enforces_concurrency_does_so_for_jobs_that_are_there(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/h.db"

    def define(name: str, concurrent: str, **changes: Any) -> None:
        labels = {"door": "simple-scheduler", "door-sent": f"[0,1000,0,0,0,{concurrent},0]"}
        scheduler.add_job(name, at(datetime(2099, 1, 1, tzinfo=UTC)), bus="default", labels=labels, **changes)

    with SyncScheduler(store) as scheduler:
        define("serial", "false")
        define("free", "true")
        define("other", "false", overlap="skip")
    flags = ("--door", "simple-scheduler", "--oidc-issuer", "http://127.0.0.1:1", "--oidc-audience", "any")
    args = ["serve", "--store", store, "--port", "0", *flags, "--simple-scheduler-enforce-concurrency"]
    with process(args, tmp_path) as started:
        line_with(started, "listening on")
    with SyncScheduler(store) as scheduler:
        found = {job.name: str(job.overlap) for job in scheduler.list_jobs().items}
    assert found == {"serial": "buffer_all", "free": "allow", "other": "skip"}


async def test_a_run_is_the_same_by_the_door_the_api_and_the_command_line(house: House) -> None:
    house.token = house.sign(roles=["admin"])
    await define(house)
    taken = await action(house)
    say(house, taken, "running")
    await run_until(house, taken["runId"], "running")
    say(house, taken, "completed")
    by_door = await run_until(house, taken["runId"], "completed")
    by_api = (await house.ask("GET", f"/api/v1/runs/{taken['runId']}")).json
    by_command = await command(house, "run", "show", taken["runId"])
    assert by_command == by_api
    assert by_door == {
        "id": by_api["id"].replace("-", "")[:24],
        "jobName": by_api["job"],
        "status": by_api["state"],
        "createdTime": shown(by_api["fire_at"]),
        "startTime": shown(by_api["started_at"]),
        "endTime": shown(by_api["finished_at"]),
        "heartbeat": shown(by_api["finished_at"]),
    }
    listed = (await house.ask("GET", "/api/v1/runs?job=life")).json["items"]
    assert [run["id"] for run in listed] == [run["id"] for run in await command(house, "run", "list", "--job", "life")]
    assert [run["id"].replace("-", "")[:24] for run in listed] == [
        run["id"] for run in (await house.ask("GET", "/api/runs?JobName=life")).json
    ]


def shown(text: Any) -> str:
    """An instant of the API as the door writes it."""
    from datetime import datetime

    return go_time(to_instant(datetime.fromisoformat(text)))
