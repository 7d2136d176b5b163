"""The calendars of a server, as `Client.calendars`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from horarium.client.transport import Transport, segment

DRY = {"dry_run": "true"}


class Calendars:
    """Which days are business days: `{"weekend": [...], "holidays": [...]}`; docs/calendars.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, name: str, calendar: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the calendar, or replace the one of that name. The second value: whether it is new."""
        return self._transport.put(_path(name), dict(calendar), dict[str, Any])

    def compare(self, name: str, calendar: Mapping[str, Any]) -> dict[str, Any]:
        """How fire times of jobs would change with these days, as `{"changes": [...], "truncated": ...}`."""
        return self._transport.call("PUT", _path(name), dict[str, Any], body=dict(calendar), query=DRY)

    def get(self, name: str) -> dict[str, Any]:
        """The calendar. Raises NotFound."""
        return self._transport.call("GET", _path(name), dict[str, Any])

    def days(self, name: str, since: str | None = None, until: str | None = None) -> list[dict[str, Any]]:
        """Its days from one date to another, both included. Raises NotFound."""
        query = {"since": since, "until": until}
        days: list[dict[str, Any]] = self._transport.call("GET", f"{_path(name)}/days", dict, query=query)["items"]
        return days

    def list(self) -> Iterator[dict[str, Any]]:
        """All calendars, by name."""
        return self._transport.items("/calendars", dict[str, Any])

    def delete(self, name: str) -> None:
        """Remove a calendar. Raises NotFound, and Conflict while jobs use it."""
        self._transport.delete(_path(name))


def _path(name: str) -> str:
    return f"/calendars/{segment(name)}"
