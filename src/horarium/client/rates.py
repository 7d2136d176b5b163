"""The rate limits of a server, as `Client.rates`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from horarium.client.transport import Transport, segment


class Rates:
    """What the keys of rate limits allow, and when they open; docs/rates.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """The keys in use that begin with this, in their order."""
        return self._transport.items("/rates", dict[str, Any], {"prefix": prefix or None})

    def set(
        self, key: str, max: int, per_seconds: float, burst: int | None = None, until: datetime | None = None
    ) -> dict[str, Any]:
        """Have this limit hold for the key, instead of what jobs and runs say, until then or for good."""
        given = {"max": max, "per_seconds": per_seconds, "burst": burst, "until": until}
        body = {name: value for name, value in given.items() if value is not None}
        return self._transport.call("PUT", f"/rates/{segment(key)}", dict[str, Any], body=body)

    def reset(self, key: str) -> None:
        """Have what jobs and runs say hold again. Raises NotFound where that is so."""
        self._transport.delete(f"/rates/{segment(key)}")
