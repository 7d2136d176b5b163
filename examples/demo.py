"""What `make demo` runs: a real server on a SQLite file with a past, and jobs whose callbacks arrive.

Fills a temporary database with a few dozen jobs and their runs of the last weeks (`demo_past`); starts `horarium serve`
on it, a small receiver and two workers; defines sample jobs that fire every few seconds; prints each callback as it
arrives, with how late it was; kills the server once in the middle (kill -9) and starts it again, to show that nothing
is lost. In a terminal it then goes on until Ctrl-C, with the dashboard to look at. DEMO_SECONDS sets how long it goes
on instead (elsewhere than in a terminal: 20). DEMO_SAMPLES=0 leaves out the jobs that fire every few seconds, which end
after a minute anyhow.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from demo_past import SAMPLES, write_past

from horarium.client import ClaimedRun, Client, Worker
from horarium.errors import Outage

SECONDS = float(os.environ.get("DEMO_SECONDS", "20"))
STAYS = "DEMO_SECONDS" not in os.environ and sys.stdout.isatty()
SAMPLES_TOO = os.environ.get("DEMO_SAMPLES", "1") != "0"
LONGEST_WORK = 3_600.0
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

arrived: list[tuple[str, str, float]] = []


class Receiver(BaseHTTPRequestHandler):
    """Prints each callback: who, for which fire time, which attempt, how late."""

    protocol_version = "HTTP/1.1"
    failed: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/news/"):
            self.send_response(204)
            self.end_headers()
            return
        job, run = self.headers["Horarium-Job"], self.headers["Horarium-Run"]
        fire_at = datetime.fromisoformat(self.headers["Horarium-Fire-At"])
        late = (datetime.now(UTC) - fire_at).total_seconds()
        status = 200
        if self.path == "/flaky" and run not in self.failed:
            self.failed.add(run)
            status = 503
        if self.path == "/invoice-export":
            status = 500
        print(
            f"  {datetime.now():%H:%M:%S.%f}"[:-3]
            + f"  {job:<22} fire {fire_at:%H:%M:%S}  attempt {self.headers['Horarium-Attempt']}"
            + f"  {late * 1000:8.1f} ms after  -> {status}",
            flush=True,
        )
        if status == 200:
            arrived.append((job, self.headers["Horarium-Fire-At"], late))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the line above says it all."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(method: str, url: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def start_server(port: int, store: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "horarium", "serve", "--port", str(port), "--store", f"sqlite:///{store}"]
    command += ["--allow-private-targets", "--signing-secret", SECRET, "--log-level", "error"]
    server = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            call("GET", f"http://127.0.0.1:{port}/readyz")
            return server
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    server.kill()
    raise SystemExit("the server did not become ready within 60 s")


def sample_jobs(receiver: str) -> list[dict[str, object]]:
    soon = datetime.now(UTC) + timedelta(seconds=4)
    over = {"ends_at": (datetime.now(UTC) + timedelta(seconds=min(SECONDS, 60) + 15)).isoformat()}
    samples: list[dict[str, object]] = [
        {
            "name": "every-two-seconds",
            "trigger": {"type": "interval", "every_seconds": 2},
            "target": {"type": "http", "url": f"{receiver}/tick", "body": {"run": "{{run.id}}"}},
        },
        {
            "name": "rrule-every-3s",
            "trigger": {"type": "rrule", "rrule": "FREQ=SECONDLY;INTERVAL=3"},
            "target": {"type": "http", "url": f"{receiver}/rrule"},
        },
        {
            "name": "cron-every-5s",
            "trigger": {"type": "cron", "expression": "*/5 * * * * *", "timezone": "Europe/Berlin"},
            "target": {"type": "http", "url": f"{receiver}/cron"},
        },
        {
            "name": "once-in-4s",
            "trigger": {"type": "once", "at": soon.isoformat()},
            "target": {"type": "http", "url": f"{receiver}/once"},
        },
        {
            "name": "fails-first-then-works",
            "trigger": {"type": "phrase", "text": "every 6 seconds"},
            "target": {"type": "http", "url": f"{receiver}/flaky"},
            "retry": {"attempts_max": 3, "backoff_seconds": 1},
        },
    ]
    return [sample if sample["name"] == "once-in-4s" else {**sample, **over} for sample in samples]


def perform(run: ClaimedRun) -> dict[str, int]:
    """What the workers do: nothing, slowly, with a line for each step."""
    sample = next((sample for sample in SAMPLES if sample.name == run.job), None)
    end = time.monotonic() + min(sample.seconds if sample else 3.0, LONGEST_WORK)
    done = 0
    while time.monotonic() < end and not run.cancel_requested.wait(1.0):
        done += 125
        run.log(f"{done:,} items done")
        with suppress(Outage):
            run.heartbeat({"items": done})
    return {"items": done}


def start_workers(url: str) -> list[Worker]:
    """Workers of two of the three queues; nobody serves the third. They wait out the kill, and need not say so."""
    logging.getLogger("horarium.worker").setLevel(logging.CRITICAL)
    workers = [
        Worker(Client(url), [queue], perform, name=f"{queue}-a1", slots=2, grace_seconds=0, cancel_grace_seconds=0.5)
        for queue in ("scoring", "media")
    ]
    for worker in workers:
        threading.Thread(target=worker.run, daemon=True).start()
    return workers


def watch(seconds: float) -> None:
    """Let callbacks arrive for so long; on a busy machine for as long as it takes until a few have."""
    few, end = len(arrived) + 3, time.monotonic() + seconds
    while (now := time.monotonic()) < end or (len(arrived) < few and now < end + 60):
        time.sleep(0.05)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        port, store = free_port(), Path(folder) / "demo.db"
        there = f"http://127.0.0.1:{receiver.server_port}"
        past = asyncio.run(write_past(store, time.time_ns() // 1_000, there))
        server = start_server(port, store)
        workers = start_workers(f"http://127.0.0.1:{port}")
        try:
            api = f"http://127.0.0.1:{port}/api/v1"
            print(f"Dashboard: http://127.0.0.1:{port}/  API: {api}  Swagger UI: http://127.0.0.1:{port}/swagger-ui")
            print(f"  {past} jobs with their runs of the last weeks, and:\n")
            for job in sample_jobs(there) if SAMPLES_TOO else []:
                made = call("POST", f"{api}/jobs", job)
                assert isinstance(made, dict)
                print(f"  job {made['name']:<22} {made['words']}")
            call("POST", f"{api}/jobs/recommendations-train/trigger")
            print("\nCallbacks as they arrive:")
            watch(SECONDS / 2)
            print("  -- kill -9 of the server, and a new one on the same file --", flush=True)
            server.kill()
            server.wait()
            server = start_server(port, store)
            watch(SECONDS / 2)
            summary(api)
            if STAYS:
                stay(port)
        except KeyboardInterrupt:
            print()
        finally:
            for worker in workers:
                worker.stop()
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=40)
            except KeyboardInterrupt:  # Ctrl-C while it ends: at once, and without a traceback
                server.kill()
                server.wait()
            receiver.shutdown()
    return 0


def stay(port: int) -> None:
    """Go on until Ctrl-C."""
    print(f"\nThe dashboard stays at http://127.0.0.1:{port}/ until Ctrl-C.", flush=True)
    threading.Event().wait()


def summary(api: str) -> None:
    runs: list[dict[str, object]] = []
    cursor = ""
    while True:
        page = call("GET", f"{api}/runs?limit=200{cursor}")
        assert isinstance(page, dict)
        runs += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    states: dict[object, int] = {}
    for run in runs:
        states[run["state"]] = states.get(run["state"], 0) + 1
    twice = len(arrived) - len({(job, fire) for job, fire, _ in arrived})
    print(f"\n{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=str)))
    print(f"{len(arrived)} callbacks accepted, {twice} of them a repetition")


if __name__ == "__main__":
    raise SystemExit(main())
