"""An answer that is whole, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

NO_CONTENT = 204


class Ready(ASGIResponse):
    """A whole answer, in bytes. The framework's own takes longer to put a few headers together than a handler does for
    its work."""

    __slots__ = ("_head",)

    def __init__(
        self, body: bytes = b"", *, status: int = 200, media_type: str = "", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.body, self.status_code = body, status
        self._head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if status != NO_CONTENT:
            self._head += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        return self._head

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._head})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
