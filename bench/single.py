"""Single requests, each beside a bare ASGI application on the same HTTP server that reads the same bodies and answers
the same bytes. Called as `python -m bench.api --single`.

Both servers are processes of their own, asked in turns over connections that are kept. Told are the server's CPU for a
request and the rate, both as ratios to the bare one's. With a SQLite file, a third one, bare as well, commits one row
before it answers what changes something: that is the least that an answer costs which is durable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.http_client import Connection, served
from horarium.stores.sqlite.connect import connect, parse_url
from horarium.stores.sqlite.session import Session
from horarium.stores.sqlite.writer import GROUP_MAX, Lane

API = "/api/v1"
BAR = 2.0
DIGITS = "0123456789"
JOB = {
    "trigger": {"type": "interval", "every_seconds": 3600},
    "target": {"type": "queue", "queue": "q", "payload": {"to": "a", "number": 1_234_567}},
}
LATER = {"target": {"type": "queue", "queue": "later", "payload": {"to": "a", "number": 1_234_567}}}
READY = {"target": {"type": "queue", "queue": "ready", "payload": {"to": "a", "number": 1_234_567}}}
CLAIM = {"queues": ["ready"], "limit": 1, "worker": "bench"}
NAMES = count()
JOBS = 100
"""Jobs that are read in turn."""


class Asked(msgspec.Struct, frozen=True):
    """A request that is measured. `body`: that of the next one."""

    method: str
    path: str
    body: Callable[[], bytes] = lambda: b""
    status: int = 200
    paths: int = 0
    """How many paths are asked in turn: with these numbers at their end."""

    def message(self, host: str, number: int = 0) -> bytes:
        body = self.body()
        path = f"{self.path}{number % self.paths}" if self.paths else self.path
        head = f"{self.method} {path} HTTP/1.1\r\nhost: {host}\r\n"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + body


REPORTS: deque[bytes] = deque()
"""Of runs that are claimed, and not reported yet."""
A_REPORT = {"id": "0" * 8 + "-0000" * 4 + "0" * 8, "token": 1, "outcome": "completed", "result": {"ok": True}}
"""As large as each of them: what the bare server reads."""


def a_report() -> bytes:
    return REPORTS.popleft() if REPORTS else msgspec.json.encode([A_REPORT])


def a_job() -> bytes:
    return msgspec.json.encode({"name": f"n-{next(NAMES):07}", **JOB})


CASES: Mapping[str, Asked] = {
    "healthz": Asked("GET", "/healthz"),
    "get-job": Asked("GET", f"{API}/jobs/x", paths=JOBS),
    "add-run": Asked("POST", f"{API}/runs", lambda: msgspec.json.encode(LATER), 201),
    "claim": Asked("POST", f"{API}/runs/claim", lambda: msgspec.json.encode(CLAIM)),
    "settle": Asked("POST", f"{API}/runs/settle", a_report),
    "add-job": Asked("POST", f"{API}/jobs", a_job, 201),
}


def cpu_seconds(pid: int) -> float:
    """CPU of a process, to the nanosecond, as the kernel's scheduler counts it."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


# ---- the bare server


def one_row(file: Path) -> Lane:
    """What commits a row, by the thread and the settings of our store."""
    location = parse_url(f"sqlite:///{file}")

    def begin() -> Session:
        session = Session(connect(location), "")
        session.connection.execute("CREATE TABLE IF NOT EXISTS given (number INTEGER PRIMARY KEY, body BLOB)")
        return session

    return Lane("bench-one-row", location.path, "BEGIN IMMEDIATE", GROUP_MAX, begin)


def serve_bare(answers: Path, commit: bool) -> None:
    """Serve these answers, the keys of which are `METHOD PATH`, on a free port that is printed. `commit`: keep what
    came with a POST before it is answered."""
    import socket

    from horarium.server.http import make_server
    from horarium.server.process import loop_factory

    kept = {
        key: (
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in headers],
            },
            {"type": "http.response.body", "body": body.encode(), "more_body": False},
        )
        for key, (status, headers, body) in json.loads(answers.read_text()).items()
    }

    lane = one_row(answers.with_name("one-row.db")) if commit else None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["method"] == "POST":
            given = b""
            while (message := await receive())["more_body"]:
                given += message["body"]
            if lane is not None:
                row = (given + message["body"],)
                await lane.call(lambda session: session.connection.execute("INSERT INTO given (body) VALUES (?)", row))
        start, body = kept[f"{scope['method']} {scope['path'].rstrip(DIGITS)}"]
        await send(start)
        await send(body)

    async def serve() -> None:
        if lane is not None:
            await lane.start()
        listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        await make_server(app, lambda reason: None).serve([listener])

    # The same kind of event loop as that of the server beside it.
    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        runner.run(serve())


@contextmanager
def bare(answers: Mapping[str, Any], folder: Path, commit: bool = False) -> Iterator[tuple[str, int]]:
    """Its URL and its process."""
    file = folder / "answers.json"
    file.write_text(json.dumps(answers))
    command = [sys.executable, "-m", "bench.single", "--bare", str(file), *(["--commit"] if commit else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


# ---- the client


class Client(asyncio.Protocol):
    """One connection: sends the next message when the answer to the one before is whole."""

    def __init__(self, messages: Iterator[bytes], times: list[float], status: bytes) -> None:
        self._messages, self._times, self._status = messages, times, status
        self._buffer = b""
        self._began = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def next(self) -> None:
        message = next(self._messages, None)
        if message is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        found = self._buffer.find(b"content-length: ", 0, head)
        length = int(self._buffer[found + 16 : self._buffer.find(b"\r", found)]) if found >= 0 else 0
        if len(self._buffer) < head + length:
            return
        assert self._buffer[9:12] == self._status, self._buffer
        self._times.append(time.perf_counter() - self._began)
        self._buffer = b""
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("the server closed the connection"))


class Measured(msgspec.Struct):
    """`cpu`: of the server, microseconds a request. `times`: of each request, in seconds."""

    cpu: float
    rate: float
    times: list[float]


async def ask(url: str, pid: int, asked: Asked, requests: int, connections: int) -> Measured:
    """All requests, over this many connections."""
    host = urlsplit(url).netloc
    return await send(url, pid, iter([asked.message(host, number) for number in range(requests)]), asked, connections)


async def ask_for(url: str, pid: int, asked: Asked, seconds: float, connections: int) -> Measured:
    """As many requests as there are answers to, for so long."""
    host, ends = urlsplit(url).netloc, time.perf_counter() + seconds
    numbers = takewhile(lambda number: time.perf_counter() < ends, count())
    return await send(url, pid, (asked.message(host, number) for number in numbers), asked, connections)


async def send(url: str, pid: int, messages: Iterator[bytes], asked: Asked, connections: int) -> Measured:
    """Send these over this many connections, each when the answer to the one before is there."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    loop, times = asyncio.get_running_loop(), list[float]()
    clients: list[Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(
            lambda: Client(messages, times, str(asked.status).encode()), parts.hostname, parts.port
        )
        clients.append(client)
    before, began = cpu_seconds(pid), time.perf_counter()
    for client in clients:
        client.next()
    await asyncio.gather(*(client.done for client in clients))
    seconds, spent = time.perf_counter() - began, cpu_seconds(pid) - before
    return Measured(spent / len(times) * 1e6, len(times) / seconds, times)


# ---- what is compared


async def record(url: str, cases: Sequence[str]) -> dict[str, Any]:
    """An answer of ours to each case: status, headers as they are sent, body."""
    parts = urlsplit(url)
    answers: dict[str, Any] = {}
    for case in cases:
        asked = CASES[case]
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(asked.message(parts.netloc))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = [(name, value) for name, value in lines if name not in ("date",)]
        body = (await reader.readexactly(int(dict(headers)["content-length"]))).decode()
        assert int(head[9:12]) == asked.status, head + body
        answers[f"{asked.method} {asked.path}"] = (asked.status, headers, body)
        writer.close()
    return answers


async def fill(url: str, runs: int) -> None:
    """The jobs that are read, if they are not there; and runs to be claimed one at a time."""
    connection = await Connection.open(url)
    jobs = msgspec.json.encode({"jobs": [{"name": f"x{number}", **JOB} for number in range(JOBS)]})
    status, said = await connection.ask("POST", f"{API}/import", jobs)
    assert status == 200, said
    while runs > 0:
        body = msgspec.json.encode({"runs": [READY] * min(runs, 1_000)})
        status, said = await connection.ask("POST", f"{API}/runs/batch", body)
        assert status == 200, said
        runs -= 1_000
    connection.close()


async def hold(url: str, runs: int) -> None:
    """Claim runs, so that each can be reported."""
    await fill(url, runs)
    connection = await Connection.open(url)
    REPORTS.clear()
    while len(REPORTS) < runs:
        body = msgspec.json.encode({**CLAIM, "limit": min(runs - len(REPORTS), 1_000)})
        status, said = await connection.ask("POST", f"{API}/runs/claim", body)
        assert status == 200, said
        for run in msgspec.json.decode(said)["runs"]:
            REPORTS.append(msgspec.json.encode([{**A_REPORT, "id": run["id"], "token": run["lease"]["token"]}]))
    connection.close()


def compare(store: str, cases: Sequence[str], requests: int, rounds: int, connections: int, folder: Path) -> float:
    """Print a line for each case. The largest ratio of CPU."""
    worst = 0.0
    with served(store) as ours:
        ours.count_lines()
        pid = ours.statistics.pid
        asyncio.run(fill(ours.url, 1))
        if "settle" in cases:
            asyncio.run(hold(ours.url, 1))
        answers = asyncio.run(record(ours.url, cases))
        durable = store.startswith("sqlite")
        with bare(answers, folder) as (bare_url, bare_pid), bare(answers, folder, durable) as (row_url, row_pid):
            for case in cases:
                found: dict[str, list[Measured]] = {"bare": [], "ours": [], "one row": []}
                for _ in range(rounds + 1):
                    if case == "claim":
                        asyncio.run(fill(ours.url, requests))
                    one = asyncio.run(ask(bare_url, bare_pid, CASES[case], requests, connections))
                    found["bare"].append(one)
                    if durable and CASES[case].method == "POST":
                        row = asyncio.run(ask(row_url, row_pid, CASES[case], requests, connections))
                        found["one row"].append(row)
                    if case == "settle":
                        asyncio.run(hold(ours.url, requests))
                    found["ours"].append(asyncio.run(ask(ours.url, pid, CASES[case], requests, connections)))
                worst = max(worst, say(store.partition(":")[0], case, connections, found))
    return worst


def say(store: str, case: str, connections: int, found: Mapping[str, Sequence[Measured]]) -> float:
    """One line, of all rounds but the first. The ratio of the least CPU: others on the machine only add to it."""
    ours, bare = ([*found[name]][1:] for name in ("ours", "bare"))
    least, floor = min(one.cpu for one in ours), min(one.cpu for one in bare)
    middle = statistics.median(one.cpu / two.cpu for one, two in zip(ours, bare, strict=True))
    rate = statistics.median(one.rate / two.rate for one, two in zip(ours, bare, strict=True))
    print(
        f"{store:<8} {case:<8} {connections:>5} connections: CPU {least:5.0f} us, bare {floor:4.0f} us: "
        f"{least / floor:5.2f} times (median of rounds {middle:.2f}); rate {rate:.2f} of bare",
        flush=True,
    )
    if rows := [one.cpu for one in found["one row"][1:]]:
        print(
            f"{'':<18} with one row that is committed, bare {min(rows):4.0f} us: {least / min(rows):5.2f} times",
            flush=True,
        )
    return least / floor


def single(stores: Sequence[str], cases: Sequence[str], requests: int, rounds: int, connections: Sequence[int]) -> int:
    """Exit status 1 above twice the CPU of the bare server."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = stores or ["memory://", f"sqlite:///{folder}/single.db"]
        worst = [
            compare(store, cases or list(CASES), max(requests, each), rounds, each, Path(folder))
            for store in wanted
            for each in connections
        ]
    return 0 if max(worst) <= BAR else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", type=Path, required=True)
    parser.add_argument("--commit", action="store_true")
    asked = parser.parse_args()
    serve_bare(asked.bare, asked.commit)
