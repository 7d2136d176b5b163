"""One connection to an endpoint: one request at a time, and its answer, bounded in head and body.

The parser (llhttp, by httptools) frames the answer; its length is bounded here: the bytes beside the body, and
the kept body. A connection serves again only if the answer was whole, nothing came after it, all of the request was
sent, and neither side wants to close. In every other case, a cancel among them, it is cut off at once, so that no
answer can ever be taken for that to another request.
"""

from __future__ import annotations

import asyncio
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from horarium.delivery.answers import BODY_BYTES_MAX, HEADER_KEPT_CHARS_MAX, KEPT, EndpointResponse

OVERHEAD_BYTES_MAX = 512 * 1024
"""Of the head, all interim answers, the frames of chunks and the trailers. A body of chunks of a byte takes 320 KiB."""
SWITCHING_PROTOCOLS = 101

_KEPT = {name.encode(): name for name in KEPT}
_FRAMES = frozenset({b"content-length", b"transfer-encoding"})


class NoAnswer(Exception):
    """There is no whole answer. `error` says why, in words that repeat nothing of the URL but its host, and nothing of
    what the peer sent. `retryable`: whether another attempt may do better. `unheard`: the connection ended before
    anything of an answer came."""

    def __init__(self, error: str, *, retryable: bool = True, unheard: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.retryable = retryable
        self.unheard = unheard


class Connection(asyncio.Protocol):
    """A connection to `peer` (host and port, for messages). `idle_since`: set by the pool."""

    __slots__ = (
        "_asked", "_body", "_framed", "_headers", "_headless", "_in_body", "_loop", "_parser", "_peer", "_received",
        "_size", "_transport", "_whole", "idle_since",
    )  # fmt: skip

    def __init__(self, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._asked: asyncio.Future[EndpointResponse] | None = None
        self.idle_since = 0.0
        self._expect(headless=False)

    def _expect(self, headless: bool) -> None:
        """The next to come in is the beginning of an answer. `headless`... of a HEAD request: it has no body."""
        self._headless = headless
        self._in_body = False
        self._framed = False
        self._whole = False
        self._received = self._size = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    # ---- asking

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, *, headless: bool = False) -> EndpointResponse:
        """Send a request and wait for its answer. Anything else that happens, a cancel too, ends the connection. Raises
        NoAnswer."""
        transport = self._transport
        if transport is None:
            raise NoAnswer(f"{self._peer} closed the connection without an answer", unheard=True)
        self._expect(headless)
        asked = self._asked = self._loop.create_future()
        transport.write(request)
        is_heard = False
        try:
            answer: EndpointResponse = await asked
            is_heard = True
            return answer
        finally:
            self._asked = None
            if not (is_heard and self._whole) or transport.get_write_buffer_size():
                transport.abort()

    def close(self) -> None:
        """End it; nothing is under way."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or self._asked is None or self._whole:
            self._whole = False  # nothing was asked: never use it again
            self.abort()
            return
        self._received += len(data)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:
            self._finish(self._parser_status(), reusable=False)
        except HttpParserError:
            if self._asked.done():
                self._whole = False
            elif self._in_body:
                self._fail(f"the answer of {self._peer} broke off before its end")
            else:
                self._fail(f"{self._peer} sent an answer that is not HTTP")
        else:
            if self._received - self._size > OVERHEAD_BYTES_MAX:
                self._fail(f"{self._peer} sent an answer whose head or framing is too large")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._in_body and error is None and not self._framed:
            self._finish(self._parser_status(), reusable=False)
        elif self._in_body:
            self._fail(f"the answer of {self._peer} broke off before its end")
        elif error is None:
            self._fail(f"{self._peer} closed the connection without an answer", unheard=not self._received)
        else:
            self._fail(f"the connection to {self._peer} was lost", unheard=not self._received)
        self._parser = None  # it holds our methods

    # ---- what the parser says

    def on_message_begin(self) -> None:
        if self._whole:
            raise ValueError("an answer to nothing")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer
        name = name.lower()
        if (kept := _KEPT.get(name)) is not None:
            self._headers.setdefault(kept, value.strip().decode("utf-8", "replace")[:HEADER_KEPT_CHARS_MAX])
        elif name in _FRAMES:
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser_status()
        if status < 200 and status != SWITCHING_PROTOCOLS:
            self._headers.clear()
            self._framed = False
            return
        self._in_body = True
        if self._headless:
            self._finish(status, reusable=False)

    def on_body(self, part: bytes) -> None:
        if self._size > BODY_BYTES_MAX:
            return
        self._body.append(part)
        self._size += len(part)
        if self._size > BODY_BYTES_MAX:
            self._finish(self._parser_status(), reusable=False)

    def on_message_complete(self) -> None:
        if self._in_body:
            parser = self._parser
            self._finish(self._parser_status(), reusable=parser is not None and parser.should_keep_alive())

    # ---- how it ends

    def _parser_status(self) -> int:
        return self._parser.get_status_code() if self._parser is not None else 0

    def _finish(self, status: int, *, reusable: bool) -> None:
        if self._asked is None or self._asked.done():
            return
        self._whole = reusable
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        truncated = len(body) > BODY_BYTES_MAX
        self._asked.set_result(EndpointResponse(status, self._headers, body[:BODY_BYTES_MAX], truncated))

    def _fail(self, error: str, *, unheard: bool = False) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(NoAnswer(error, unheard=unheard))
