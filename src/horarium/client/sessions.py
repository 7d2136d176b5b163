"""Sign-ins to the dashboard, as `Client.sessions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from horarium.client.transport import Transport, segment


class SignedIn:
    """Who is signed in; docs/access.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Iterator[dict[str, Any]]:
        """All sessions that have not ended, the soonest end first."""
        return self._transport.items("/sessions", dict[str, Any])

    def end(self, id: str) -> None:
        """It opens nothing any more, on every node within five seconds. Raises NotFound."""
        self._transport.delete(f"/sessions/{segment(id)}")
