"""An answer that is whole, in bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send

NO_CONTENT = 204
JSON = "application/json"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Ready(ASGIResponse):
    """A whole answer, in bytes. The framework's own takes longer to put a few headers together than a handler does for
    its work."""

    __slots__ = ("_media_type", "_more")

    def __init__(
        self, body: bytes = b"", *, status: int = 200, media_type: str = "", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.body, self.status_code = body, status
        self._media_type, self._more = media_type, headers

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._more]
        if self.status_code != NO_CONTENT:
            head += [(b"content-type", self._media_type.encode()), (b"content-length", b"%d" % len(self.body))]
        return head

    def encode_lines(self) -> bytes:
        """The headers as they are sent, each with its end. Raises ValueError for a value that would be no line."""
        lines = b""
        for name, value in self._more:
            text = value.encode("latin-1")
            if not value.isprintable() and _CONTROL.search(text):
                raise ValueError(f"{value!r} can't be sent in a header ({name})")
            lines += b"%s: %s\r\n" % (name.encode("latin-1"), text)
        if self.status_code == NO_CONTENT:
            return lines
        if self._media_type == JSON:
            return b"%scontent-type: application/json\r\ncontent-length: %d\r\n" % (lines, len(self.body))
        return b"%scontent-type: %s\r\ncontent-length: %d\r\n" % (lines, self._media_type.encode(), len(self.body))

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.encode_headers()})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
