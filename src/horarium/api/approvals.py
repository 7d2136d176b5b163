"""The endpoints under /approvals: pending decisions."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer
from horarium.api.reading import read_cursor, run_id, write_cursor
from horarium.api.schemas import Page, PageQuery, Reason
from horarium.wire.approvals import ApprovalView, approval_view
from horarium.wire.views import RunView, run_view

_KEY = re.compile(r"[0-9a-f]{16}-[0-9a-fA-F-]{1,64}", re.ASCII)


class DecisionRequest(Struct, forbid_unknown_fields=True):
    """Whether the run begins, or how many of the missed fire times run, and why."""

    decision: Annotated[
        Literal["approve", "reject", "none", "latest", "all"],
        Meta(description="`reject`: it ends as skipped. The last three: of fire times that were missed."),
    ]
    reason: Reason | None = None


class ApprovalPage(Page[ApprovalView]):
    """One page of pending decisions, the soonest end first."""


class Approvals(Handlers):
    @Endpoint(
        "GET", "/approvals", "listApprovals", tag="approvals", scope=Scope.RUNS_READ, query=PageQuery, bound=True,
        costly=True,
        summary="Pending decisions, the soonest end first",
        description="Runs of jobs with `approval`, and missed fire times of those with `catch_up: ask`. "
        "A page may be short.",
        answers={200: (ApprovalPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("approvals", query.cursor, lambda text: _KEY.fullmatch(text) is not None)
        page = await self._operations.approving.page(call.principal, after, query.limit)
        more = None if call.principal.bound else write_cursor("approvals", page.next_after)
        return answer(ApprovalPage([approval_view(each) for each in page.items], more))

    @Endpoint(
        "POST", "/approvals/{id}", "decide", tag="approvals", scope=Scope.RUNS_WRITE,
        summary="Let a run begin, or not; or say which missed fire times run",
        description="Who may decide is said by the job's `approval`. A second decision is refused with whose "
        "the first one was.",
        body=DecisionRequest, examples=(Example("approved", {"decision": "approve", "reason": "figures checked"}),
                  Example("caught up", {"decision": "latest"})),
        answers={200: (RunView, "The run as it is now, or that of the first missed fire time")},
        problems=("not_found", "already_decided", "conflict"),
    )  # fmt: skip
    async def decide(self, call: Call) -> Answer:
        asked: DecisionRequest = call.body
        return answer(
            run_view(await self._operations.approving.decide(run_id(call.request), asked.decision, asked.reason))
        )
