"""Pending decisions, as a `Scheduler` shows and makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horarium.library.named import Part, in_name_of_actor
from horarium.library.values import Run, id_of
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX

if TYPE_CHECKING:
    from horarium.wire.approvals import ApprovalView, Decision


class ApprovalMethods(Part):
    """The approvals of a scheduler's jobs (docs/approvals.md)."""

    async def list_approvals(self) -> list[ApprovalView]:
        """Pending decisions, the soonest end first."""
        from horarium.wire.approvals import approval_view

        pages = pages_of(lambda after: self._operations.approving.page(None, after, PAGE_MAX))
        waiting = [each async for page in pages for each in page]
        return [approval_view(each) for each in waiting]

    @in_name_of_actor
    async def decide(
        self,
        run_id: Run | str,
        decision: Decision,
        reason: str | None = None,
        *,
        actor: str | None = None,
    ) -> Run:
        """Let a run begin that waits for it, or not; or say how many of the fire times run that a job missed (`none`,
        `latest`, `all`): the first of their rows. Raises NotFound, AlreadyDecided, and Forbidden where who acts
        asked for it and the job wants four eyes."""
        return Run(await self._operations.approving.decide(id_of(run_id), decision, reason))
