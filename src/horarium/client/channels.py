"""The channels of a server, as `Client.channels`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from horarium.client.transport import Answer, Transport, segment
from horarium.wire.views import RunView


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class Channels:
    """Where notifications go. A channel is `{"type": "webhook", "url": ...}`, `{"type": "email", "to": [...]}` or
    `{"type": "apprise", "url": ...}`; docs/notifications.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, name: str, channel: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the channel, or replace the one of that name. The second value: whether it is new."""
        answer = self._call("PUT", name, body=dict(channel))
        return _decode(answer), answer.status == 201

    def get(self, name: str) -> dict[str, Any]:
        """The channel, without its secrets. Raises NotFound."""
        return _decode(self._call("GET", name))

    def list(self) -> Iterator[dict[str, Any]]:
        """All channels, by name."""
        cursor: str | None = None
        while True:
            query = {} if cursor is None else {"cursor": cursor}
            answer = self._transport.request("GET", "/api/v1/channels", query=query)
            page = msgspec.json.decode(answer.body, type=_Page)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def delete(self, name: str) -> None:
        """Remove a channel. Raises NotFound."""
        self._call("DELETE", name)

    def test(self, name: str) -> RunView:
        """Send a test message: the run that does it. Raises NotFound."""
        return msgspec.json.decode(self._call("POST", f"{segment(name)}/test", whole=True).body, type=RunView)

    def _call(self, method: str, name: str, *, whole: bool = False, **how: Any) -> Answer:
        return self._transport.request(method, f"/api/v1/channels/{name if whole else segment(name)}", **how)


def _decode(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found
