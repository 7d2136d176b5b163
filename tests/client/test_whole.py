"""The client covers the whole API, and needs nothing but msgspec beside the standard library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horarium.client import Client, Report
from horarium.errors import HorariumError
from horarium.wire.views import RunView
from tests.blackbox.outside import environment
from tests.client.scripted import answer, scripted
from tests.servers.live import live_server
from tests.waiting import PATIENCE

SRC = Path(__file__).parents[2] / "src"
JOB = {"name": "N", "trigger": {}, "target": {}}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

CALLS: dict[str, Callable[[Client], Any]] = {
    "createJob": lambda client: client.create_job(JOB),
    "putJob": lambda client: client.put_job(JOB),
    "importJobs": lambda client: list(client.import_jobs([JOB])),
    "patchJob": lambda client: client.patch_job("N", {}),
    "getJob": lambda client: client.get_job("N"),
    "listJobs": lambda client: list(client.list_jobs()),
    "deleteJob": lambda client: client.delete_job("N"),
    "listApprovals": lambda client: list(client.approvals.list()),
    "decide": lambda client: client.approvals.decide("I", "approve"),
    "skipFire": lambda client: client.overrides.skip("N", MOMENT),
    "moveFire": lambda client: client.overrides.move("N", MOMENT, MOMENT),
    "unskipFire": lambda client: client.overrides.remove("N", MOMENT),
    "listOverrides": lambda client: list(client.overrides.list("N")),
    "pauseJob": lambda client: client.pause_job("N"),
    "resumeJob": lambda client: client.resume_job("N"),
    "triggerJob": lambda client: client.trigger_job("N"),
    "backfillJob": lambda client: client.backfill_job("N", MOMENT, MOMENT),
    "addHistory": lambda client: client.add_history("N", "cron", [{}]),
    "explainJob": lambda client: client.explain("N"),
    "listFires": lambda client: client.fires("N"),
    "previewTrigger": lambda client: client.preview({}),
    "listRuns": lambda client: list(client.list_runs()),
    "getRun": lambda client: client.get_run("I"),
    "cancelRun": lambda client: client.cancel_run("I"),
    "retryRun": lambda client: client.retry_run("I"),
    "addRun": lambda client: client.add_run({}),
    "addRuns": lambda client: list(client.add_runs([{}])),
    "retryRuns": lambda client: client.retry_runs(job="N"),
    "cancelRuns": lambda client: client.cancel_runs(job="N"),
    "claimRuns": lambda client: client.claim(["q"], 1, "w"),
    "heartbeatRun": lambda client: client.heartbeat("I", 1),
    "logRun": lambda client: client.log("I", 1, ["a line"]),
    "getRunLog": lambda client: list(client.follow_log("I")),
    "completeRun": lambda client: client.complete("I", 1),
    "failRun": lambda client: client.fail("I", 1, "no"),
    "settleRuns": lambda client: client.settle([Report(id="I", token=1, outcome="completed")]),
    "getMe": lambda client: client.me(),
    "createKey": lambda client: client.create_key("N", ["worker"]),
    "listKeys": lambda client: list(client.keys()),
    "revokeKey": lambda client: client.revoke_key("N"),
    "listAudit": lambda client: list(client.audit()),
    "listNodes": lambda client: client.nodes(),
    "getStats": lambda client: client.stats(),
    "listUpcoming": lambda client: client.upcoming(),
    "listJobVersions": lambda client: list(client.versions("N")),
    "revertJob": lambda client: client.revert_job("N", 1),
    "listQueues": lambda client: list(client.queues.list()),
    "getQueue": lambda client: client.queues.get("N"),
    "putQueue": lambda client: client.queues.set("N", {"gold": 3}),
    "listRates": lambda client: list(client.rates.list()),
    "putRate": lambda client: client.rates.set("N", 5, 1.0),
    "resetRate": lambda client: client.rates.reset("N"),
    "listCalendars": lambda client: list(client.calendars.list()),
    "getCalendar": lambda client: client.calendars.get("N"),
    "putCalendar": lambda client: client.calendars.put("N", {}),
    "deleteCalendar": lambda client: client.calendars.delete("N"),
    "listCalendarDays": lambda client: client.calendars.days("N"),
    "listAttention": lambda client: client.attention.list(),
    "acknowledge": lambda client: client.attention.acknowledge("failing/a", "why"),
    "reopen": lambda client: client.attention.reopen("failing/a"),
    "listHolds": lambda client: list(client.holds.list()),
    "addHold": lambda client: client.holds.add({}),
    "getHold": lambda client: client.holds.get("I"),
    "updateHold": lambda client: client.holds.update("I", {}),
    "liftHold": lambda client: client.holds.lift("I"),
    "makePlan": lambda client: client.plans.make({}, prune={"a": "b"}, horizon_seconds=1),
    "listPlans": lambda client: list(client.plans.list()),
    "applyPlan": lambda client: client.plans.apply("I"),
    "getForecast": lambda client: client.plans.forecast(),
    "createFeed": lambda client: client.feeds.create("N"),
    "listFeeds": lambda client: list(client.feeds.list()),
    "revokeFeed": lambda client: client.feeds.revoke("N"),
    "listSessions": lambda client: list(client.sessions.list()),
    "endSession": lambda client: client.sessions.end("I"),
    "addBatch": lambda client: client.batches.add({}),
    "listBatches": lambda client: list(client.batches.list()),
    "getBatch": lambda client: client.batches.get("I"),
    "listBatchRuns": lambda client: list(client.batches.runs("I")),
    "addBatchRuns": lambda client: client.batches.add_runs("I", []),
    "closeBatch": lambda client: client.batches.close("I"),
    "cancelBatch": lambda client: client.batches.cancel("I"),
    "retryBatch": lambda client: client.batches.retry("I"),
    "listChannels": lambda client: list(client.channels.list()),
    "getChannel": lambda client: client.channels.get("N"),
    "putChannel": lambda client: client.channels.put("N", {}),
    "deleteChannel": lambda client: client.channels.delete("N"),
    "testChannel": lambda client: client.channels.test("N"),
    "sendByOtherChannel": lambda client: client.channels.send_by("N", "M"),
}
"""For each operation of the document the call of the client that asks for it."""

STREAMS = {"listen"}
"""Answers that go on until one side hangs up: read by any client of server-sent events."""


@pytest.fixture(scope="module")
def operations() -> dict[str, tuple[str, str]]:
    """Every operation under /api/v1 by its id: method and path, as the server documents them."""
    with live_server() as server, Client(server.url) as client:
        document = msgspec.json.decode(client._transport.request("GET", "/docs/openapi.json").body)
    return {
        operation["operationId"]: (method.upper(), path)
        for path, item in document["paths"].items()
        if path.startswith("/api/")
        for method, operation in item.items()
    }


def test_every_operation_has_a_method_of_the_client(operations: dict[str, tuple[str, str]]) -> None:
    assert set(CALLS) | STREAMS == set(operations)
    for name, (method, path) in operations.items():
        if name in STREAMS:
            continue
        with scripted(answer(404, {"code": "not_found", "detail": "no"})) as server, Client(server.url) as client:
            with suppress(HorariumError):
                CALLS[name](client)
            (asked,) = server.requests
        told = path
        for part in ("name", "key", "queue"):
            told = told.replace(f"{{{part}}}", "N")
        told = told.replace("{id}", "I").replace("{session}", "I")
        told = told.replace("{instant}", "2026-01-01T00:00:00%2B00:00")
        assert (asked.method, asked.target.partition("?")[0]) == (method, told), name


BARE = """
import sys
from horarium.client import Client, Commands, Worker
client = Client(sys.argv[1])
def perform(run):
    if run.payload == "fail":
        raise ValueError("so it is")
    if run.payload != "last":
        return Commands()(run)
    worker.stop()
client.trigger_job("bare", "fail")
client.add_run({"type": "command", "queue": "bare", "command": ["echo", "bare"]})
client.trigger_job("bare", "last")
worker = Worker(client, ["bare"], perform, slots=1)
worker.run()
"""


@pytest.mark.slow
def test_in_a_bare_environment_it_works_a_queue_off(tmp_path: Path) -> None:
    """An interpreter without any installed package but msgspec: no site-packages, a folder with two links."""
    (tmp_path / "horarium").symlink_to(SRC / "horarium")
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    with live_server() as server, Client(server.url) as client:
        target = {"type": "queue", "queue": "bare"}
        trigger = {"type": "interval", "every_seconds": 3600}
        client.put_job({"name": "bare", "trigger": trigger, "target": target, "retry": {"attempts_max": 1}})
        done = subprocess.run(
            [sys.executable, "-S", "-c", BARE, server.url],
            cwd="/", env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, RunView] = {run.state: run for run in client.list_runs(queue="bare") if run.payload != "last"}
    assert found["failed"].error is not None
    assert found["failed"].error.startswith("ValueError: so it is")
    assert found["completed"].result["stdout"] == "bare\n"


AT_ANOTHER_THREAD = """
import signal, sys, threading, time
from horarium.client import Client, Worker

class Watched(Worker):
    def stop(self):
        stopped.set()
        super().stop()

def perform(run):
    time.sleep(0.5)  # the main thread waits by then, for this slot
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    return stopped.wait(60)

stopped = threading.Event()
with Client(sys.argv[1]) as client:
    Watched(client, ["elsewhere"], perform, slots=1).run_until_signal()
"""


@pytest.mark.slow
def test_a_worker_whose_slots_are_full_heeds_a_signal_that_another_thread_got(client: Client, url: str) -> None:
    """The system may choose any thread, which wakes the main one by nothing."""
    run, _ = client.add_run({"type": "queue", "queue": "elsewhere"})
    command = [sys.executable, "-c", AT_ANOTHER_THREAD, url]
    assert subprocess.run(command, env=environment(), timeout=PATIENCE, check=False).returncode == 0
    assert client.get_run(run.id).result is True
