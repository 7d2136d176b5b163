"""Floods against a real process: it keeps its memory, answers others, and says little."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.blackbox.outside import Api, Receiver
from tests.cli.test_processes import HORARIUM, server
from tests.servers.process import free_port
from tests.waiting import PATIENCE, eventually

MIB = 1024 * 1024
GROWTH_MAX = 50 * MIB
pytestmark = pytest.mark.slow


class Target:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = psutil.Process(process.pid)
        place = urlsplit(url)
        self.address = (place.hostname or "", place.port or 0)

    @property
    def memory(self) -> int:
        size: int = self.process.memory_info().rss
        return size

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE)

    def answers(self) -> bool:
        with closing(self.connect()) as link:
            link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return link.recv(20).startswith(b"HTTP/1.1 200")


@contextmanager
def target(folder: Path, *args: str) -> Iterator[Target]:
    with server(folder, "--store", "memory://", *args) as (process, url):
        found = Target(process, url)
        assert found.answers()
        yield found
        assert found.answers()


def send_all(link: socket.socket, pieces: Iterator[bytes]) -> None:
    with suppress(OSError):
        for piece in pieces:
            link.sendall(piece)


def lines_of(size: int) -> Iterator[bytes]:
    return (b"X-%d: " % number + b"a" * 1000 + b"\r\n" for number in range(size // 1000))


@pytest.mark.parametrize("keys", [(), ("--api-key", "a-key-of-a-test-0123")], ids=["open", "with a key"])
def test_endless_heads_are_not_kept(tmp_path: Path, keys: tuple[str, ...]) -> None:
    with target(tmp_path, *keys) as found:
        before = found.memory
        begin = b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
        with closing(found.connect()) as many, closing(found.connect()) as one:
            many.sendall(begin)
            send_all(many, lines_of(300 * MIB))
            one.sendall(begin + b"X: ")
            send_all(one, (b"a" * MIB for _ in range(300)))
            assert found.memory - before < GROWTH_MAX


def test_thousands_of_halves_are_not_kept(tmp_path: Path) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3_000, files - 200)
    with target(tmp_path) as found, ExitStack() as open_links:
        before = found.memory
        links = [open_links.enter_context(closing(found.connect())) for _ in range(count)]
        for number, link in enumerate(links):
            length = b"Transfer-Encoding: chunked" if number % 2 else b"Content-Length: 1000"
            type_ = b"Content-Type: application/json"
            link.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n" + type_ + b"\r\n" + length + b"\r\n\r\n1")
        assert found.answers()
        assert found.memory - before < GROWTH_MAX
        open_links.close()
        eventually(lambda: found.memory < before + GROWTH_MAX)


async def test_idle_and_dripping_clients_keep_no_one_out(tmp_path: Path) -> None:
    assert len(await _beside_a_crowd(tmp_path, 100)) == 100


@pytest.mark.proof
async def test_idle_and_dripping_clients_delay_no_one(tmp_path: Path) -> None:
    times = await _beside_a_crowd(tmp_path, 300)
    print(f"p50 {times[150] * 1000:.1f} ms, p99 {times[297] * 1000:.1f} ms")
    assert times[150] < 0.1


async def _beside_a_crowd(folder: Path, count: int) -> list[float]:
    """How long each of so many requests took beside two thousand clients that send nothing, or a byte now and then."""
    with target(folder) as found:
        before = found.memory
        idle = [await asyncio.open_connection(*found.address) for _ in range(1_000)]
        dripping = [await asyncio.open_connection(*found.address) for _ in range(1_000)]
        drips = asyncio.create_task(_drip([writer for _, writer in dripping]))  # noqa: RUF006, cancelled below
        times = await _ask(found.address, count)
        assert found.memory - before < GROWTH_MAX
        drips.cancel()
        for _, writer in [*idle, *dripping]:
            writer.close()
    return times


async def _drip(writers: list[asyncio.StreamWriter]) -> None:
    while True:
        for character in b"GET /healthz HTTP/1.1":
            for writer in writers:
                writer.write(bytes([character]))
            await asyncio.sleep(0.5)


async def _ask(address: tuple[str, int], count: int) -> list[float]:
    reader, writer = await asyncio.open_connection(*address)
    times = []
    for _ in range(count):
        began = time.monotonic()
        writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))[15:])
        await reader.readexactly(length)
        times.append(time.monotonic() - began)
        await asyncio.sleep(0.01)
    writer.close()
    return sorted(times)


def test_a_server_with_few_files_goes_on_beside_a_crowd(tmp_path: Path) -> None:
    with _with_files(256, tmp_path) as (found, log):
        crowd = []
        for _ in range(400):
            with suppress(OSError):
                crowd.append(found.connect())
        assert found.answers()
        assert found.process.num_fds() < 200
        for link in crowd:
            link.close()
    text = log.read_text()
    lines = [json.loads(line)["event"] for line in text.splitlines() if line.startswith("{")]
    assert len([line for line in lines if "connections are open" in line]) == 1
    assert "Traceback" not in text


def test_deliveries_leave_files_to_the_rest(tmp_path: Path) -> None:
    with _with_files(64, tmp_path, "--allow-private-targets") as (found, log), closing(Receiver()) as receiver:
        together = threading.Barrier(8)
        receiver.answers["/"] = lambda _: (200 if together.wait(PATIENCE) >= 0 else 500, {}, b"")
        runs = [{"target": {"type": "http", "url": f"{receiver.url}/"}} for _ in range(160)]
        Api(f"http://{found.address[0]}:{found.address[1]}")("POST", "/runs/batch", {"runs": runs})
        eventually(lambda: found.answers() and len(receiver.got) == 160)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines if line["level"] == "warning"] == [
        "8 HTTP targets are called at one time, not 100: this process may open 64 files (ulimit -n)"
    ]


@contextmanager
def _with_files(files: int, folder: Path, *more: str) -> Iterator[tuple[Target, Path]]:
    """A server that may open so many files, and its log."""
    log = folder / "log"
    port = free_port()
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *HORARIUM]
    args = ["serve", "--store", "memory://", "--port", str(port), "--log-format", "json", *more]
    with log.open("w") as out, subprocess.Popen([*command, *args], stderr=out, cwd=folder, text=True) as process:
        found = Target(process, f"http://127.0.0.1:{port}")
        try:
            eventually(found.answers)
            yield found, log
        finally:
            process.terminate()


def test_a_client_that_hangs_up_in_its_body_is_no_error(tmp_path: Path) -> None:
    with server(tmp_path, "--store", "memory://", "--log-level", "info") as (process, url):
        found = Target(process, url)
        for _ in range(50):
            with closing(found.connect()) as link:
                link.sendall(
                    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 1000\r\n\r\n{"
                )
        assert found.answers()
        process.terminate()
        assert process.stderr is not None
        log = process.stderr.read()
        assert "Traceback" not in log
        assert "error" not in log
