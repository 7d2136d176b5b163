"""A bare HTTP/1.1 client on asyncio, so that what is measured is the server: one request at a time on one connection
that is kept alive, answers framed by Content-Length. And a server of ours in a process of its own."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """`received_at`: the wall clock when the end of the last answer came in."""

    def __init__(self, host: str) -> None:
        self.received_at = 0.0
        self._host = host
        self._buffer = b""
        self._needed = -1
        self._head = 0
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, url: str) -> Connection:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(parts.netloc), parts.hostname, parts.port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._needed < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = end + 4
            length = _LENGTH.search(self._buffer, 0, end)
            self._needed = self._head + (int(length[1]) if length else 0)
        if len(self._buffer) >= self._needed and self._answer is not None and not self._answer.done():
            self.received_at = time.time()
            self._answer.set_result((int(self._buffer[9:12]), self._buffer[self._head : self._needed]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server closed the connection"))

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer."""
        if self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._buffer, self._needed = b"", -1
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


class Served:
    """A running `horarium serve`."""

    def __init__(self, store: str, flags: Sequence[str]) -> None:
        command = [sys.executable, "-m", "horarium", "serve", "--port", "0", "--store", store, *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._reading: threading.Thread | None = None
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if " (" in line and ("listening on" in line or "running" in line):
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(lines))
        self.url = next((word for word in lines[-1].split() if word.startswith("http://")), "")
        self.statistics = psutil.Process(self._process.pid)

    @property
    def cpu_seconds(self) -> float:
        times = self.statistics.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        return int(self.statistics.memory_info().rss)

    @property
    def own_memory_bytes(self) -> int:
        """Of its memory that which is no page of a file (Linux: RssAnon)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))

    def count_lines(self) -> list[int]:
        """Read on what it logs, so that it never waits for us to do so. The answer holds how many lines there were."""
        count, log = [0], self._process.stderr
        assert log is not None

        def read() -> None:
            for _ in log:
                count[0] += 1

        self._reading = threading.Thread(target=read, daemon=True)
        self._reading.start()
        return count

    def stop(self) -> float:
        """SIGTERM. Seconds until it has ended."""
        started = time.perf_counter()
        self._process.terminate()
        self._process.wait(40)
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop it, unless it has ended, and let go of it."""
        if self._process.poll() is None:
            self.stop()
        if self._reading is not None:
            self._reading.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def served(store: str, *flags: str) -> Iterator[Served]:
    """A server for the length of the `with`, unless it is stopped before."""
    server = Served(store, flags)
    try:
        yield server
    finally:
        server.close()
