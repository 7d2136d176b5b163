"""Real server and worker processes under test: started, watched, paused, killed.

Nothing here knows what is right: it does things to processes and writes down when (`Fault`). The ledger judges. Every
wait is for a condition, with a deadline; `let_pass` is for faults that are defined by how long they last.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from tests.proof.receiver import Receiver, micros
from tests.waiting import PATIENCE, POLL_SECONDS, eventually, let_pass

START_SECONDS = PATIENCE
SOURCE = Path(__file__).resolve().parents[2] / "src"
PAGE = 200
LOUD_SECONDS = 5
STARVED_SPAN_SECONDS = 1.0
STARVED_SHARE = 0.5
"""A process that waits for a processor for more than this share of a span has no say in whether a lease is kept."""


def at_once(actions: Sequence[Callable[[], object]]) -> None:
    """Do all of these at the same time; raise what the first of them raised."""
    errors: list[BaseException] = []

    def act(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class Fault:
    """What was done to whom, and when (microseconds). `node` None: to everybody, as an outage of the store is."""

    kind: str
    node: str | None
    at: int
    until: int


@dataclass(frozen=True)
class Answer:
    """An API answer: status, content type and content."""

    status: int
    type: str
    body: Any


class Api:
    """The REST API as an outsider calls it. Raises OSError where nobody answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = 15.0, **headers: str) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", **named}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return _answer(answer)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error)

    def must(self, method: str, path: str, body: Any = None, *, seconds: float = PATIENCE, **headers: str) -> Any:
        """Call until the server has answered with a 2xx: for requests that may be repeated. An outage is waited out."""

        def tried() -> Answer | None:
            answer = self.call(method, "/api/v1" + path, body, timeout=15.0, **headers)
            assert answer.status < 400 or answer.status in (500, 503), f"{method} {path}: {answer}"
            return answer if answer.status < 400 else None

        return eventually(tried, seconds, what=f"{method} {path}").body

    def runs(self, query: str = "") -> list[dict[str, Any]]:
        """Every run, all pages."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.must("GET", f"/runs?limit={PAGE}{query}{cursor}")
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def unfinished(self) -> list[dict[str, Any]]:
        """A page of the runs that are not final."""
        items: list[dict[str, Any]] = self.must("GET", "/runs?state=pending,running,cancelling&limit=50")["items"]
        return items

    def wait_final(self, seconds: float) -> None:
        """Return when every run is final."""
        deadline = time.monotonic() + seconds
        while left := self.unfinished():
            assert time.monotonic() < deadline, f"not final within {seconds:g} s: {len(left)} runs, such as {left[0]}"
            let_pass(POLL_SECONDS * 2)


def _answer(answer: Any) -> Answer:
    text = answer.read()
    kind = answer.headers.get("Content-Type") or ""
    return Answer(answer.status, kind, json.loads(text) if "json" in kind and text else text.decode())


class Process:
    """One program of ours. Its log lines are kept with the instants at which they came."""

    def __init__(self, name: str, command: Sequence[str], *, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.lines: list[tuple[int, str]] = []
        self.faults: list[Fault] = []
        self.command = list(command)
        self._environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{SOURCE.parent}", **(environment or {})}
        self._read: threading.Thread | None = None
        self._paused_at = 0
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=self._environment, errors="replace",
        )  # fmt: skip
        self._read = threading.Thread(target=self._follow, args=(self.process,), daemon=True)
        self._read.start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as log:
            for line in log:
                self.lines.append((micros(), line.rstrip("\n")))

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        if self.process is None:
            return
        at = micros()
        self.process.kill()
        self._reap()
        self.faults.append(Fault("kill", self.name, at, micros()))

    def pause(self) -> None:
        """SIGSTOP."""
        self._paused_at = micros()
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.faults.append(Fault("pause", self.name, self._paused_at, micros()))

    def terminate(self, seconds: float = 40.0) -> int:
        """SIGTERM, and wait for its end. The exit status."""
        assert self.process is not None
        at = micros()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(seconds)
        self._reap()
        self.faults.append(Fault("terminate", self.name, at, micros()))
        return status

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait(10)
        if self._read is not None:
            self._read.join(10)

    def log(self, since: int = 0) -> str:
        return "\n".join(line for at, line in list(self.lines) if at >= since)

    def lines_per_second(self, since: int = 0) -> float:
        """How fast it wrote its log at the worst, as a mean over five seconds: that something changed may take a few
        lines at once, a flood goes on."""
        return len(self.loudest(since)) / LOUD_SECONDS

    def loudest(self, since: int = 0) -> list[str]:
        """The lines of the five seconds in which it wrote most."""
        spans: dict[int, list[str]] = {}
        for at, line in list(self.lines):
            if at >= since:
                spans.setdefault(at // (LOUD_SECONDS * 1_000_000), []).append(line)
        return max(spans.values(), key=len, default=[])

    def cpu_share(self, seconds: float) -> float:
        """Which share of one core it uses, measured for so long."""
        process = psutil.Process(self.pid)
        before = process.cpu_times()
        let_pass(seconds)
        after = process.cpu_times()
        return (after.user + after.system - before.user - before.system) / seconds


class Node(Process):
    """A `horarium serve` under test. It keeps its port over restarts."""

    def __init__(self, name: str, store: str, *options: str) -> None:
        command = [sys.executable, "-m", "horarium", "serve", "--store", store, "--node-name", name]
        super().__init__(name, [*command, "--allow-private-targets", "--grace-seconds", "10", *options])
        self._base = list(self.command)
        self._port = 0
        self.url = ""

    @property
    def api(self) -> Api:
        return Api(self.url)

    def start(self) -> Self:
        """Start it and wait until it serves."""
        began = len(self.lines)
        self.command = [*self._base, "--port", str(self._port)]
        self.spawn()

        def greeted() -> str | None:
            assert self.alive, f"{self.name} ended at once:\n{self.log()}"
            words = " ".join(line for _, line in list(self.lines)[began:]).split()
            return next((word for word in words if word.startswith("http://")), None)

        self.url = eventually(greeted, START_SECONDS, what=f"{self.name} to start")
        self._port = int(self.url.rsplit(":", 1)[1])
        eventually(
            lambda: self.api.call("GET", "/readyz").status == 200,
            START_SECONDS,
            what=f"{self.name} to be ready",
            ignoring=OSError,
        )
        return self

    def restart(self) -> None:
        """kill -9, and start again on the same store."""
        self.kill()
        self.start()


class World:
    """A receiver, and nodes on one store. Ends everything at its exit."""

    def __init__(self, store: str, seed: int = 1) -> None:
        self.store = store
        self.namespace = f"proof-{micros()}"
        self.random = random.Random(seed)
        self.receiver = Receiver()
        self.nodes: list[Node] = []
        self.others: list[Process] = []
        self.faults: list[Fault] = []
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watch_starvation, name="starvation", daemon=True)

    def __enter__(self) -> Self:
        self.receiver.__enter__()
        self._watch.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for process in (*self.others, *self.nodes):
            process.close()
        self.receiver.__exit__(*exc)

    def _watch_starvation(self) -> None:
        """Note when a process could not run although it wanted to, as the kernel counts it: that is the machine's
        doing, and to a lease it is what a pause is."""
        before: dict[int, tuple[float, float]] = {}
        while not self._over.wait(STARVED_SPAN_SECONDS):
            for process in (*self.nodes, *self.others):
                pid = process.process.pid if process.process is not None else 0
                with suppress(OSError, ValueError):
                    waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
                    now = time.monotonic()
                    then, waited_then = before.get(pid, (now, waited))
                    before[pid] = now, waited
                    if waited - waited_then > STARVED_SHARE * (now - then) > 0:
                        until = micros()
                        process.faults.append(
                            Fault("starved", process.name, until - round((now - then) * 1_000_000), until)
                        )

    def node(self, *options: str) -> Node:
        """One more node, running."""
        return self.add_node(*options).start()

    def add_node(self, *options: str) -> Node:
        """One more node, not started yet."""
        self.nodes.append(Node(f"node-{len(self.nodes) + 1}", self.store, "--namespace", self.namespace, *options))
        return self.nodes[-1]

    def start_nodes(self, count: int) -> None:
        """So many nodes: the first alone, as it makes the schema, the others at once."""
        self.node()
        at_once([self.add_node().start for _ in range(count - 1)])

    def process(self, name: str, command: Sequence[str]) -> Process:
        """One more process of another kind, running."""
        process = Process(name, command)
        self.others.append(process)
        process.spawn()
        return process

    @property
    def api(self) -> Api:
        """That of the first node that lives."""
        return next(node for node in self.nodes if node.alive).api

    def wait_over(self, end: int, seconds: float) -> None:
        """Return when the last fire time (`end`) was planned and every run is final."""
        eventually(lambda: micros() > end + 1_500_000, what="the end of the window")
        try:
            self.api.wait_final(seconds)
        except AssertionError as error:
            for node in self.nodes:
                error.add_note(f"{node.name}: {node.api.call('GET', '/readyz')}")
                error.add_note("\n".join(line for _, line in node.lines[-10:]))
            raise

    def all_faults(self) -> list[Fault]:
        """Everything that was done to anybody, in order."""
        processes = (*self.nodes, *self.others)
        return sorted([*self.faults, *(f for p in processes for f in p.faults)], key=lambda fault: fault.at)

    def outage(self, kind: str, fault: Callable[[], Any], lingers_seconds: float = 0.0) -> Fault:
        """Carry out a fault of the store, and write it down. `lingers_seconds`: how long it is felt after its end."""
        at = micros()
        fault()
        self.faults.append(Fault(kind, None, at, micros() + round(lingers_seconds * 1_000_000)))
        return self.faults[-1]

    def worker(self, name: str, *options: str, log: Path, nodes: Sequence[Node] = ()) -> Process:
        """A worker process that asks these nodes (none given: the first), the next where one does not answer."""
        urls = ",".join(node.url for node in nodes or self.nodes[:1])
        return self.process(name, [sys.executable, "-m", "tests.proof.worker", urls, name, str(log), *options])
