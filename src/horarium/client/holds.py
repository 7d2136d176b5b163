"""The holds of a server, as `Client.holds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from horarium.client.transport import Transport, segment


class Holds:
    """What may not begin: `{"scope": {...}, "reason": ...}`; docs/holds.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, hold: Mapping[str, Any]) -> dict[str, Any]:
        """Hold what the scope says. The hold, with its `id`."""
        return self._transport.call("POST", "/holds", dict[str, Any], body=dict(hold))

    def get(self, id: str) -> dict[str, Any]:
        """The hold. Raises NotFound."""
        return self._transport.call("GET", _path(id), dict[str, Any])

    def list(self, active: bool | None = None) -> Iterator[dict[str, Any]]:
        """Those that have not ended; with `active`, those that are in force, or are not."""
        query = {} if active is None else {"active": str(active).lower()}
        return self._transport.items("/holds", dict[str, Any], query)

    def update(self, id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change `until` (null: until it is lifted) or `reason`. Raises NotFound, and Conflict for one that ended."""
        return self._transport.call("PATCH", _path(id), dict[str, Any], body=dict(changes))

    def lift(self, id: str) -> None:
        """End it: what waited goes on. Raises NotFound."""
        self._transport.delete(_path(id))


def _path(id: str) -> str:
    return f"/holds/{segment(id)}"
