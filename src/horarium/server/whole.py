"""What `api.whole` asks of a server, for one request of one of our connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from horarium.api.whole import EXTENSION


def offer_whole(cycle: RequestResponseCycle, write: Callable[[bytes], None]) -> None:
    """Let the application use it for this request. `write`: sends bytes at once."""
    scope: Any = cycle.scope
    scope["extensions"] = {EXTENSION: WholeExchange(cycle, write)}


class WholeExchange:
    """Takes a body out of uvicorn's cycle, and ends the cycle with an answer, as its own `receive` and `send` do in
    several steps."""

    __slots__ = ("_cycle", "_write")

    def __init__(self, cycle: RequestResponseCycle, write: Callable[[bytes], None]) -> None:
        self._cycle, self._write = cycle, write

    def take_body(self) -> bytes | None:
        """The body, which is received by that. None: not all of it is here, or the client must hear something first."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue or cycle.flow.read_paused:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def answer(self, status: int, head: bytes, body: bytes) -> bool:
        """Send this. False: the connection is to be closed, or the client reads nothing, or wants no body."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        if cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        usual = b"".join([b"%s: %s\r\n" % each for each in cycle.default_headers])
        self._write(b"%s%s%s\r\n%s" % (STATUS_LINE[status], usual, head, body))
        cycle.message_event.set()
        cycle.on_response()
        return True
