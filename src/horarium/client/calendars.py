"""The calendars of a server, as `Client.calendars`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from horarium.client.transport import Answer, Transport, segment


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class Calendars:
    """Which days are business days: `{"weekend": [...], "holidays": [...]}`; docs/calendars.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, name: str, calendar: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the calendar, or replace the one of that name. The second value: whether it is new."""
        answer = self._call("PUT", segment(name), body=dict(calendar))
        return _decode(answer), answer.status == 201

    def compare(self, name: str, calendar: Mapping[str, Any]) -> dict[str, Any]:
        """How fire times of jobs would change with these days, as `{"changes": [...], "truncated": ...}`."""
        return _decode(self._call("PUT", segment(name), body=dict(calendar), query={"dry_run": "true"}))

    def get(self, name: str) -> dict[str, Any]:
        """The calendar. Raises NotFound."""
        return _decode(self._call("GET", segment(name)))

    def days(self, name: str, since: str | None = None, until: str | None = None) -> list[dict[str, Any]]:
        """Its days from one date to another, both included. Raises NotFound."""
        query = {key: value for key, value in (("since", since), ("until", until)) if value is not None}
        days: list[dict[str, Any]] = _decode(self._call("GET", f"{segment(name)}/days", query=query))["items"]
        return days

    def list(self) -> Iterator[dict[str, Any]]:
        """All calendars, by name."""
        cursor: str | None = None
        while True:
            query = {} if cursor is None else {"cursor": cursor}
            answer = self._transport.request("GET", "/api/v1/calendars", query=query)
            page = msgspec.json.decode(answer.body, type=_Page)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def delete(self, name: str) -> None:
        """Remove a calendar. Raises NotFound, and Conflict while jobs use it."""
        self._call("DELETE", segment(name))

    def _call(self, method: str, path: str, **how: Any) -> Answer:
        return self._transport.request(method, f"/api/v1/calendars/{path}", **how)


def _decode(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found
