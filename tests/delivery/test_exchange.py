"""How requests and answers share a connection: what is read, what is kept, and what is never taken for an answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from horarium.delivery import connections as pool
from horarium.delivery.answers import BODY_BYTES_MAX
from horarium.delivery.connection import OVERHEAD_BYTES_MAX, Connection
from horarium.delivery.connections import tls_context
from horarium.delivery.http import HttpDelivery
from horarium.delivery.message import Request, encode
from horarium.model import Cancelled, Failed, HttpTarget, Outcome, Succeeded
from tests.delivery.receiver import (
    OK,
    Asked,
    Receiver,
    Reply,
    StoppedClock,
    answer,
    attempt,
    delivering,
    hang,
    kept,
    of,
    receiving,
)
from tests.servers.certificate import make_certificate
from tests.waiting import PATIENCE, until

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def replying(*parts: bytes, close: bool = False) -> Reply:
    """Answer with these bytes, each sent for itself, and go on; or close."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            raise ConnectionResetError

    return reply


async def asked_with(receiver: Receiver, delivery: HttpDelivery, method: str) -> Outcome | None:
    return await delivery.deliver(of(HttpTarget(receiver.url(), method=method)), Asked())


# ---- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "status", "body"),
    [
        (replying(*(bytes([byte]) for byte in OK)), 200, "ok"),
        (replying(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nContent-Length: 9\r\n\r\n", OK), 200, "ok"),
        (replying(b"HTTP/1.1 100 Continue\r\nRetry-After: 9\r\n\r\n" + OK), 200, "ok"),
        (replying(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, ""),
        (replying(CHUNKED, b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: v\r\n\r\n"), 200, "abc"),
        (replying(b"HTTP/1.0 200 OK\r\n\r\nto the", b" end", close=True), 200, "to the end"),
        (replying(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", close=True), 200, "to the end"),
        (replying(answer("299 Odd", body=b"odd")), 299, "odd"),
    ],
)  # fmt: skip
async def test_an_answer_is_read_however_it_is_framed(reply: Reply, status: int, body: str) -> None:
    async with receiving(reply) as receiver, delivering() as delivery:
        outcome = await attempt(receiver, delivery)
    assert isinstance(outcome, Succeeded)
    assert (kept(outcome)["status"], kept(outcome)["body"]) == (status, body)
    assert "retry-after" not in kept(outcome)["headers"]


async def test_the_answer_to_head_has_no_body() -> None:
    async with receiving(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n") as receiver, delivering() as delivery:
        for _ in range(2):
            assert isinstance(await asked_with(receiver, delivery, "HEAD"), Succeeded)
    assert receiver.connections == 2


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_the_length_of_a_body_is_said_where_there_may_be_one(method: str) -> None:
    async with receiving() as receiver, delivering() as delivery:
        await asked_with(receiver, delivery, method)
    said = receiver.requests[0].headers.get("content-length")
    assert said == {"GET": None, "DELETE": "0"}.get(method, str(len(receiver.requests[0].body)))


async def test_headers_that_are_kept_are_text_whatever_was_sent() -> None:
    odd = b"HTTP/1.1 200 OK\r\nX-Request-ID: \xff\xe9 \r\nx-request-id: second\r\nContent-Length: 0\r\n\r\n"
    async with receiving(odd) as receiver:
        assert kept(await attempt(receiver))["headers"]["x-request-id"] == "\ufffd\ufffd"


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (OVERHEAD_BYTES_MAX // 6) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * OVERHEAD_BYTES_MAX,
        b"HTTP/1.1 200 " + b"x" * OVERHEAD_BYTES_MAX + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (OVERHEAD_BYTES_MAX // 20),
        CHUNKED + b"1;" + b"x" * OVERHEAD_BYTES_MAX,
        CHUNKED + b"1\r\nx\r\n0\r\nX: " + b"y" * OVERHEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n" * 2,
    ],
)
async def test_a_head_that_could_be_read_in_two_ways_or_without_end_is_refused(reply: bytes) -> None:
    async with receiving(reply) as receiver:
        outcome = await attempt(receiver)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
    assert isinstance(outcome, Failed)
    assert outcome.retryable


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n" + b"Set-Cookie: a=b\r\n" * 300 + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Security-Policy: " + b"x" * 20_000 + b"\r\nContent-Length: 0\r\n\r\n",
        CHUNKED + b"1\r\nx\r\n" * BODY_BYTES_MAX + b"0\r\n\r\n",
    ],
)
async def test_an_endpoint_that_says_much_beside_the_body_is_understood(reply: bytes) -> None:
    async with receiving(reply) as receiver:
        assert isinstance(await attempt(receiver), Succeeded)


async def test_an_endpoint_that_changes_the_protocol_is_not_followed() -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x02hi"
    async with receiving(upgrade) as receiver:
        outcome = await attempt(receiver)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
    assert isinstance(outcome, Failed)
    assert "101" in outcome.error


@pytest.mark.parametrize("line", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
def test_a_header_can_not_break_a_request_apart(line: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode(Request("POST", "/", {"X": line}, b""), "host")
    with pytest.raises(ValueError, match="line break"):
        encode(Request("POST", f"/{line}", {}, b""), "host")


# ---- what a connection is used for again ---------------------------------------------------------------------------


@pytest.mark.parametrize("after", [answer("500 Forged"), b"x", b"HTTP/1.1 2"])
@pytest.mark.parametrize("together", [True, False])
async def test_what_comes_after_an_answer_is_no_answer_to_the_next_request(after: bytes, together: bool) -> None:
    reply = replying(OK + after) if together else replying(OK, after)
    async with receiving(reply) as receiver, delivering() as delivery:
        assert isinstance(await attempt(receiver, delivery), Succeeded)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
        receiver.reply = OK
        assert isinstance(await attempt(receiver, delivery), Succeeded)
    assert receiver.connections == 2


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_is_to_close_is_not_used_again(reply: bytes) -> None:
    async with receiving(reply) as receiver, delivering() as delivery:
        for _ in range(2):
            assert isinstance(await attempt(receiver, delivery), Succeeded)
    assert receiver.connections == 2


async def test_a_request_that_was_not_sent_in_full_ends_its_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer("413 Too Large"))
            await writer.drain()
            gone.append(asyncio.ensure_future(reader.read(1)))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await ended.wait()
        finally:
            writer.close()

    gone: list[asyncio.Future[bytes]] = []
    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    async with delivering() as delivery:
        target = HttpTarget(f"http://127.0.0.1:{port}/", body="x" * 16_000_000)
        for _ in range(2):
            outcome = await asyncio.wait_for(delivery.deliver(of(target), Asked()), PATIENCE)
            assert isinstance(outcome, Failed)
            assert "413" in outcome.error
    assert connections == 2
    ended.set()
    await asyncio.gather(*gone, return_exceptions=True)
    server.close()


@pytest.mark.parametrize(("method", "again"), [("GET", True), ("PUT", True), ("POST", False)])
async def test_only_what_may_be_repeated_is_sent_again_when_a_kept_connection_had_ended(
    method: str, again: bool
) -> None:
    """As RFC 9110, 9.2.2 has it. The endpoint takes the second request and closes without an answer."""
    async with receiving() as receiver, delivering() as delivery:
        await asked_with(receiver, delivery, method)

        async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            receiver.reply = OK
            raise ConnectionResetError

        receiver.reply = slam
        outcome = await asked_with(receiver, delivery, method)
    assert isinstance(outcome, Succeeded if again else Failed)
    assert receiver.connections == (2 if again else 1)


async def test_a_new_connection_that_ends_is_not_tried_again() -> None:
    async with receiving(replying(close=True)) as receiver, delivering() as delivery:
        outcome = await asked_with(receiver, delivery, "GET")
    assert isinstance(outcome, Failed)
    assert outcome.error.endswith("closed the connection without an answer")
    assert receiver.connections == 1


async def test_a_cancelled_request_never_leaves_its_answer_to_another() -> None:
    async with receiving(hang) as receiver, delivering() as delivery:
        control = Asked()
        first = asyncio.ensure_future(delivery.deliver(of(HttpTarget(receiver.url())), control))
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE)
        control.cancel()
        assert isinstance(await asyncio.wait_for(first, PATIENCE), Cancelled)
        receiver.reply = OK
        assert isinstance(await attempt(receiver, delivery), Succeeded)
    assert receiver.connections == 2


async def test_a_cancel_in_the_moment_of_the_answer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Connection._finish

    def and_cancel(self: Connection, status: int, *, reusable: bool) -> None:
        finish(self, status, reusable=reusable)
        asking.cancel()

    monkeypatch.setattr(Connection, "_finish", and_cancel)
    async with receiving() as receiver, delivering() as delivery:
        asking = asyncio.ensure_future(attempt(receiver, delivery))
        await asyncio.wait([asking])
        assert asking.cancelled()
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)


async def test_idle_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEEP_ALIVE_SECONDS", 0.01)
    async with receiving() as receiver, delivering() as delivery:
        await attempt(receiver, delivery)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)
        await attempt(receiver, delivery)
    assert receiver.connections == 2


async def test_a_connection_that_outlives_its_client_is_not_kept() -> None:
    release = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(OK)

    async with receiving(late) as receiver, delivering() as delivery:
        task = asyncio.ensure_future(attempt(receiver, delivery))
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE)
        await delivery.close()
        release.set()
        assert isinstance(await task, Succeeded)
        await asyncio.wait_for(receiver.left.wait(), PATIENCE)


async def test_only_so_many_idle_connections_are_kept_those_that_waited_longest_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "IDLE_MAX", 1)
    async with receiving() as first, receiving() as second, delivering() as delivery:
        await attempt(first, delivery)
        await attempt(second, delivery)
        await asyncio.wait_for(first.left.wait(), PATIENCE)
        await attempt(second, delivery)
    assert second.connections == 1


# ---- addresses ------------------------------------------------------------------------------------------------------


async def test_the_next_address_of_a_name_is_tried() -> None:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]

    async with receiving() as receiver, delivering(lookup=lookup) as delivery:
        assert isinstance(await attempt(receiver, delivery, url=receiver.url(host="two.example")), Succeeded)


async def test_a_port_that_is_the_scheme_s_own_is_not_said_in_the_host() -> None:
    from horarium.delivery.addresses import parse_url

    assert parse_url("http://example.com:80/").host_header == "example.com"
    assert parse_url("https://example.com:80/").host_header == "example.com:80"
    assert parse_url("https://[2001:db8::1]/").host_header == "[2001:db8::1]"
    assert parse_url("http://[2001:db8::1]:8080/").authority == "[2001:db8::1]:8080"


# ---- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def over_tls(pair: tuple[Path, Path], times: int) -> tuple[list[Outcome | None], int]:
    """The outcomes, and how many connections there were."""
    receiver = Receiver()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*map(str, pair))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    delivery = HttpDelivery(StoppedClock(), allow_private=True)
    target = HttpTarget(f"https://127.0.0.1:{port}/canary")
    outcomes = [await delivery.deliver(of(target), Asked()) for _ in range(times)]
    await delivery.close()
    await until(lambda: receiver.connections == 0 or receiver.left.is_set())
    server.close()
    return outcomes, receiver.connections


@pytest.mark.slow
async def test_a_connection_over_tls_is_used_again(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    tls_context.cache_clear()
    try:
        outcomes, connections = await over_tls(pair, 3)
    finally:
        tls_context.cache_clear()
    assert [kept(outcome)["body"] for outcome in outcomes] == ["ok"] * 3
    assert connections == 1


@pytest.mark.slow
async def test_a_certificate_that_signs_itself_is_refused_in_plain_words(pair: tuple[Path, Path]) -> None:
    (outcome,), connections = await over_tls(pair, 1)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "the TLS certificate of 127.0.0.1:" in outcome.error
    assert "canary" not in outcome.error
    assert connections == 0


# ---- another event loop ---------------------------------------------------------------------------------------------


def test_all_of_it_works_on_uvloop_too() -> None:
    async def both() -> None:
        async with receiving() as receiver, receiving(hang) as silent, delivering() as delivery:
            for _ in range(3):
                assert isinstance(await attempt(receiver, delivery), Succeeded)
            assert receiver.connections == 1
            control = Asked()
            unanswered = asyncio.ensure_future(delivery.deliver(of(HttpTarget(silent.url())), control))
            await asyncio.wait_for(silent.arrived.wait(), PATIENCE)
            control.cancel()
            assert isinstance(await asyncio.wait_for(unanswered, PATIENCE), Cancelled)
            await asyncio.wait_for(silent.left.wait(), PATIENCE)

    uvloop.run(both())
