"""The endpoints under /attention."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.clock import to_instant, to_text
from horarium.operations.deciding.acknowledging import REASON_CHARS_MAX
from horarium.operations.looking.attending import Fault

CauseKey = Annotated[str, Meta(min_length=1, max_length=500)]


class AcknowledgeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Who acknowledges says why. `until`: 30 days ahead at most; left out: for a day."""

    cause: CauseKey
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    until: Annotated[datetime, Meta(tz=True)] | None = None


class ReopenBody(Struct, forbid_unknown_fields=True):
    """A cause that was acknowledged."""

    cause: CauseKey


class AcknowledgedView(Struct):
    """Who took note of a cause, why, and until when."""

    by: str
    reason: str
    at: str
    until: str


class FaultView(Struct):
    """One thing that needs attention. `cause`: failing/JOB, late/JOB, unserved/QUEUE, lost/NODE,
    undelivered/CHANNEL, held/HOLD or calendar/NAME; `since`: when it began."""

    cause: str
    since: str
    text: str
    acknowledged: AcknowledgedView | None


class AttentionView(Struct):
    """All faults, worst first. `truncated`: there may be more."""

    items: list[FaultView]
    truncated: bool


EXAMPLES = (Example("a known failure", {"cause": "failing/nightly", "reason": "the disk comes on Monday"}),)
OPEN_AGAIN = (Example("open again", {"cause": "failing/nightly"}),)


class AttentionApi(Handlers):
    @Endpoint(
        "GET", "/attention", "listAttention", tag="attention", scope=Scope.JOBS_READ, bound=True, costly=True,
        summary="Faults, worst first",
        description="Jobs that fail or are late, queues without workers, lost nodes, channels that take no "
        "messages; and who took note of it.",
        answers={200: (AttentionView, "The faults")},
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        faults, truncated = await self._operations.attending.list_all()
        return answer(AttentionView([_view(fault) for fault in faults], truncated))

    @Endpoint(
        "POST", "/attention/acknowledge", "acknowledge", tag="attention", scope=Scope.RUNS_WRITE,
        summary="Take note of a cause",
        description="It no longer leads the verdict, until then or until it is another: one that ended and "
        "came back, or has another error, is open again.",
        body=AcknowledgeBody, examples=EXAMPLES,
        answers={200: (FaultView, "The fault")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def acknowledge(self, call: Call) -> Answer:
        body: AcknowledgeBody = call.body
        until = None if body.until is None else to_instant(body.until)
        return answer(_view(await self._operations.attending.acknowledge(body.cause, body.reason, until)))

    @Endpoint(
        "POST", "/attention/reopen", "reopen", tag="attention", scope=Scope.RUNS_WRITE,
        summary="Take that back",
        body=ReopenBody, examples=OPEN_AGAIN,
        answers={204: (None, "It is open again")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def reopen(self, call: Call) -> Answer:
        await self._operations.attending.reopen(call.body.cause)
        return no_content()


def _view(fault: Fault) -> FaultView:
    ack = fault.acknowledged
    noted = None if ack is None else AcknowledgedView(ack.by, ack.reason, to_text(ack.at), to_text(ack.until))
    return FaultView(fault.cause.key, to_text(fault.cause.since), fault.text, noted)
