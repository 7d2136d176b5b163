"""A worker process that writes down all it does, as its runs' payloads say.

    python -m tests.proof.worker URL[,URL] NAME LOG [--queue Q] [--slots N] [--client]

It claims by long poll over plain HTTP with no help from our client library (`--client`: with it), beats at a third of
the lease, and completes with its token as the result. A server that does not answer is passed over for the next of the
URLs (`--client` knows the first alone). Each line of LOG is one JSON object, appended in one write and
synced before it goes on, so that it is there whatever kills the process next:

    {"event": "start", "run": ..., "attempt": 1, "token": 1, "worker": "w1", "at": microseconds}
    {"event": "report", "run": ..., "token": 1, "status": 200, ...}      also for beats that were refused: "beat"
    {"event": "done", "run": ..., "token": 1, ...}                       the client library will report it

Payload: {"seconds": S} works so long; {"poison": true} kills the process that performs it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from horarium.client.api import Client
from horarium.client.claimed import ClaimedRun
from horarium.client.worker import Worker
from tests.proof.harness import Api
from tests.proof.receiver import Arrival, Reported, instant, micros

WAIT_SECONDS = 5
RETRY_SECONDS = 0.2

_never = threading.Event()


class Log:
    """Lines that outlive the process."""

    def __init__(self, path: str, worker: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._worker = worker

    def write(self, event: str, **fields: Any) -> None:
        line = {"event": event, **fields, "worker": self._worker, "pid": os.getpid(), "at": micros()}
        os.write(self._file, (json.dumps(line) + "\n").encode())
        os.fsync(self._file)


def read_log(path: Path) -> list[dict[str, Any]]:
    """All lines of a log; none if nobody wrote one yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_work(path: Path, jobs: Mapping[str, str]) -> tuple[list[Arrival], list[Reported]]:
    """A log as the ledger reads it: a start is a delivery, a report (or that it was done) its answer. `jobs`: whose run
    each is."""
    lines = read_log(path)
    reports = {(line["run"], line["token"]): line for line in lines if line["event"] == "report"}
    ends = {(line["run"], line["token"]): line["at"] for line in lines if line["event"] in ("report", "done")}
    starts = []
    for line in (line for line in lines if line["event"] == "start"):
        end = ends.get((line["run"], line["token"]))
        starts.append(
            Arrival(
                line["at"], line["run"], line["attempt"], instant(line["fire_at"]), jobs.get(line["run"], ""),
                str(line["token"]), None if end is None else 200, end,
            )
        )  # fmt: skip
    told = [
        Reported(run, token, line["status"], line["at"], line["began_at"], line["tries"])
        for (run, token), line in reports.items()
    ]
    return starts, told


def perform(payload: dict[str, Any]) -> None:
    """Do what the payload says."""
    if payload.get("poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    _never.wait(payload.get("seconds", 0.0))


class Plain:
    """One slot: claim, beat while it works, report, and note what the server said to each."""

    def __init__(self, apis: list[Api], name: str, queue: str, log: Log) -> None:
        self._apis, self._name, self._queue, self._log = apis, name, queue, log

    def loop(self) -> None:
        while True:
            asked = {"queues": [self._queue], "limit": 1, "wait_seconds": WAIT_SECONDS, "worker": self._name}
            status, answer = self._post("/runs/claim", asked)
            if status == 200:
                for run in answer["runs"]:
                    self._attempt(run)
            elif status != 204:
                _never.wait(RETRY_SECONDS)

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        api = self._apis[0]
        try:
            answer = api.call("POST", "/api/v1" + path, body)
        except OSError:
            self._apis = [*(other for other in self._apis if other is not api), api]
            return 0, None
        return answer.status, answer.body

    def _attempt(self, run: dict[str, Any]) -> None:
        token, lease = run["lease"]["token"], run["lease"]
        self._log.write("start", run=run["id"], attempt=run["attempt"], token=token, fire_at=run["fire_at"])
        done = threading.Event()
        pace = (instant(lease["expires_at"]) - instant(run["started_at"])) / 3_000_000
        beating = threading.Thread(target=self._beat, args=(run["id"], token, pace, done), daemon=True)
        beating.start()
        perform(run["payload"] or {})
        done.set()
        self._report(run["id"], token)

    def _beat(self, run_id: str, token: int, pace: float, done: threading.Event) -> None:
        while not done.wait(pace):
            status, _ = self._post(f"/runs/{run_id}/heartbeat", {"token": token})
            if status == 409:
                self._log.write("beat", run=run_id, token=token, status=status)
                return

    def _report(self, run_id: str, token: int) -> None:
        """Report until the server says yes or no."""
        began_at = micros()
        for tries in count(1):
            status, _ = self._post(f"/runs/{run_id}/complete", {"token": token, "result": {"token": token}})
            if status not in (0, 500, 503):
                self._log.write("report", run=run_id, token=token, status=status, began_at=began_at, tries=tries)
                return
            _never.wait(RETRY_SECONDS)


def work_with_client(url: str, name: str, queue: str, slots: int, log: Log) -> None:
    """The same with the client library, until a signal."""

    def performed(run: ClaimedRun) -> dict[str, int]:
        log.write("start", run=run.id, attempt=run.attempt, token=run.token, fire_at=run.fire_at.isoformat())
        perform(run.payload or {})
        log.write("done", run=run.id, token=run.token)
        return {"token": run.token}

    with Client(url) as client:
        Worker(client, [queue], performed, name=name, slots=slots, wait_seconds=WAIT_SECONDS).run_until_signal()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("name")
    parser.add_argument("log")
    parser.add_argument("--queue", default="work")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--client", action="store_true")
    given = parser.parse_args()
    log = Log(given.log, given.name)
    urls = given.url.split(",")
    if given.client:
        work_with_client(urls[0], given.name, given.queue, given.slots, log)
        return
    slots = [Plain([Api(url) for url in urls], given.name, given.queue, log) for _ in range(given.slots)]
    for slot in slots:
        threading.Thread(target=slot.loop, daemon=True).start()
    _never.wait()


if __name__ == "__main__":
    main()
