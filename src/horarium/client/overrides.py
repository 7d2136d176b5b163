"""Single fire times of jobs, skipped or moved, as `Client.overrides`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from horarium.client.transport import Transport, segment
from horarium.wire.overrides import OverrideView


class Overrides:
    """Fire times that persons skipped or moved; docs/overrides.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def skip(self, name: str, fire_at: datetime, reason: str | None = None) -> OverrideView:
        """The job does not run for this fire time. Raises NotFound, and Conflict where its run has begun."""
        return self._transport.call("POST", f"{_fire(name, fire_at)}/skip", OverrideView, body={"reason": reason})

    def move(self, name: str, fire_at: datetime, to: datetime, reason: str | None = None) -> OverrideView:
        """The run of this fire time is due at another instant. Raises as `skip`."""
        body = {"to": to, "reason": reason}
        return self._transport.call("POST", f"{_fire(name, fire_at)}/move", OverrideView, body=body)

    def remove(self, name: str, fire_at: datetime) -> None:
        """The fire time is as its rule has it again. Raises as `skip`."""
        self._transport.delete(_fire(name, fire_at))

    def list(self, name: str) -> Iterator[OverrideView]:
        """Those of a job, earliest first."""
        return self._transport.items(f"/jobs/{segment(name)}/overrides", OverrideView)


def _fire(name: str, fire_at: datetime) -> str:
    return f"/jobs/{segment(name)}/fires/{segment(fire_at.isoformat())}"
