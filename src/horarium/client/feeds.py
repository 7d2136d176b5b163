"""Addresses for calendar programs, as `Client.feeds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from horarium.client.transport import Transport, segment


class Feeds:
    """Feeds of a server; docs/feeds.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, *, labels: Mapping[str, str] | None = None, jobs: Sequence[str] = ()) -> dict[str, Any]:
        """A new feed: its `url` is shown this once. Raises AlreadyExists."""
        body = {"name": name, "labels": dict(labels or {}), "jobs": list(jobs)}
        return self._transport.call("POST", "/feeds", dict[str, Any], body=body)

    def list(self) -> Iterator[dict[str, Any]]:
        """All feeds, by name, without their addresses."""
        return self._transport.items("/feeds", dict[str, Any])

    def revoke(self, name: str) -> None:
        """Its address is gone. Raises NotFound."""
        self._transport.delete(f"/feeds/{segment(name)}")
