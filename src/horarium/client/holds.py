"""The holds of a server, as `Client.holds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from horarium.client.transport import Answer, Transport, segment


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class Holds:
    """What may not begin: `{"scope": {...}, "reason": ...}`; docs/holds.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, hold: Mapping[str, Any]) -> dict[str, Any]:
        """Hold what the scope says. The hold, with its `id`."""
        return _decode(self._call("POST", "", body=dict(hold)))

    def get(self, id: str) -> dict[str, Any]:
        """The hold. Raises NotFound."""
        return _decode(self._call("GET", f"/{segment(id)}"))

    def list(self, active: bool | None = None) -> Iterator[dict[str, Any]]:
        """Those that have not ended; with `active`, those that are in force, or are not."""
        cursor: str | None = None
        while True:
            query = {} if active is None else {"active": str(active).lower()}
            answer = self._call("GET", "", query=query | ({} if cursor is None else {"cursor": cursor}))
            page = msgspec.json.decode(answer.body, type=_Page)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def update(self, id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change `until` (null: until it is lifted) or `reason`. Raises NotFound, and Conflict for one that ended."""
        return _decode(self._call("PATCH", f"/{segment(id)}", body=dict(changes)))

    def lift(self, id: str) -> None:
        """End it: what waited goes on. Raises NotFound."""
        self._call("DELETE", f"/{segment(id)}")

    def _call(self, method: str, path: str, **how: Any) -> Answer:
        return self._transport.request(method, f"/api/v1/holds{path}", **how)


def _decode(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found
