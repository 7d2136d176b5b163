"""What needs attention, as a `Scheduler` tells it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from horarium.clock import to_instant, to_text
from horarium.library.named import Part, in_name_of_actor

if TYPE_CHECKING:
    from horarium.operations.looking.attending import Fault


class AttentionMethods(Part):
    """Faults and their acknowledgements, as plain data: the fields of `GET /api/v1/attention`."""

    async def attention(self) -> list[dict[str, Any]]:
        """The faults, worst first: failing and late jobs, queues that no worker serves, lost nodes, channels that take
        no messages."""
        faults, _ = await self._operations.attending.list_all()
        return [_shown(fault) for fault in faults]

    @in_name_of_actor
    async def acknowledge_cause(
        self, cause: str, reason: str, until: datetime | None = None, *, actor: str | None = None
    ) -> dict[str, Any]:
        """Take note of a cause, such as `failing/nightly`, until then or for a day. Raises NotFound,
        InvalidRequest."""
        at = None if until is None else to_instant(until)
        return _shown(await self._operations.attending.acknowledge(cause, reason, at))

    @in_name_of_actor
    async def reopen_cause(self, cause: str, *, actor: str | None = None) -> None:
        """Take that back. Raises NotFound."""
        await self._operations.attending.reopen(cause)


def _shown(fault: Fault) -> dict[str, Any]:
    ack = fault.acknowledged
    noted = ack and {"by": ack.by, "reason": ack.reason, "at": to_text(ack.at), "until": to_text(ack.until)}
    return {
        "cause": fault.cause.key, "since": to_text(fault.cause.since), "text": fault.text, "acknowledged": noted,
    }  # fmt: skip
