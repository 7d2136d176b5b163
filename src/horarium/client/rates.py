"""The rate limits of a server, as `Client.rates`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from horarium.client.transport import Transport, segment


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class Rates:
    """What the keys of rate limits allow, and when they open; docs/rates.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The keys in use that begin with this, in their order."""
        query = {"prefix": prefix} if prefix else {}
        while True:
            page = msgspec.json.decode(self._transport.request("GET", "/api/v1/rates", query=query).body, type=_Page)
            yield from page.items
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor

    def set(
        self, key: str, max: int, per_seconds: float, burst: int | None = None, until: datetime | None = None
    ) -> dict[str, Any]:
        """Have this limit hold for the key, instead of what jobs and runs say, until then or for good."""
        given = {"max": max, "per_seconds": per_seconds, "burst": burst, "until": until}
        body = {name: value for name, value in given.items() if value is not None}
        answer = self._transport.request("PUT", f"/api/v1/rates/{segment(key)}", body=body)
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        return found

    def reset(self, key: str) -> None:
        """Have what jobs and runs say hold again. Raises NotFound where that is so."""
        self._transport.request("DELETE", f"/api/v1/rates/{segment(key)}")
