"""What one client may cost: bytes, headers, time and connections, counted before anything is understood."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from horarium.api.answers import Ready
from horarium.server.connections import KIB, Limits, Phase, Unread
from horarium.server.intake import HALVES_MAX, Intake, connections_max
from tests.waiting import PATIENCE, until

from .conftest import DEFAULT, Client, Echo, Receive, Running, Send, serving

HEAD_BYTES = 64 * KIB
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


def head(*headers: bytes) -> bytes:
    return b"\r\n".join([b"GET / HTTP/1.1", b"Host: localhost", *headers]) + b"\r\n\r\n"


async def refused(running: Running, *pieces: bytes) -> str:
    client = await running.connect()
    for piece in pieces:
        await client.send(piece)
    return await client.refusal()


# ---- heads


async def test_a_head_up_to_the_limit_is_read(running: Running) -> None:
    client = await running.connect()
    size = HEAD_BYTES - len(b"/") - len(b"Host: localhost\r\n") - len(b"X: \r\n")
    await client.send(head(b"X: " + b"a" * size))
    assert (await client.answer())[0] == 200
    await client.send(head(*[b"X-%d: a" % number for number in range(99)]))
    assert (await client.answer())[0] == 200


async def test_a_byte_more_is_too_much(running: Running) -> None:
    size = HEAD_BYTES - len(b"/") - len(b"Host: localhost\r\n") - len(b"X: \r\n") + 1
    assert await refused(running, head(b"X: " + b"a" * size)) == "head_too_large"
    assert await refused(running, head(*[b"X-%d: a" % number for number in range(100)])) == "head_too_large"
    assert await refused(running, b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n") == "head_too_large"
    assert running.refused["head"] == 3


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\n",
        b"GET /",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["value", "name", "target", "trailer", "chunk extension"],
)
async def test_nothing_without_an_end_is_kept(running: Running, begin: bytes) -> None:
    client = await running.connect()
    await client.send(begin)
    await asyncio.sleep(0.05)
    for _ in range(100):
        await client.send(b"a" * 16 * KIB)
        if running.refused["head"]:
            break
        await asyncio.sleep(0)
    assert await client.refusal() in ("head_too_large", "malformed_request")
    assert sum(running.refused.values()) == 1


async def test_headers_without_end_are_refused_soon(running: Running) -> None:
    client = await running.connect()
    await client.send(b"GET / HTTP/1.1\r\n")
    for number in range(200):
        await client.send(b"X-%d: a\r\n" % number)
    assert await client.refusal() == "head_too_large"


async def test_each_request_of_a_connection_has_the_whole_limit(running: Running) -> None:
    client = await running.connect()
    for _ in range(3):
        await client.send(head(b"X: " + b"a" * 60 * KIB))
        assert (await client.answer())[0] == 200


async def test_an_application_knows_that_its_client_has_hung_up(running: Running, echo: Echo) -> None:
    client = await running.connect()
    await client.send(b"GET /leave HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: echo.paths)
    await asyncio.sleep(0)
    assert echo.hung_up == 0
    client.writer.write_eof()
    await until(lambda: echo.hung_up == 1)


# ---- time


@pytest.mark.slow
async def test_a_connection_that_never_asks_is_closed(hurried: Running) -> None:
    client = await hurried.connect()
    assert await client.ended() == b""
    assert not hurried.refused


@pytest.mark.slow
async def test_line_breaks_are_no_sign_of_life(hurried: Running) -> None:
    client = await hurried.connect()
    ended = asyncio.create_task(client.ended())
    while not ended.done():
        await client.send(b"\r\n")
        await asyncio.sleep(0.1)
    assert await ended == b""


async def test_half_a_head_is_not_waited_for(running: Running) -> None:
    client = await running.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: loc")
    await running.phase(Phase.HEAD)
    running.after(DEFAULT.head_seconds - 9)
    assert not running.refused
    running.after(DEFAULT.head_seconds)
    assert await client.refusal() == "request_timeout"
    assert running.refused["slow"] == 1


@pytest.mark.slow
async def test_a_head_that_drips_is_not_waited_for(hurried: Running) -> None:
    client = await hurried.connect()
    refusal = asyncio.create_task(client.refusal())
    for character in GET:
        await client.send(bytes([character]))
        if refusal.done():
            break
        await asyncio.sleep(0.1)
    assert await refusal == "request_timeout"


@pytest.mark.parametrize(
    "begin",
    [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
    ids=["length", "chunked"],
)
async def test_half_a_body_is_not_waited_for(running: Running, echo: Echo, begin: bytes) -> None:
    client = await running.connect()
    await client.send(POST + begin)
    await until(lambda: echo.paths)
    running.after(DEFAULT.body_seconds + 1)
    assert await client.refusal() == "request_timeout"
    assert echo.hung_up == 1


@pytest.mark.slow
async def test_a_body_that_goes_on_has_more_time() -> None:
    echo = Echo()
    limits = Limits(body_seconds=0.5, body_bytes_per_second=100)
    async with serving(echo, limits) as running:
        client = await running.connect()
        # A thousand bytes have ten seconds more: far longer than a busy machine takes to send the rest.
        await client.send(POST + b"Content-Length: 1002\r\n\r\n" + b"a" * 1000)
        for _ in range(2):
            await asyncio.sleep(0.6)
            await client.send(b"a")
        assert await client.answer() == (200, b"a" * 1002)
        assert await refused(running, POST + b"Content-Length: 1000\r\n\r\n" + b"a" * 10) == "request_timeout"


async def test_a_client_may_wait_for_its_answer_as_long_as_it_takes(running: Running, echo: Echo) -> None:
    client = await running.connect()
    await client.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: echo.paths)
    running.after(3_600)
    echo.let_go.set()
    assert (await client.answer())[0] == 200


async def test_a_connection_between_requests_is_closed_after_a_while(running: Running) -> None:
    client = await running.connect()
    for _ in range(2):
        await client.send(GET)
        assert (await client.answer())[0] == 200
        await running.phase(Phase.IDLE)
        running.after(DEFAULT.idle_seconds - 30)
    assert DEFAULT.idle_seconds - 30 > DEFAULT.head_seconds, "it is given more time than for its first request"
    running.after(DEFAULT.idle_seconds)
    assert await client.ended() == b""


@pytest.mark.slow
async def test_an_answer_that_is_not_read_is_given_up(hurried: Running, echo: Echo) -> None:
    echo.size = 64 * 1024 * KIB
    client = await hurried.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        while not echo.paths or hurried.open:
            await asyncio.sleep(0.1)
    client.writer.transport.abort()


@pytest.mark.parametrize(("bytes_each_second", "given_up_after"), [(0, 30), (1_000, 30), (8_000, None)])
def test_a_client_that_reads_too_little_is_given_up_and_one_that_goes_on_is_not(
    bytes_each_second: int, given_up_after: int | None
) -> None:
    unread = Unread()
    late = (now for now in range(600) if unread.long(64 * KIB, now * bytes_each_second, now, Limits()))
    assert next(late, None) == given_up_after


async def test_of_a_long_answer_that_is_not_read_little_waits_in_the_connection() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Ready([b"x" * 1024 * KIB] * 64)(scope, receive, send)  # type: ignore[arg-type]

    async with serving(app) as running:
        client = await running.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: max(running.unread(), default=0) > 0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert max(running.unread()) < 512 * KIB
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await client.answer())[1]) == 64 * 1024 * KIB


# ---- one request, one answer


@pytest.mark.parametrize(
    "text",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        POST + b"Content-Length: +4\r\n\r\nabcd",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n X : y\r\n\r\n\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
    ],
)
async def test_what_two_servers_could_read_differently_is_refused(running: Running, text: bytes) -> None:
    client = await running.connect()
    await client.send(text + GET)
    rest = await client.ended()
    assert rest.startswith(b"HTTP/1.1 400") or b"HTTP/1.1 400" in rest
    assert rest.count(b"HTTP/1.1") <= 2


async def test_requests_sent_ahead_are_answered_in_order(running: Running, echo: Echo) -> None:
    client = await running.connect()
    bodies = [b"body-%d" % number for number in range(50)]
    for body in bodies:
        await client.send(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert [(await client.answer())[1] for _ in bodies] == bodies


async def test_more_requests_ahead_than_are_kept_end_the_connection(running: Running, echo: Echo) -> None:
    client = await running.connect()
    await client.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET * 10_000)
    assert await client.ended() == b""
    assert len(echo.paths) == 1


async def test_a_refusal_is_never_taken_for_the_answer_to_another_request(running: Running, echo: Echo) -> None:
    client = await running.connect()
    await client.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: " + b"a" * 100 * KIB)
    assert await client.ended() == b""


async def test_another_protocol_is_not_spoken_and_the_request_is_answered(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client = await running.connect()
    await client.send(head(b"Connection: Upgrade", b"Upgrade: h2c"))
    assert (await client.answer())[0] == 200
    assert await client.ended() == b""
    assert caplog.messages == []


async def test_garbage_is_no_line_in_the_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert await refused(running, b"hello\r\n\r\n") == "malformed_request"
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


# ---- connections


async def test_the_connection_that_was_idle_for_longest_makes_room() -> None:
    async with serving(Echo(), connections=2) as running:
        first, second = await running.connect(), await running.connect()
        for client in (second, first):
            await client.send(GET)
            assert (await client.answer())[0] == 200
        third = await running.connect()
        await third.send(GET)
        assert (await third.answer())[0] == 200
        assert await second.ended() == b""
        await first.send(GET)
        assert (await first.answer())[0] == 200


async def test_where_all_are_at_work_a_further_one_is_refused_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo()
    async with serving(echo, connections=3) as running:
        busy = [await running.connect() for _ in range(3)]
        for client in busy:
            await client.send(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while len(echo.paths) < 3:
            await asyncio.sleep(0.01)
        for _ in range(5):
            assert await (await running.connect()).refusal() == "too_many_connections"
        assert running.refused["connections"] == 5
        assert len([line for line in caplog.messages if "3 connections are open" in line]) == 1
        echo.let_go.set()
        for client in busy:
            assert (await client.answer())[0] == 200
        later = await running.connect()
        await later.send(GET)
        assert (await later.answer())[0] == 200


@pytest.mark.slow
async def test_a_thousand_that_send_nothing_keep_no_one_out() -> None:
    async with serving(Echo(), connections=50) as running:
        idle: list[Client] = []
        for _ in range(200):
            idle.append(await running.connect())
            client = await running.connect()
            await client.send(GET)
            assert (await client.answer())[0] == 200
            client.writer.close()
        for each in idle:
            each.writer.close()


def test_connections_leave_files_to_all_else() -> None:
    assert connections_max(256) == 128
    assert connections_max(1_024) == 512
    assert connections_max(20_000) == 19_000


class Plain:
    """A connection that can be told to close."""

    closed = False

    def give_way(self) -> None:
        self.closed = True

    give_up = give_way


def test_what_was_refused_takes_no_room(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(1, lambda reason: None, lambda: 0.0)
    one, two, three = Plain(), Plain(), Plain()
    assert intake.admit(one)
    assert not intake.admit(two)
    intake.forget(two)
    intake.forget(one)
    assert intake.admit(three)


def test_the_body_that_has_kept_us_waiting_for_longest_gives_way() -> None:
    intake = Intake(10_000, lambda reason: None, lambda: 0.0)
    waiting = [Plain() for _ in range(HALVES_MAX + 2)]
    for each in waiting:
        intake.half(each)
    assert [each.closed for each in waiting[:3]] == [True, True, False]
    assert len(intake.halves) == HALVES_MAX
