"""One connection of the HTTP server, bounded in size and in time, before anything is parsed into a request.

The parser that we use takes a head of any size, and the server around it waits for as long as a client likes. Here
every byte that arrives is counted against a limit, and every state in which a client keeps us waiting has a deadline:

    IDLE -> HEAD -> BODY -> WORK -> IDLE ...      any of the first three -> REFUSED -> closed

A sweep over all connections looks at the deadlines, so that a request costs no timer. Only WORK, where the client waits
for us, has no deadline; there, what it does not read of its answer has one. A refusal is written only where no other
answer is on its way on the same connection; else the connection is closed, and no answer can be taken for another's.
"""

from __future__ import annotations

import asyncio
import math
from enum import Enum, auto
from typing import Any, cast

import httptools
import msgspec
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from horarium.api.answers import CLOSED, security_headers
from horarium.api.problems import MEDIA_TYPE, Problem, make_problem
from horarium.server.intake import Intake

KIB = 1024
LINGER_SECONDS = 2.0
"""A refused client is read on for this long: closing at once would destroy the answer that is on its way to it."""
LINGER_BYTES_MAX = 4 * KIB * KIB
LENGTH = b"\r\ncontent-length: "
DRAIN_BYTES_MAX = 64 * KIB * KIB
"""A body that was answered already is read and dropped up to here: most clients read the answer (413) only after they
have sent all of it, and closing before would destroy it."""


class Limits(Struct, frozen=True):
    """What one connection may ask for."""

    head_bytes: int = 64 * KIB
    headers: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    body_bytes_per_second: float = 1.0 * KIB
    """A body may take `body_seconds`, and a second more each time that this number of bytes has arrived."""
    idle_seconds: float = 75.0
    unread_seconds: float = 30.0
    unread_bytes: int = 128 * KIB
    """A client that has not read an answer to its end reads so much of it in that time, or it is given up: a byte now
    and then would keep a long one in memory for hours."""
    pipelined: int = 100
    """Requests that wait for the answer before theirs."""


class Phase(Enum):
    """What a connection waits for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    WORK = auto()
    REFUSED = auto()


class RequestRefused(Exception):
    """Ends the parser's run over the received bytes."""

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.reason = reason


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, within limits."""

    def __init__(self, intake: Intake, limits: Limits, **more: Any) -> None:
        super().__init__(**more)
        self._intake = intake
        self._limits = limits
        self._phase = Phase.IDLE
        self._deadline = math.inf
        self._size = Size()
        self._unread = Unread()
        self._refusal: RequestRefused | None = None
        self._ended = False
        self._answers: Answers

    # ---- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = Answers(transport, self.loop)
        self._unread.since = self.loop.time()
        self._enter(Phase.IDLE, self._limits.head_seconds)
        if self._intake.admit(self):
            self._intake.idle[self] = None
        else:
            self._refuse(RequestRefused(TOO_MANY, "connections"), linger=self._intake.linger())

    def connection_lost(self, exc: Exception | None) -> None:
        self._intake.forget(self)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The transport closes itself; with TLS, only in a later turn."""
        self._ended = True

    def _is_closed(self) -> bool:
        return self._ended or self.transport.is_closing()

    def give_way(self) -> None:
        """Close now: another connection needs the room."""
        self.transport.close()

    def give_up(self) -> None:
        """Refuse the request whose body is not whole yet."""
        self._refuse(RequestRefused(TOO_SLOW, "slow"))

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.REFUSED:
            self._size.body += len(data)
            if self._size.body > LINGER_BYTES_MAX:
                self.transport.abort()
            return
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # no other protocol is spoken here: answered, and closed
        except (httptools.HttpParserError, RequestRefused):
            self._refuse(self._refusal or RequestRefused(MALFORMED, "malformed"))

    def _feed(self, data: bytes) -> None:
        size, reports = self._size, self._size.reports
        self.parser.feed_data(data)
        silent = size is self._size and reports == size.reports
        self._size.silent = self._size.silent + len(data) if silent else 0
        self._check_size()
        if self._phase is Phase.BODY:
            self._intake.half(self)

    # ---- the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._intake.idle.pop(self, None)
        self._size = Size()
        self._enter(Phase.HEAD, self._limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._size.add_head(len(url))
        self._check_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        size = self._size
        size.add_head(len(name) + len(value) + len(": \r\n"), headers=1)
        if size.head > self._limits.head_bytes or size.headers > self._limits.headers:
            self._check_size()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            raise RequestRefused(MALFORMED, "malformed")
        super().on_headers_complete()
        self.scope[CLOSED] = self._is_closed  # type: ignore[literal-required]
        self.cycle.transport = cast(asyncio.Transport, self._answers)
        self._enter(Phase.BODY, self._limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._size.add_body(len(body))
        self._deadline += len(body) / self._limits.body_bytes_per_second
        if self.cycle.response_complete and self._size.body > DRAIN_BYTES_MAX:
            self.transport.close()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._intake.halves.pop(self, None)
        self._enter(Phase.WORK)
        self._rest_if_answered()

    def on_response_complete(self) -> None:
        """As in uvicorn, without its timer: the sweep sees to idle connections."""
        self._answers.flush()
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._rest_if_answered()

    def _rest_if_answered(self) -> None:
        if self._phase is Phase.WORK and self.cycle.response_complete:
            self._enter(Phase.IDLE, self._limits.idle_seconds)
            self._intake.idle[self] = None

    # ---- limits

    def _enter(self, phase: Phase, seconds: float = math.inf) -> None:
        self._phase = phase
        self._deadline = self.loop.time() + seconds

    def _check_size(self) -> None:
        if self._size.exceeds(self._limits):
            # Kept, because the parser hides what its callbacks raise.
            self._refusal = RequestRefused(HEAD_TOO_LARGE, "head")
            raise self._refusal

    def expire(self, now: float) -> None:
        """Look at the deadlines."""
        left = self.transport.get_write_buffer_size()
        if self._unread.long(left, self._answers.given - left, now, self._limits):
            self.transport.abort()
        elif now < self._deadline or self.flow.read_paused:
            return
        elif self._phase is Phase.REFUSED or self.transport.is_closing():
            self.transport.abort()
        elif self._phase is Phase.IDLE:
            self.transport.close()
        else:
            self.give_up()

    def _refuse(self, refusal: RequestRefused, linger: bool = True) -> None:
        self._intake.refused(refusal.reason)
        may_answer = _may_answer(self.cycle, self._phase, len(self.pipeline))
        self._intake.halves.pop(self, None)
        self.pipeline.clear()
        _hang_up(self.cycle)
        if may_answer:
            self._answers.flush()
            self.transport.write(_answer(refusal.problem))
        self._enter(Phase.REFUSED, LINGER_SECONDS)
        if may_answer and linger and self.transport.can_write_eof():
            self._size = Size()
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()


class Answers:
    """The transport of a connection, as far as answers need it: the head of an answer waits for what follows it at
    once, so that both are sent in one piece. Two would cost twice, here and at the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""
        self.given = 0
        """Bytes, since the connection was made."""

    def write(self, data: bytes) -> None:
        """Send this: now if something waits for it, else with what follows, or when all that could has had its turn. (A
        head that tells a length needs no such turn: its body, or the end of the answer, follows.)"""
        self.given += len(data)
        if self._held:
            self._transport.write(self._held + data)
            self._held = b""
        elif data:
            self._held = data
            if LENGTH not in data:
                self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send waiting bytes."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close, when all is sent."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._transport.is_closing()


def _may_answer(cycle: RequestResponseCycle | None, phase: Phase, waiting: int) -> bool:
    """Whether a write can be no part, and no follower, of another request's answer."""
    if cycle is None:
        return True
    return not (waiting or cycle.response_started) if phase is Phase.BODY else cycle.response_complete


def _hang_up(cycle: RequestResponseCycle | None) -> None:
    """The application hears that the client has gone, and nothing more is sent for it."""
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


class Size(Struct):
    """The received part of one message. `silent`: bytes that the parser has said nothing of yet (one long header, a
    trailer, the extension of a chunk: it would keep them all)."""

    head: int = 0
    headers: int = 0
    body: int = 0
    silent: int = 0
    reports: int = 0

    def add_head(self, size: int, headers: int = 0) -> None:
        self.head += size
        self.headers += headers
        self.reports += 1

    def add_body(self, size: int) -> None:
        self.body += size
        self.reports += 1

    def exceeds(self, limits: Limits) -> bool:
        return self.headers > limits.headers or max(self.head, self.silent) > limits.head_bytes


class Unread(Struct):
    """How much of its answers a client had read, and when."""

    read: int = 0
    since: float = 0.0

    def long(self, left: int, read: int, now: float, limits: Limits) -> bool:
        """Whether the client has read too little for too long. `left`: what it has not read."""
        if left == 0 or read >= self.read + limits.unread_bytes:
            self.read, self.since = read, now
        return now - self.since >= limits.unread_seconds


MALFORMED = make_problem("malformed_request", "this is not an HTTP/1.1 request that can be read")
HEAD_TOO_LARGE = make_problem("head_too_large", "the head of a request has at most 64 KiB and 100 headers")
TOO_SLOW = make_problem("request_timeout", "the request did not arrive in time; send it again, faster")
TOO_MANY = make_problem("too_many_connections", "as many connections are open as this process serves; try again")


def _answer(problem: Problem) -> bytes:
    body = msgspec.json.encode(problem)
    retry = [(b"retry-after", b"1")] if problem.status == 503 else []
    headers = [
        (b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"), *retry, *security_headers(()),
    ]  # fmt: skip
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[problem.status] + head + b"\r\n" + body
