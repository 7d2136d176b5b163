"""An answer that is whole, in bytes; and the headers of every answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

NO_CONTENT, NOT_MODIFIED = 204, 304
JSON = "application/json"
CLOSED = "horarium.closed"
"""In the scope of a request to our own server: a function that says whether its client has hung up by now, so that no
answer is sent any more."""
PIECE_BYTES = 128 * 1024
"""Of a long answer so much is handed over at a time: a connection keeps no second copy of all of it, for a client that
reads slowly."""
CONTENT_SECURITY_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"cache-control", b"no-store"),
)
OF_A_PAGE = frozenset({b"content-security-policy", b"cache-control"})
"""What a page may say otherwise."""


class Ready(Response):
    """Its headers are given as pairs, since some are sent more than once. `body`: a long one is given in pieces, each
    of which is let go once it is sent."""

    def __init__(
        self,
        body: bytes | list[bytes] = b"",
        *,
        status: int = 200,
        media_type: str = JSON,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.pieces = body if isinstance(body, list) else [body]
        self.status_code, self.background = status, None
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if status not in (NO_CONTENT, NOT_MODIFIED):
            if media_type.startswith("text/") and "charset" not in media_type:
                media_type += "; charset=utf-8"
            size = sum(map(len, self.pieces))
            self.raw_headers += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % size)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = self.pieces[::-1]
        self.pieces.clear()
        while pieces:
            piece = pieces.pop()
            for first in range(0, len(piece) or 1, PIECE_BYTES):
                part = piece[first : first + PIECE_BYTES]
                more = bool(pieces) or first + PIECE_BYTES < len(piece)
                await send({"type": "http.response.body", "body": part, "more_body": more})


def security_headers(names: Collection[bytes]) -> Sequence[tuple[bytes, bytes]]:
    """Our headers for an answer that has those of these names."""
    if OF_A_PAGE.isdisjoint(names):
        return _HEADERS
    return [each for each in _HEADERS if each[0] not in names or each[0] not in OF_A_PAGE]
