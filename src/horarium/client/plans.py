"""What a change, and the days to come, will do, as `Client.plans`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from horarium.client.transport import Transport, segment


class Plans:
    """Plans of definitions, and forecasts; docs/plans.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def make(
        self,
        documents: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        prune: Mapping[str, str] | None = None,
        horizon_seconds: int | None = None,
    ) -> dict[str, Any]:
        """What these documents (`jobs`, `calendars`, `channels`) would change. Jobs with the labels `prune` that are
        not among them would be deleted."""
        body: dict[str, Any] = {"documents": documents}
        if prune is not None:
            body["prune"] = {"labels": dict(prune)}
        if horizon_seconds is not None:
            body["horizon_seconds"] = horizon_seconds
        return self._transport.call("POST", "/plans", dict[str, Any], body=body)

    def list(self) -> Iterator[dict[str, Any]]:
        """Plans, the newest first, each by its `ref`, which opens nothing: counts of changes, by whom, until when."""
        return self._transport.items("/plans", dict[str, Any])

    def apply(self, plan_id: str, advance: Callable[[int, int], None] | None = None) -> int:
        """Carry out a plan, all of it: how many changes were made. `advance` is told after each thousand how many that
        were, and how many are left. Raises NotFound, and Conflict where a definition is no longer as it was read."""
        applied: int = 0
        while True:
            done = self._transport.call("POST", f"/plans/{segment(plan_id)}/apply", dict[str, Any], body={})
            applied += int(done["applied"])
            if advance is not None:
                advance(done["applied"], done["left"])
            if not done["left"]:
                return applied

    def approve(self, plan_id: str) -> int:
        """Let callers apply a plan that may write no jobs, and have the role operator; how many changes it makes.
        Raises NotFound, Forbidden, and Conflict where it is stale, or approved already."""
        path = f"/plans/{segment(plan_id)}/apply?approve=true"
        return int(self._transport.call("POST", path, dict[str, Any], body={}, repeatable=False)["left"])

    def forecast(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        bucket_seconds: int = 3600,
        by: str = "queue",
    ) -> dict[str, Any]:
        """How many runs start, and run at once on average, in each bucket."""
        query = {
            "since": since and since.isoformat(), "until": until and until.isoformat(),
            "bucket_seconds": bucket_seconds, "by": by,
        }  # fmt: skip
        return self._transport.call("GET", "/forecast", dict[str, Any], query=query)
