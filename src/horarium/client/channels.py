"""The channels of a server, as `Client.channels`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from horarium.client.transport import Transport, segment
from horarium.wire.views import RunView


class Channels:
    """Where notifications go. A channel is `{"type": "webhook", "url": ...}`, `{"type": "email", "to": [...]}` or
    `{"type": "apprise", "url": ...}`; docs/notifications.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, name: str, channel: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Define the channel, or replace the one of that name. The second value: whether it is new."""
        return self._transport.put(_path(name), dict(channel), dict[str, Any])

    def get(self, name: str) -> dict[str, Any]:
        """The channel, without its secrets. Raises NotFound."""
        return self._transport.call("GET", _path(name), dict[str, Any])

    def list(self) -> Iterator[dict[str, Any]]:
        """All channels, by name."""
        return self._transport.items("/channels", dict[str, Any])

    def delete(self, name: str) -> None:
        """Remove a channel. Raises NotFound."""
        self._transport.delete(_path(name))

    def test(self, name: str) -> RunView:
        """Send a test message: the run that does it. Raises NotFound."""
        return self._transport.call("POST", f"{_path(name)}/test", RunView)


def _path(name: str) -> str:
    return f"/channels/{segment(name)}"
