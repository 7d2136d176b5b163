"""A server that does what a test says, down to the socket: answers, hangs, breaks off."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tests.waiting import PATIENCE


class Request:
    """What was received."""

    def __init__(self, connection: int, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        self.connection = connection
        self.method, self.target, _ = first.split(" ", 2)
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = json.loads(body) if body else None


def answer(status: int = 200, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    """A whole answer."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def problem(
    status: int, code: str, detail: str = "so it is", headers: dict[str, str] | None = None, **more: Any
) -> bytes:
    """An answer with problem details."""
    return answer(status, {"code": code, "detail": detail, "title": "T", "status": status, **more}, headers)


RESET = b"reset"
"""Read the request, then break the connection."""
SILENCE = b"silence"
"""Read the request, and say nothing until the client leaves."""
CLOSING = b"closing:"
"""Before an answer: close the connection after it, without having said so."""


class ScriptedServer:
    """Plays one step for each request, over all connections; the last step is played again and again."""

    def __init__(self, steps: Sequence[bytes]) -> None:
        self.steps = list(steps)
        self.requests: list[Request] = []
        self.waiting = threading.Event()
        self.closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        self._run(self._accept)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._run(self._serve, connection, len(self._connections))

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while request := _read(stream, number):
                self.requests.append(request)
                step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
                if not self._play(connection, stream, step):
                    break
        self.closed.set()

    def _play(self, connection: socket.socket, stream: Any, step: bytes) -> bool:
        if step == RESET:
            connection.shutdown(socket.SHUT_RDWR)
            return False
        if step == SILENCE:
            self.waiting.set()
            stream.read()
            return False
        connection.sendall(step.removeprefix(CLOSING))
        if step.startswith(CLOSING):
            connection.shutdown(socket.SHUT_RDWR)
        return not step.startswith(CLOSING)


def _read(stream: Any, number: int) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    text = head.decode().removesuffix("\r\n\r\n")
    length = next((int(line[15:]) for line in text.split("\r\n") if line.lower().startswith("content-length:")), 0)
    return Request(number, text, stream.read(length))


@contextmanager
def scripted(*steps: bytes) -> Iterator[ScriptedServer]:
    """A server for the length of the `with`."""
    server = ScriptedServer(steps)
    server.start()
    try:
        yield server
    finally:
        server.stop()
