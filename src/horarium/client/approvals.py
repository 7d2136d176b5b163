"""Pending decisions, as `Client.approvals`."""

from __future__ import annotations

from collections.abc import Iterator

from horarium.client.transport import Transport, segment
from horarium.wire.approvals import ApprovalView, Decision
from horarium.wire.views import RunView


class Approvals:
    """What waits for a decision; docs/approvals.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Iterator[ApprovalView]:
        """Pending decisions, the soonest end first."""
        return self._transport.items("/approvals", ApprovalView)

    def decide(self, run_id: str, decision: Decision, reason: str | None = None) -> RunView:
        """Let the run begin, or not; or say how many of the fire times run that a job missed. Raises
        NotFound, Forbidden, and Conflict where another one was quicker."""
        body = {"decision": decision, "reason": reason}
        return self._transport.call("POST", f"/approvals/{segment(run_id)}", RunView, body=body, repeatable=False)
