"""Delivery over real sockets, to endpoints that misbehave."""

import asyncio
import gzip
import socket
import struct
from collections.abc import Sequence

import pytest

from horarium.clock import SECOND
from horarium.model import (
    Failed,
    HttpTarget,
    Succeeded,
)
from tests.delivery.receiver import NOW, Asked, answer, attempt, delivering, hang, kept, of, receiving
from tests.waiting import PATIENCE


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as other, receiving(answer("302 Found", f"Location: {other.url()}")) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert "not followed" in outcome.error
    assert other.connections == 0


async def test_an_answer_that_leads_nowhere_is_not_called_a_redirect() -> None:
    async with receiving(answer("304 Not Modified")) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.error == "answered 304 Not Modified"


async def test_an_endpoint_that_hangs_times_out() -> None:
    async with receiving(hang) as receiver:
        outcome = await attempt(receiver, timeout_seconds=0.05)
        assert isinstance(outcome, Failed)
        assert outcome.retryable
        assert outcome.error.startswith("timed out after 0.05 s")
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)


async def test_the_execution_limit_ends_a_request_before_its_own() -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        run = of(HttpTarget(receiver.url()), execution_seconds=5.05, deadline=NOW + SECOND // 20)
        outcome = await asyncio.wait_for(delivery.deliver(run, Asked()), PATIENCE)
    assert isinstance(outcome, Failed)
    assert "0.05 s" in outcome.error


@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"]
)
async def test_an_endpoint_that_drips_times_out(beginning: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        gone = asyncio.ensure_future(reader.read())
        while beginning and not gone.done():
            writer.write(b"x")
            await asyncio.wait([gone], timeout=0.005)
        await gone
        raise ConnectionResetError

    async with receiving(drip) as receiver:
        outcome = await attempt(receiver, timeout_seconds=0.1)
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("timed out")


@pytest.mark.parametrize("head", ["Content-Length: 1000000000", "X-No-Length: 1"])
async def test_an_endless_body_is_read_only_at_its_beginning(head: str) -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        while written < 1_000_000_000:
            writer.write(b"x" * 65_536)
            written += 65_536
            await writer.drain()

    async with receiving(flood) as receiver, delivering() as delivery:
        outcome = await attempt(receiver, delivery)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
    assert isinstance(outcome, Succeeded)
    assert kept(outcome)["truncated"]
    assert written < 20_000_000


async def test_a_compressed_body_is_not_opened() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    async with receiving(answer("200 OK", "Content-Encoding: gzip", body=bomb)) as receiver:
        outcome = await attempt(receiver)
    assert receiver.requests[0].headers["accept-encoding"] == "identity"
    assert kept(outcome)["body"] is None
    assert kept(outcome)["headers"]["content-encoding"] == "gzip"


def reset(writer: asyncio.StreamWriter) -> None:
    """Make closing send RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_a_reset_connection_is_a_failure_to_retry() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset(writer)
        raise ConnectionResetError

    async with receiving(slam) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert f"127.0.0.1:{receiver.port}" in outcome.error
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_a_failure_to_retry(reply: bytes) -> None:
    async with receiving(reply) as receiver:
        outcome = await attempt(receiver, timeout_seconds=PATIENCE)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "timed out" not in outcome.error
    assert "garbage" not in outcome.error


async def test_an_answer_that_breaks_off_is_a_failure_to_retry() -> None:
    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        raise ConnectionResetError

    async with receiving(stop) as receiver:
        outcome = await attempt(receiver)
    assert isinstance(outcome, Failed)
    assert "broke off" in outcome.error


async def test_an_endpoint_that_speaks_no_tls_is_a_failure_to_retry() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with delivering() as delivery:
        outcome = await delivery.deliver(of(HttpTarget(f"https://127.0.0.1:{port}/")), Asked())
    server.close()
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "TLS" in outcome.error


async def test_a_refused_connection_says_so_without_the_path() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        async with delivering() as delivery:
            target = HttpTarget(f"http://127.0.0.1:{port}/canary?canary=1", headers={"Authorization": "canary"})
            outcome = await delivery.deliver(of(target), Asked())
    assert isinstance(outcome, Failed)
    assert outcome.error == f"connection refused by 127.0.0.1:{port}"


async def test_an_unknown_name_is_a_failure_to_retry() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with delivering(lookup=unknown) as delivery:
        outcome = await delivery.deliver(of(HttpTarget("http://nowhere.example/?canary")), Asked())
    assert outcome == Failed("the host of nowhere.example:80 can't be resolved: Name or service not known")


async def test_a_cookie_is_not_sent_back() -> None:
    async with receiving(answer("200 OK", "Set-Cookie: a=b")) as receiver, delivering() as delivery:
        await attempt(receiver, delivery)
        await attempt(receiver, delivery)
    assert "cookie" not in receiver.requests[1].headers
