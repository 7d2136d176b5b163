"""`serve --processes N`: real processes on one port and one file, killed and stopped from outside.

A request of `ask` comes over a connection of its own, so that any of the processes may answer it. What one process
learnt must then hold at all of them: many requests prove it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import pytest

from horarium.model import Node
from horarium.node.backends import make_store
from tests.cli.test_processes import horarium
from tests.servers.certificate import make_certificate
from tests.servers.process import free_port
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

PROCESSES = 2
SOME = 12
"""Requests enough for each process to get one, nearly always."""
KEY = "k" * 32
COMMAND = [sys.executable, "-m", "horarium.cli", "serve"]


class Group:
    """A running supervisor, its log in a file that is read again and again."""

    def __init__(self, folder: Path, *args: str, processes: int = PROCESSES, port: int = 0) -> None:
        self.store = f"sqlite:///{folder}/group.db"
        self._log = folder / "group.log"
        self._seen = self._log.stat().st_size if self._log.exists() else 0
        settings = ["--store", self.store, "--port", str(port), "--processes", str(processes), "--node-name", "web"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *settings, "--log-format", "json", *args], stderr=log, cwd=folder
            )
        self.url = ""

    def log(self) -> str:
        return self._log.read_bytes()[self._seen :].decode()

    def wait_for(self, words: str) -> re.Match[str]:
        """What its log says at some time."""

        def found() -> re.Match[str] | None:
            assert self.process.poll() is None or re.search(words, self.log()), self.log()
            return re.search(words, self.log())

        match: re.Match[str] = eventually(found, what=words)
        return match

    def serves(self) -> Group:
        self.url = self.wait_for(r"listening on (https?://[^ ]+) .*, \d+ processes")[1]
        return self

    def has_said(self, words: str, times: int) -> bool:
        return self.log().count(words) >= times

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        family = [psutil.Process(self.process.pid), *self.children()] if self.process.poll() is None else []
        for one in family:
            with suppress(psutil.NoSuchProcess):  # it ends by itself once its supervisor is gone
                one.kill()
        self.process.wait()

    # ---- requests

    def connect(self) -> http.client.HTTPConnection:
        where = urlsplit(self.url)
        assert where.hostname
        return http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = KEY, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Over a connection of its own."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            given = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
            connection.request(method, path, data, given | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        status, data, _ = self.ask(method, path, body)
        assert status in (200, 201), (status, data)
        return json.loads(data)

    def figure(self, sample: str) -> float:
        text = self.ask("GET", "/metrics")[1].decode()
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{sample} ")), 0.0)


@contextmanager
def group(folder: Path, *args: str, processes: int = PROCESSES, port: int = 0) -> Iterator[Group]:
    started = Group(folder, *args, processes=processes, port=port)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One server for the tests that leave it serving."""
    with group(tmp_path_factory.mktemp("web"), "--api-key", KEY) as started:
        yield started.serves()


def test_each_process_is_a_node_of_its_own_and_the_address_is_said_once(web: Group) -> None:
    def names() -> list[str]:
        return sorted(node["name"] for node in web.json("GET", "/api/v1/nodes")["items"])

    eventually(lambda: names() == ["web-1", "web-2"], what="both nodes")  # a node is ready before its first beat
    assert web.log().count("listening on") == 1
    pids = {node["pid"] for node in web.json("GET", "/api/v1/nodes")["items"]}
    assert pids == {child.pid for child in web.children()}
    assert all(web.ask("GET", "/readyz")[0] == 200 for _ in range(SOME))


def test_connections_that_come_one_by_one_are_shared_out(web: Group) -> None:
    opened = []
    for _ in range(20):
        opened.append(web.connect())
        opened[-1].connect()

    def held() -> list[int]:
        port = urlsplit(web.url).port
        mine = {one.sock.getsockname()[1] for one in opened}
        return [
            sum(
                1
                for one in child.net_connections("tcp")
                if one.laddr.port == port and one.raddr and one.raddr.port in mine
            )
            for child in web.children()
        ]

    eventually(lambda: sum(held()) == len(opened), what="all connections accepted")
    assert min(held()) >= 1
    for one in opened:
        one.close()


def test_each_process_answers_alone_while_the_others_hang(web: Group) -> None:
    children = web.children()
    for awake in children:
        others = [child for child in children if child != awake]
        for other in others:
            other.suspend()
        try:
            assert {web.ask("GET", "/readyz")[0] for _ in range(SOME)} == {200}
        finally:
            for other in others:
                other.resume()


def test_a_key_that_one_process_revoked_opens_none(web: Group) -> None:
    for number in range(3):
        key = web.json("POST", "/api/v1/keys", {"name": f"k{number}", "roles": ["viewer"]})["key"]
        assert {web.ask("GET", "/api/v1/jobs", key=key)[0] for _ in range(SOME)} == {200}
        assert web.ask("DELETE", f"/api/v1/keys/k{number}")[0] == 204
        assert {web.ask("GET", "/api/v1/jobs", key=key)[0] for _ in range(SOME)} == {401}


def test_a_session_holds_at_every_process_and_ends_at_every_process(web: Group) -> None:
    status, page, headers = web.ask("GET", "/sign-in", key=None)
    assert status == 200
    visit = (headers["set-cookie"] or "").split(";")[0]
    csrf = re.search(rb'name="csrf" value="([0-9a-f]+)"', page)
    assert csrf is not None
    form = {"content-type": "application/x-www-form-urlencoded", "cookie": visit}
    body = urlencode({"csrf": csrf[1].decode(), "key": KEY, "next": "/"}).encode()
    status, page, headers = web.ask("POST", "/sign-in", body, key=None, headers=form)
    assert status in (200, 303), page
    cookies = headers.get_all("set-cookie") or []
    session = next(each.split(";")[0] for each in cookies if each.startswith("horarium_session="))
    pages = [web.ask("GET", "/jobs", key=None, headers={"cookie": session}) for _ in range(SOME)]
    assert {status for status, *_ in pages} == {200}
    csrfs = {match[1] for _, page, _ in pages if (match := re.search(rb'name="csrf" value="([0-9a-f]+)"', page))}
    assert len(csrfs) == 1
    body = urlencode({"csrf": csrfs.pop().decode()}).encode()
    form = {"content-type": "application/x-www-form-urlencoded", "cookie": session}
    assert web.ask("POST", "/sign-out", body, key=None, headers=form)[0] == 303
    after = {web.ask("GET", "/jobs", key=None, headers={"cookie": session})[0] for _ in range(SOME)}
    assert after == {303}


def test_workers_that_wait_are_counted_over_all_processes(web: Group) -> None:
    claim = json.dumps({"queues": ["waited"], "limit": 1, "worker": "w", "wait_seconds": 60}).encode()
    with ExitStack() as stack:
        for _ in range(SOME):
            connection = web.connect()
            stack.callback(connection.close)
            given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
            connection.request("POST", "/api/v1/runs/claim", claim, given)

        def waiting() -> set[int]:
            return {web.json("GET", "/api/v1/stats")["workers_waiting"] for _ in range(SOME)}

        eventually(lambda: waiting() == {SOME}, what="each process knows of all waiting workers")


def test_figures_are_those_of_all_processes_and_never_go_back(web: Group) -> None:
    perform(web, "counted", 24)
    sample = 'horarium_attempts_settled_total{outcome="completed"}'
    eventually(lambda: web.figure(sample) >= 24)
    before = web.figure(sample)
    assert {web.figure(sample) for _ in range(SOME)} == {before}
    assert {web.figure("horarium_processes") for _ in range(SOME)} == {PROCESSES}
    for child in web.children():
        runs_again = web.log().count("runs again") + 1
        child.kill()
        eventually(partial(web.has_said, "runs again", runs_again))
        assert web.figure(sample) == before


def perform(web: Group, queue: str, count: int, mishap: Any = None) -> Counter[str]:
    """Add runs, and claim and report each over a connection of its own, as a worker does that tries again. What was
    performed; `mishap` is called in the middle."""
    path = "/api/v1/runs/batch"
    timeouts = {"heartbeat_seconds": 20}  # what a process claimed that was killed before it answered
    runs = [{"target": {"type": "queue", "queue": queue}, "timeouts": timeouts} for _ in range(count)]
    added = web.json("POST", path, {"runs": runs})
    assert [run["outcome"] for run in added] == ["created"] * count
    performed: Counter[str] = Counter()
    while sum(performed.values()) < count:
        if mishap is not None and sum(performed.values()) >= count // 3:
            mishap()
            mishap = None
        asked = {"queues": [queue], "limit": 3, "worker": "w", "wait_seconds": 5}
        status, body, _ = again(lambda asked=asked: web.ask("POST", "/api/v1/runs/claim", asked))
        assert status in (200, 204), body
        for run in json.loads(body)["runs"] if status == 200 else []:
            performed[run["id"]] += 1
            report = {"token": run["lease"]["token"], "result": {"by": "w"}}
            path = f"/api/v1/runs/{run['id']}/complete"
            status, said, _ = again(lambda path=path, report=report: web.ask("POST", path, report))
            assert status == 200, said
    return performed


def again(ask: Any) -> Any:
    """What a careful client does when its connection breaks."""
    while True:
        try:
            return ask()
        except (OSError, http.client.HTTPException):
            continue


def test_a_process_that_is_killed_under_load_costs_no_run_and_doubles_none(web: Group) -> None:
    again = web.log().count("runs again")
    performed = perform(web, "hit", 60, lambda: web.children()[0].kill())
    assert set(performed.values()) == {1}
    runs = web.json("GET", "/api/v1/runs?queue=pull/hit&limit=200")["items"]
    assert {run["id"]: run["state"] for run in runs} == dict.fromkeys(performed, "completed")
    eventually(lambda: web.log().count("runs again") > again)
    assert {node["name"] for node in web.json("GET", "/api/v1/nodes")["items"]} == {"web-1", "web-2"}


def test_one_signal_stops_all_in_order_and_waiters_are_answered(tmp_path: Path) -> None:
    with group(tmp_path) as web:
        web.serves()
        answers: list[int] = []
        asked = {"queues": ["q"], "limit": 1, "worker": "w", "wait_seconds": 60}
        waiters = [
            threading.Thread(target=lambda: answers.append(web.ask("POST", "/api/v1/runs/claim", asked, key=None)[0]))
            for _ in range(6)
        ]
        for waiter in waiters:
            waiter.start()

        def waiting() -> int:
            return int(json.loads(web.ask("GET", "/api/v1/stats", key=None)[1])["workers_waiting"])

        eventually(lambda: waiting() == 6, what="all wait")
        assert web.stop() == 0
        for waiter in waiters:
            waiter.join(PATIENCE)
        assert answers == [503] * 6  # "ask another process", at once
        nodes = asyncio.run(nodes_of(web.store))
        assert [(node.name, node.stopped_at is not None) for node in nodes] == [(f"web-{n}", True) for n in (1, 2)]


async def nodes_of(url: str) -> list[Node]:
    store = make_store(url)
    await store.open()
    try:
        return sorted(await store.list_nodes(0), key=lambda node: node.name)
    finally:
        await store.close()


def test_a_second_signal_waits_no_longer_for_what_runs(tmp_path: Path) -> None:
    more = ["--allow-private-targets", "--grace-seconds", "86400"]
    with socket.create_server(("127.0.0.1", 0)) as silent, group(tmp_path, *more) as web:
        web.serves()
        target = {"type": "http", "url": f"http://127.0.0.1:{silent.getsockname()[1]}/", "timeout_seconds": 600}
        assert web.ask("POST", "/api/v1/runs", {"target": target}, key=None)[0] == 201
        held, _ = silent.accept()
        with held:
            web.process.send_signal(signal.SIGTERM)
            eventually(lambda: web.log().count("stopping: what runs") == 1 + PROCESSES)
            assert web.process.poll() is None
            web.process.send_signal(signal.SIGINT)
            assert web.ended() == 0


def test_processes_stop_when_their_supervisor_is_killed_and_the_port_is_free(tmp_path: Path) -> None:
    with group(tmp_path, port=free_port()) as web:
        web.serves()
        children = web.children()
        web.process.kill()
        web.process.wait()
        _, alive = psutil.wait_procs(children, PATIENCE)
        assert alive == []
        port = urlsplit(web.url).port
        with socket.create_server(("127.0.0.1", port or 0)):
            """Another server can listen there."""


def test_a_process_that_can_not_start_again_ends_the_server_with_its_error(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with group(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as web:
        web.serves()
        context = ssl.create_default_context(cafile=str(cert))
        where = urlsplit(web.url)
        connection = http.client.HTTPSConnection(where.hostname or "", where.port, context=context, timeout=PATIENCE)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
        cert.unlink()
        web.children()[0].kill()
        assert web.ended() == 2
        said = [json.loads(line)["event"] for line in web.log().splitlines()]
        assert sum("can't start: tls_cert, tls_key" in line for line in said) == 1, said
        assert sum("could not start 5 times in a row: tls_cert" in line for line in said) == 1, said


def test_what_can_not_work_from_the_start_is_said_once_and_ends_it(tmp_path: Path) -> None:
    (tmp_path / "group.db").mkdir()
    with group(tmp_path) as web:
        assert web.ended() == 1
        assert web.log().count("could not start: ") == 1
        assert "times in a row" not in web.log()


def test_a_store_or_bus_in_memory_is_refused() -> None:
    for more in (["--store", "memory://"], ["--bus-url", "memory://one"]):
        done = horarium("serve", "--processes", "2", *more, status=2)
        assert re.search(
            r"processes: 2 processes can't share memory://.*; give a store or bus that is outside", done.stderr
        )
