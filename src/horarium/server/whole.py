"""What `api.whole` asks of a server, for the requests of one of our connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle


class WholeExchange:
    """Takes a body out of uvicorn's cycle, and ends the cycle with an answer, as its own `receive` and `send` do in
    several steps: for the request that was read last. One for each connection: made for each request, it would be part
    of a ring of objects that only the garbage collector finds. `write`: sends bytes at once."""

    __slots__ = ("_connection", "_usual", "_usual_lines", "_write")

    def __init__(self, connection: HttpToolsProtocol, write: Callable[[bytes], None]) -> None:
        self._connection, self._write = connection, write
        self._usual: list[tuple[bytes, bytes]] = []
        self._usual_lines = b""

    def _cycle(self, scope: Any) -> RequestResponseCycle | None:
        """None: others were read after this one, or its client has gone."""
        cycle = self._connection.cycle
        return cycle if cycle.scope is scope and not cycle.disconnected else None

    def take_body(self, scope: Any) -> bytes | None:
        """The body, which is received by that. None: not all of it is here, or the client must hear something first."""
        cycle = self._cycle(scope)
        if cycle is None or cycle.more_body or cycle.waiting_for_100_continue or cycle.flow.read_paused:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def answer(self, scope: Any, status: int, head: bytes, body: bytes) -> bool:
        """Send this. False: the connection is to be closed, or the client reads nothing, or wants no body."""
        cycle = self._cycle(scope)
        if cycle is None or cycle.response_started or not cycle.keep_alive:
            return False
        if cycle.flow.write_paused or scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        if cycle.default_headers is not self._usual:  # another list once a second, with the date
            self._usual = cycle.default_headers
            self._usual_lines = b"".join([b"%s: %s\r\n" % each for each in self._usual])
        self._write(b"%s%s%s\r\n%s" % (STATUS_LINE[status], self._usual_lines, head, body))
        cycle.message_event.set()
        cycle.on_response()
        return True
