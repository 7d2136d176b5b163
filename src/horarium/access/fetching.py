"""A request to an issuer over a connection of its own: bounded in size, no redirect followed, no proxy, no cookie."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit

import httptools
from aiohappyeyeballs import start_connection

BYTES_MAX = 256 * 1024
"""Of an answer's body, and of all else that comes with it."""
CHUNK_BYTES = 16 * 1024
NEXT_ADDRESS_SECONDS = 0.25
"""How long the first address of a name is tried alone (RFC 8305)."""


class _Answer:
    """What the parser has seen."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_message_begin(self) -> None:
        """Another one, after an interim answer."""
        self.complete = False

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True


async def fetch(
    url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body that a URL answers; a form is posted. Raises OSError, ValueError, httptools.HttpParserError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url[:200]!r} is no URL of a web server")
    context = await asyncio.to_thread(ssl.create_default_context) if parts.scheme == "https" else None
    port = parts.port or (80 if context is None else 443)
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    # Not by open_connection alone: uvloop's knows nothing of RFC 8305.
    opened = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, loop=loop)
    try:
        name = None if context is None else parts.hostname
        reader, writer = await asyncio.open_connection(sock=opened, ssl=context, server_hostname=name)
    except BaseException:
        opened.close()
        raise
    try:
        writer.write(_request(url, form, headers or {}))
        return await _read(reader, url)
    finally:
        writer.transport.abort()


def _request(url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    body = urlencode(form or {}).encode()
    head = {"host": parts.netloc.rpartition("@")[2].encode("idna").decode(), "accept": "application/json"}
    head |= {"user-agent": "horarium", "connection": "close", **headers}
    if form is not None:
        head |= {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
    lines = [f"{'GET' if form is None else 'POST'} {target} HTTP/1.1", *(f"{name}: {head[name]}" for name in head)]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


async def _read(reader: asyncio.StreamReader, url: str) -> tuple[int, bytes]:
    answer, size = _Answer(), 0
    parser = httptools.HttpResponseParser(answer)
    while not (answer.complete and parser.get_status_code() >= 200) and (part := await reader.read(CHUNK_BYTES)):
        parser.feed_data(part)
        size += len(part)
        if len(answer.body) > BYTES_MAX or size > 2 * BYTES_MAX:
            raise ValueError(f"{url} gave more than {BYTES_MAX:,} bytes")
    if not size:
        raise ConnectionError(f"{url} gave no answer")
    return parser.get_status_code(), bytes(answer.body)
