"""An HTTP endpoint in processes of its own that is never the one that is waited for: it parses no more than it must,
answers a fixed text, and notes when each request came in."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
import ssl
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n\r\nok"


class _Reading(asyncio.Protocol):
    """Reads a head and as much body as it says, and answers."""

    def __init__(self, arrivals: array[float]) -> None:
        self._arrivals, self._read = arrivals, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self._read) < end + 4 + length:
                return
            self._read = self._read[end + 4 + length :]
            self._arrivals.append(time.monotonic())
            self._transport.write(ANSWER)


async def _serve(pipe: Connection, descriptor: socket.socket, pair: tuple[str, str] | None) -> None:
    loop, arrivals = asyncio.get_running_loop(), array("d")
    context = None
    if pair is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pair)
    await loop.create_server(lambda: _Reading(arrivals), sock=descriptor, ssl=context, backlog=4096)
    pipe.send(os.getpid())
    while await loop.run_in_executor(None, pipe.recv):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send((arrivals.tolist(), usage.ru_utime + usage.ru_stime))
        del arrivals[:]


def _run(pipe: Connection, descriptor: socket.socket, pair: tuple[str, str] | None) -> None:
    uvloop.run(_serve(pipe, descriptor, pair))


class Receiver:
    """The running endpoint. `port`: on every address of this machine that begins with 127."""

    def __init__(self, processes: int, pair: tuple[Path, Path] | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        self.scheme = "http" if pair is None else "https"
        self.port = 0
        for _ in range(processes):
            listening = socket.socket()
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(("0.0.0.0", self.port))
            self.port = listening.getsockname()[1]
            near, far = spawn.Pipe()
            files = None if pair is None else (str(pair[0]), str(pair[1]))
            process = spawn.Process(target=_run, args=(far, listening, files), daemon=True)
            process.start()
            listening.close()
            self._pipes.append(near)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def url(self, host: int = 0) -> str:
        """The endpoint as one of many hosts."""
        name = f"127.0.{host // 200}.{host % 200 + 1}"
        return f"{self.scheme}://{name}:{self.port}/"

    def arrivals(self) -> tuple[list[float], float]:
        """When each request came in since this was asked last, in order (`time.monotonic`), and the CPU seconds that
        were used so far."""
        times, cpu = [], 0.0
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            some, used = pipe.recv()
            times += some
            cpu += used
        return sorted(times), cpu

    def stop(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()


@contextmanager
def receiving(processes: int = 1, pair: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """An endpoint for the length of the `with`; over TLS with this certificate and key."""
    receiver = Receiver(processes, pair)
    try:
        yield receiver
    finally:
        receiver.stop()
