"""A request to an issuer, over a real socket: what is sent, how an answer ends, whose certificate is accepted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from horarium.access.fetching import BYTES_MAX, fetch
from tests.servers.certificate import make_certificate

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request with these bytes and hangs up; its address, and all that it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        heard.append(head + await reader.readexactly(int(length.partition(b"\r\n")[0] or 0)))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


def test_a_request_is_made_on_the_event_loop_of_a_server() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_request_says_little())


async def test_a_request_says_little() -> None:
    async with answering(HEAD + b"Content-Length: 2\r\n\r\n{}") as (url, heard):
        assert await fetch(f"{url}/a b?q=\u00fc&x=%20") == (200, b"{}")
        host = url.removeprefix("http://").encode()
        assert heard == [
            b"GET /a%20b?q=%C3%BC&x=%20 HTTP/1.1\r\nhost: "
            + host
            + b"\r\naccept: application/json\r\nuser-agent: horarium\r\nconnection: close\r\n\r\n"
        ]


async def test_a_form_is_posted() -> None:
    async with answering(HEAD + b"Content-Length: 2\r\n\r\n{}") as (url, heard):
        await fetch(url, {"code": "a b", "x": "\u00fc"}, {"authorization": "Basic eDp5"})
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST / HTTP/1.1\r\n")
    assert {b"authorization: Basic eDp5", b"content-type: application/x-www-form-urlencoded"} < set(head.split(b"\r\n"))
    assert body == b"code=a+b&x=%C3%BC"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, b"{}"),
        (HEAD + b"\r\n{}", 200, b"{}"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}", 200, b"{}"),
        (b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", 302, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
)
async def test_an_answer_ends_as_http_says(answer: bytes, status: int, body: bytes) -> None:
    async with answering(answer) as (url, _):
        assert await fetch(url) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"SSH-2.0-OpenSSH\r\n", HEAD + b"\r\n" + b" " * (BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 2 * BYTES_MAX,
    ],
    ids=["nothing", "another protocol", "too much", "an endless head"],
)  # fmt: skip
async def test_other_answers_are_errors(answer: bytes) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(Exception, match=r"gave|HTTP|constant"):
            await fetch(url)


async def test_a_head_can_not_be_split() -> None:
    async with answering(HEAD + b"Content-Length: 2\r\n\r\n{}") as (url, heard):
        await fetch(f"{url}/a\r\nx: y?b\r\nc: d")
        assert b"\r\nx: y" not in heard[0]
        assert b"\r\nc: d" not in heard[0]


@pytest.mark.parametrize("url", ["ftp://example.com/", "file:///etc/passwd", "https://", "nonsense"])
async def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no URL of a web server"):
        await fetch(url)


@pytest.mark.slow
async def test_only_a_certificate_that_is_trusted_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    default: Callable[[], ssl.SSLContext] = ssl.create_default_context
    async with answering(HEAD + b"Content-Length: 2\r\n\r\n{}", context) as (url, heard):
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(url)
        assert heard == []
        monkeypatch.setattr(ssl, "create_default_context", lambda: default(cafile=str(cert)))  # type: ignore[call-arg]
        assert await fetch(url) == (200, b"{}")
