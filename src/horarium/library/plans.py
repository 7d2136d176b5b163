"""What a change, and the days to come, will do, as a `Scheduler` says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from horarium.clock import to_instant
from horarium.errors import InvalidRequest
from horarium.library.named import Part, in_name_of_actor
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX
from horarium.wire.faults import converted

KINDS = frozenset({"jobs", "calendars", "channels"})
Document = Mapping[str, Any]


class PlanMethods(Part):
    """Plans and forecasts of a scheduler, as plain data: the fields of docs/plans.md."""

    @in_name_of_actor
    async def plan(
        self,
        documents: Mapping[str, Sequence[Document]],
        *,
        prune: Mapping[str, str] | None = None,
        horizon_seconds: int = 14 * 86_400,
        actor: str | None = None,
    ) -> dict[str, Any]:
        """What these documents (`jobs`, `calendars`, `channels`, each a list of definitions with names) would change.
        Jobs with the labels `prune` that are not among them would be deleted. Only the plan itself is written. Raises
        InvalidRequest."""
        from horarium.operations.plans.documents import read_documents
        from horarium.operations.plans.shown import change_shown, plan_shown
        from horarium.wire.definitions import read_definition

        given = converted(documents, dict[str, tuple[dict[str, Any], ...]], "documents")
        if unknown := sorted(given.keys() - KINDS):
            raise InvalidRequest(f"documents: unknown: {', '.join(unknown)}; known are {', '.join(sorted(KINDS))}")
        jobs, calendars, channels = (given.get(kind, ()) for kind in ("jobs", "calendars", "channels"))
        read = await read_documents(jobs, calendars, channels, read_definition)
        making = self._operations.planned_changes.make(read, prune, horizon_seconds, say=change_shown)
        return plan_shown(await making)

    async def list_plans(self) -> list[dict[str, Any]]:
        """Plans of the last seven days, the newest first, each by its `ref`, which opens nothing: counts of changes, by
        whom, until when."""
        from horarium.operations.plans.shown import listed_shown

        pages = pages_of(lambda after: self._operations.planned_changes.page(after, PAGE_MAX))
        return [listed_shown(plan) async for page in pages for plan in page]

    @in_name_of_actor
    async def apply_plan(self, plan_id: str, *, actor: str | None = None) -> int:
        """Carry out a plan: all of it, a thousand changes in one transaction. How many changes were made. Raises
        NotFound, and PlanStale where a definition is no longer as the plan read it."""
        applied = 0
        while True:
            done = await self._operations.applying.apply(plan_id)
            applied += done.applied
            if not done.left:
                return applied

    @in_name_of_actor
    async def approve_plan(self, plan_id: str, *, actor: str | None = None) -> int:
        """Let callers apply it that may write runs, but no jobs: an operator, an agent. How many changes it makes.
        Raises NotFound, AlreadyDecided, PlanStale."""
        return (await self._operations.applying.approve(plan_id)).left

    async def forecast(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        bucket_seconds: int = 3600,
        by: str = "queue",
    ) -> dict[str, Any]:
        """How many runs start, and run at once on average, in each bucket from now on for seven days, or in the span.
        `by`: `queue`, `job`, `host` or `label:NAME`. Raises InvalidRequest."""
        from horarium.operations.plans.shown import forecast_shown

        span = [None if moment is None else to_instant(moment) for moment in (since, until)]
        return forecast_shown(await self._operations.forecasting.forecast(span[0], span[1], bucket_seconds, by))
