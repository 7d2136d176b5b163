"""The line between the supervisor and one of its processes: a pair of sockets that carries messages both ways.

Its end is the sign that the other side has died, also if it was killed: the system closes it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Literal, cast

import msgspec
from msgspec import Struct

HEAD_BYTES = 4
UNREAD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that a side that does not read may owe; more are dropped."""

Kind = Literal["settings", "opened", "ready", "failed", "stop", "hurry", "tell", "ask", "answer", "answers"]


class Message(Struct, array_like=True, frozen=True):
    """`number`: pairs an answer with its question."""

    kind: Kind
    number: int = 0
    topic: str = ""
    said: list[bytes] = []


class Failure(Struct):
    """Why a process could not start, and the status with which it ends."""

    why: str
    status: int


_decode = msgspec.msgpack.Decoder(Message).decode
_encode = msgspec.msgpack.Encoder().encode


def framed(message: Message) -> bytes:
    """A message as it is sent."""
    body = _encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def receive_first(line: socket.socket) -> Message | None:
    """The first message, read before there is an event loop; None: the other side has gone."""
    line.setblocking(True)
    head = _exactly(line, HEAD_BYTES)
    body = _exactly(line, int.from_bytes(head, "big")) if head else b""
    return _decode(body) if body else None


def send_last(line: socket.socket, message: Message) -> None:
    """Say something once there is no event loop any more."""
    line.setblocking(True)
    line.sendall(framed(message))


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


class MessagePipe(asyncio.Protocol):
    """One end, on an event loop. `heard`: takes each message; `ended`: called once the other side has gone."""

    def __init__(self, heard: Callable[[Message], None], ended: Callable[[], None]) -> None:
        self._heard = heard
        self._ended = ended
        self._data = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    @property
    def open(self) -> bool:
        """Whether something can be said."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by type

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(self._data[:HEAD_BYTES], "big")
            if len(self._data) < end:
                return
            body = bytes(self._data[HEAD_BYTES:end])
            del self._data[:end]
            self._heard(_decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended()

    def send(self, message: Message) -> bool:
        """Say it. False: the other side has gone, or reads nothing."""
        if self._transport is None or self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            return False
        self._transport.write(framed(message))
        return True

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def open_line(sock: socket.socket, heard: Callable[[Message], None], ended: Callable[[], None]) -> MessagePipe:
    """A line over one of a pair of sockets."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    _, line = await loop.create_unix_connection(lambda: MessagePipe(heard, ended), sock=sock)
    return line
