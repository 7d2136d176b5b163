"""Runs that wait for a person's decision, as `Client.approvals`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from horarium.client.transport import Transport, segment
from horarium.wire.approvals import ApprovalView
from horarium.wire.views import RunView


class _Page(msgspec.Struct):
    items: list[ApprovalView]
    next_cursor: str | None = None


class Approvals:
    """What waits for a decision; docs/approvals.md."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Iterator[ApprovalView]:
        """The runs that wait, the soonest end first."""
        cursor: str | None = None
        while True:
            query = {} if cursor is None else {"cursor": cursor}
            page = msgspec.json.decode(
                self._transport.request("GET", "/api/v1/approvals", query=query).body, type=_Page
            )
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def decide(self, run_id: str, decision: Literal["approve", "reject"], reason: str | None = None) -> RunView:
        """Let the run begin, or not. Raises NotFound, Forbidden, and Conflict where another one was quicker."""
        body = {"decision": decision, "reason": reason}
        answer = self._transport.request("POST", f"/api/v1/approvals/{segment(run_id)}", body=body, repeatable=False)
        return msgspec.json.decode(answer.body, type=RunView)
