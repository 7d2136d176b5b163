"""Addresses for calendar programs, as `Client.feeds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from horarium.client.answers import AnyPage
from horarium.client.transport import Transport, segment


class Feeds:
    """Feeds of a server; docs/feeds.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, *, labels: Mapping[str, str] | None = None, jobs: Sequence[str] = ()) -> dict[str, Any]:
        """A new feed: its `url` is shown this once. Raises AlreadyExists."""
        body = {"name": name, "labels": dict(labels or {}), "jobs": list(jobs)}
        made: dict[str, Any] = msgspec.json.decode(self._transport.request("POST", "/api/v1/feeds", body=body).body)
        return made

    def list(self) -> Iterator[dict[str, Any]]:
        """All feeds, by name, without their addresses."""
        cursor: str | None = None
        while True:
            query = {} if cursor is None else {"cursor": cursor}
            answer = self._transport.request("GET", "/api/v1/feeds", query=query)
            page = msgspec.json.decode(answer.body, type=AnyPage)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def revoke(self, name: str) -> None:
        """Its address is gone. Raises NotFound."""
        self._transport.request("DELETE", f"/api/v1/feeds/{segment(name)}")
