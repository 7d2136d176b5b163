"""The faults that a server knows, as `Client.attention`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from horarium.client.transport import API, Transport


class Attention:
    """Faults and their acknowledgements."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[dict[str, Any]]:
        """The faults, worst first."""
        found: list[dict[str, Any]] = self._transport.call("GET", "/attention", dict[str, Any])["items"]
        return found

    def acknowledge(self, cause: str, reason: str, until: datetime | None = None) -> dict[str, Any]:
        """Take note of a cause, such as `failing/nightly`, until then or for a day."""
        body = {"cause": cause, "reason": reason, **({} if until is None else {"until": until})}
        return self._transport.call("POST", "/attention/acknowledge", dict[str, Any], body=body)

    def reopen(self, cause: str) -> None:
        """Take that back. Raises NotFound."""
        self._transport.request("POST", API + "/attention/reopen", body={"cause": cause})
