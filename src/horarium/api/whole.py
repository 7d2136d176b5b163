"""A request's body and its answer, each in one piece, where the HTTP server offers that.

ASGI takes both apart into messages, and has the server look at each header and put them together. An answer of ours
stands ready in bytes when it is sent, and most bodies have arrived when they are read. So the server puts an extension
into the scope that takes the one and gives the other. It says so where it can't (the body is still on its way, the
client does not read, the connection is to be closed, ...): then ASGI's own messages are used, which say the same.
"""

from __future__ import annotations

from typing import Any, Protocol

EXTENSION = "horarium.whole"


class Whole(Protocol):
    """The requests of one connection, each by its ASGI scope."""

    def take_body(self, scope: Any) -> bytes | None:
        """The body, which is received by that. None: not all of it is here."""

    def answer(self, scope: Any, status: int, head: bytes, body: bytes) -> bool:
        """Send this. `head`: lines of headers, each with its end. False: it can't be sent so, and nothing was."""


def whole_of(scope: Any) -> Whole | None:
    """What the server of this ASGI scope offers."""
    offered = scope.get("extensions")
    whole: Whole | None = offered.get(EXTENSION) if offered else None
    return whole
