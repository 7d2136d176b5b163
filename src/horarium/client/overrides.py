"""Single fire times of jobs, skipped or moved, as `Client.overrides`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from horarium.client.transport import Transport, segment
from horarium.wire.overrides import OverrideView


class _Page(msgspec.Struct):
    items: list[OverrideView]
    next_cursor: str | None = None


class Overrides:
    """Fire times that persons skipped or moved; docs/overrides.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def skip(self, name: str, fire_at: datetime, reason: str | None = None) -> OverrideView:
        """The job does not run for this fire time. Raises NotFound, and Conflict where its run has begun."""
        return self._post(f"{_fire(name, fire_at)}/skip", {"reason": reason})

    def move(self, name: str, fire_at: datetime, to: datetime, reason: str | None = None) -> OverrideView:
        """The run of this fire time is due at another instant. Raises as `skip`."""
        return self._post(f"{_fire(name, fire_at)}/move", {"to": to, "reason": reason})

    def remove(self, name: str, fire_at: datetime) -> None:
        """The fire time is as its rule has it again. Raises as `skip`."""
        self._transport.request("DELETE", _fire(name, fire_at))

    def list(self, name: str) -> Iterator[OverrideView]:
        """Those of a job, earliest first."""
        cursor: str | None = None
        while True:
            query = {} if cursor is None else {"cursor": cursor}
            answer = self._transport.request("GET", f"/api/v1/jobs/{segment(name)}/overrides", query=query)
            page = msgspec.json.decode(answer.body, type=_Page)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def _post(self, path: str, body: dict[str, object]) -> OverrideView:
        return msgspec.json.decode(self._transport.request("POST", path, body=body).body, type=OverrideView)


def _fire(name: str, fire_at: datetime) -> str:
    return f"/api/v1/jobs/{segment(name)}/fires/{segment(fire_at.isoformat())}"
