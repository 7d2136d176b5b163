"""What a stranger has at hand: a server process, an HTTP client, a receiver of webhooks, a worker, the command line."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import PATIENCE, eventually, let_pass

SRC = Path(__file__).parents[2] / "src"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment, without settings of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HORARIUM_")}
    return {**kept, "PYTHONPATH": str(SRC), **(more or {})}


def horarium(*args: str, env: Mapping[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "horarium", *args],
        input=stdin, env=environment(env), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def passed(instant: datetime) -> None:
    """Return once the wall clock shows this instant: some promises are about time that goes by with nobody there."""
    while (left := instant.timestamp() - time.time()) > 0:
        let_pass(left)


def instant(text: str) -> datetime:
    """An instant as the API writes it."""
    return datetime.fromisoformat(text)


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Reply:
    """An answer. `json` is None where the body is not JSON."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if "json" in self.headers.get("content-type", "") else None

    @property
    def problem(self) -> dict[str, Any]:
        """The problem, once it is proved to be one (RFC 9457)."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body[:200])
        found: dict[str, Any] = self.json
        assert found["status"] == self.status
        assert {"type", "title", "detail", "code"} <= set(found)
        return found


class Api:
    """An HTTP client of one server."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self.key = key
        self._host = urlsplit(url).netloc

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Any request; `path` from the root; `body` as JSON, or `raw` as it is."""
        sent = dict(headers or {})
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key}")
        if raw is None and body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(self._host, timeout=90)
        try:
            connection.request(method, path, raw, sent)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def __call__(self, method: str, path: str, body: Any = None, status: int | None = None, **more: Any) -> Any:
        """A request under /api/v1 that must succeed (or end with `status`); its JSON."""
        reply = self.ask(method, f"/api/v1{path}", body, **more)
        good = reply.status < 300 if status is None else reply.status == status
        assert good, (method, path, reply.status, reply.body[:500])
        return reply.json

    def refused(self, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        """The problem with which a request is refused: the caller's fault, never the server's."""
        reply = self.ask(method, f"/api/v1{path}", body, **more)
        assert 400 <= reply.status < 500, (method, path, reply.status, reply.body[:500])
        return reply.problem

    def add(self, name: str, trigger: Mapping[str, Any] | float, target: Any = None, **fields: Any) -> dict[str, Any]:
        """A job; a number is an interval in seconds; without a target, a queue of the job's name."""
        rule = trigger if isinstance(trigger, Mapping) else {"type": "interval", "every_seconds": trigger}
        aim = target or {"type": "queue", "queue": name}
        made: dict[str, Any] = self("POST", "/jobs", {"name": name, "trigger": rule, "target": aim, **fields}, 201)
        return made

    def claim(self, queue: str, wait: float = 60, limit: int = 1, worker: str = "w") -> list[dict[str, Any]]:
        body = {"queues": [queue], "limit": limit, "wait_seconds": wait, "worker": worker}
        answer = self("POST", "/runs/claim", body)
        runs: list[dict[str, Any]] = [] if answer is None else answer["runs"]
        return runs

    def claim_one(self, queue: str, wait: float = 60) -> tuple[str, int]:
        """The id and the token of a run that must come."""
        (run,) = self.claim(queue, wait)
        return run["id"], run["lease"]["token"]

    def runs(self, job: str) -> list[dict[str, Any]]:
        """Every run of a job, earliest first, page by page."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self("GET", f"/runs?job={job}&limit=50{cursor}")
            found += page["items"]
            if page["next_cursor"] is None:
                return found[::-1]
            cursor = f"&cursor={page['next_cursor']}"

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self("GET", f"/runs/{run_id}")
        return found

    def becomes(self, run_id: str, state: str) -> dict[str, Any]:
        """The run, once it is in that state."""
        found: dict[str, Any] = eventually(lambda: (run := self.run(run_id))["state"] == state and run)
        return found


class Server(Api):
    """`python -m horarium serve` in a process of its own. `log` is what it wrote to stderr so far."""

    def __init__(
        self, store: str, *flags: str, env: Mapping[str, str] | None = None, key: str | None = None,
        python: Path | str = sys.executable,
    ) -> None:  # fmt: skip
        self.store = store
        self.log: list[str] = []
        command = [str(python), "-m", "horarium", "serve", "--port", "0", "--store", store, *flags]
        self.process = subprocess.Popen(command, env=environment(env), stderr=subprocess.PIPE, text=True)
        super().__init__(self._listening(), key)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _listening(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://[^\s\"]+)", line):
                return found[1]
        raise AssertionError("the server did not start:\n" + "".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


@contextmanager
def serving(store: str, *flags: str, **more: Any) -> Iterator[Server]:
    """A server for the length of the `with`, unless it is ended before."""
    server = Server(store, *flags, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@dataclass(frozen=True)
class Received:
    """One request that reached the receiver."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = tuple[int, Mapping[str, str], bytes]


class Receiver:
    """An endpoint. `answers` maps a path to what is answered to it, given how many came there before."""

    def __init__(self) -> None:
        self.got: list[Received] = []
        self.answers: dict[str, Callable[[int], Answer]] = {}
        self.came = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, more, text = receiver.note(Received(time.time(), self.command, self.path, headers, body))
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                return

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler._any)
        return Handler

    def note(self, request: Received) -> Answer:
        with self.came:
            before = len(self.at(request.path))
            self.got.append(request)
            self.came.notify_all()
        answer = self.answers.get(request.path)
        return (200, {}, b"ok") if answer is None else answer(before)

    def at(self, path: str) -> list[Received]:
        return [request for request in self.got if request.path == path]

    def wait(self, path: str, count: int = 1) -> list[Received]:
        """The requests to a path, once there are so many."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.at(path)) >= count, PATIENCE), f"{path}: {self.at(path)}"
        return self.at(path)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class SlowWorkers:
    """Takes every run of a queue at once and holds each for a while; heeds a cancel and the loss of its lease."""

    def __init__(self, api: Api, queue: str, hold_seconds: float) -> None:
        self._api = api
        self._queue = queue
        self._hold = hold_seconds
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._claim)]
        self._threads[0].start()

    def _claim(self) -> None:
        while not self._stopping.is_set():
            for run in self._api.claim(self._queue, wait=0.5, limit=10):
                thread = threading.Thread(target=self._perform, args=(run,))
                self._threads.append(thread)
                thread.start()

    def _perform(self, run: dict[str, Any]) -> None:
        path, token = f"/api/v1/runs/{run['id']}", run["lease"]["token"]
        until = time.monotonic() + self._hold
        while (left := until - time.monotonic()) > 0:
            beat = self._api.ask("POST", f"{path}/heartbeat", {"token": token})
            if beat.status == 409:
                return
            if beat.json["cancel_requested"]:
                self._api.ask("POST", f"{path}/fail", {"token": token, "error": "stopped"})
                return
            let_pass(min(0.15, left))
        self._api.ask("POST", f"{path}/complete", {"token": token})

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE)
