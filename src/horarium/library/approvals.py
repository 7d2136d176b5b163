"""Runs that wait for a person's decision, as a `Scheduler` shows and decides them."""

from __future__ import annotations

from typing import Literal

from horarium.library.named import in_name_of_actor
from horarium.library.values import Run
from horarium.operations.facade import Operations
from horarium.wire.approvals import ApprovalView, approval_view


class ApprovalMethods:
    """The approvals of a scheduler's jobs (docs/approvals.md)."""

    actor: str | None

    @property
    def _operations(self) -> Operations:
        raise NotImplementedError

    async def list_approvals(self) -> list[ApprovalView]:
        """The runs that wait for a decision, the soonest end first."""
        found: list[ApprovalView] = []
        after: str | None = None
        while True:
            page = await self._operations.approving.page(None, after, 200)
            found += (approval_view(each.run, each.job, each.question.by_name, each.why_not) for each in page.items)
            if (after := page.next_after) is None:
                return found

    @in_name_of_actor
    async def decide(
        self,
        run_id: str,
        decision: Literal["approve", "reject"],
        reason: str | None = None,
        *,
        actor: str | None = None,
    ) -> Run:
        """Let a run begin that waits for it, or not. Raises NotFound, AlreadyDecided, and Forbidden where who acts
        asked for it and the job wants four eyes."""
        return Run(await self._operations.approving.decide(run_id, decision, reason))
