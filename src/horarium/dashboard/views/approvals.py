"""Pending decisions."""

from __future__ import annotations

from horarium.access.roles import Scope
from horarium.dashboard.formats import counted
from horarium.dashboard.marks import first_line
from horarium.dashboard.site import Answer, Page, Shown, Visit, Went
from horarium.errors import InvalidRequest, NotFound
from horarium.model import Run
from horarium.model.identity import is_run_id
from horarium.operations.facade import Operations
from horarium.wire.approvals import Decision, approval_view

SHOWN = 50
PAYLOAD_SHOWN = 200
MISSED: dict[str, tuple[Decision, str]] = {
    "none": ("none", "None of the fire times runs that {} missed."),
    "latest": ("latest", "The latest of the fire times runs that {} missed."),
    "all": ("all", "All fire times run that {} missed."),
}


class Approvals:
    """The page `/approvals`, and its buttons."""

    def __init__(self, operations: Operations) -> None:
        self._approving = operations.approving

    def pages(self) -> list[Page]:
        """The table."""
        return [
            Page(
                path="/approvals", name="approvals", handle=self.show, scope=Scope.RUNS_READ, place="approvals"
            ),
            Page(
                path="/approvals/{id}/approve", name="approve", handle=self.approve, method="POST",
                scope=Scope.RUNS_WRITE,
            ),
            Page(
                path="/approvals/{id}/reject", name="reject", handle=self.reject, method="POST",
                scope=Scope.RUNS_WRITE,
            ),
            Page(
                path="/approvals/{id}/missed", name="missed", handle=self.missed, method="POST",
                scope=Scope.RUNS_WRITE,
            ),
        ]  # fmt: skip

    async def show(self, visit: Visit) -> Answer:
        page = await self._approving.page(visit.principal, None, SHOWN)
        rows = [{"run": each.run, "view": approval_view(each), "payload": _payload(each.run)} for each in page.items]
        count = f"{counted(len(rows), 'decision')} {'waits' if len(rows) == 1 else 'wait'}"
        heading = f"{count}{'' if page.next_after is None else ' or more'}" if rows else "No decision waits"
        return Shown("approvals.html", {"rows": rows, "heading": heading})

    async def approve(self, visit: Visit) -> Answer:
        return await self._decide(visit, "approve", "A run of {} is approved.")

    async def reject(self, visit: Visit) -> Answer:
        return await self._decide(visit, "reject", "A run of {} is rejected.")

    async def missed(self, visit: Visit) -> Answer:
        if (known := MISSED.get(visit.text("decision"))) is None:
            raise InvalidRequest("decision: none, latest or all", field="decision")
        return await self._decide(visit, *known)

    async def _decide(self, visit: Visit, decision: Decision, done: str) -> Answer:
        given = str(visit.request.path_params["id"])
        if not is_run_id(given):
            raise NotFound(f"there is no run {given[:200]!r}")
        run = await self._approving.decide(given, decision, visit.text("reason").strip() or None)
        return Went("/approvals", done.format(run.job))


def _payload(run: Run) -> str:
    """The beginning of its payload, which is decided about."""
    text = b"" if run.payload is None else bytes(run.payload)
    return first_line(text.decode("utf-8", "replace"), PAYLOAD_SHOWN)
