"""An answer that is whole, in bytes; and the headers of every answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.responses import Response

NO_CONTENT, NOT_MODIFIED = 204, 304
JSON = "application/json"
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
    """Its headers are given as pairs, since some are sent more than once."""

    def __init__(
        self, body: bytes = b"", *, status: int = 200, media_type: str = JSON, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.body, self.status_code, self.background = body, status, None
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if status not in (NO_CONTENT, NOT_MODIFIED):
            if media_type.startswith("text/") and "charset" not in media_type:
                media_type += "; charset=utf-8"
            self.raw_headers += [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]


def security_headers(names: Collection[bytes]) -> Sequence[tuple[bytes, bytes]]:
    """Our headers for an answer that has those of these names."""
    if OF_A_PAGE.isdisjoint(names):
        return _HEADERS
    return [each for each in _HEADERS if each[0] not in names or each[0] not in OF_A_PAGE]
