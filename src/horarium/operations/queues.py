"""What is set for queues: the weights of their fairness keys."""

from __future__ import annotations

import msgspec

from horarium.access.acting import bound_caller
from horarium.model.records import Record, RecordChange, put_over
from horarium.operations.settling.turns import QUEUES, QueueSettings, decode_queue, settings_of
from horarium.operations.writing.auditing import refusal_of, told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.ports import Page


class QueueOperations:
    """Queues of one namespace, each by the name that its runs have. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._kept = Kept(context, "queue", QUEUES, decode_queue)

    async def get(self, queue: str) -> QueueSettings:
        """What is set for a queue; of most, nothing is. Raises Forbidden as `put` does."""
        _require_reach(queue)
        return await self._kept.find(queue) or QueueSettings()

    async def put(self, queue: str, settings: QueueSettings) -> QueueSettings:
        """Set this for a queue, for runs that are made from now on. Raises Forbidden where who acts is bound to
        others."""
        _require_reach(queue)

        async def wanted(stored: Record | None) -> RecordChange | None:
            if (before := settings_of(stored)) == settings:
                return None
            line = told("queue.set", f"queue/{queue}", self._clock.now(), before=_plain(before), after=_plain(settings))
            return put_over(stored, QUEUES + queue, msgspec.json.encode(settings), line)

        await self._kept.change(queue, wanted)
        return settings

    async def page(self, after: str | None, limit: int) -> Page[tuple[str, QueueSettings]]:
        """Queues for which something is set, by name, of those that who asks may reach; at most 200."""
        page, caller = await self._kept.page(after, limit), bound_caller()
        return page if caller is None else Page(tuple(each for each in page.items if caller.may_reach(each[0], {})))


def _require_reach(queue: str) -> None:
    caller = bound_caller()
    if caller is not None and not caller.may_reach(queue, {}):
        raise refusal_of(caller)


def _plain(settings: QueueSettings) -> dict[str, object]:
    return {"fair_weights": settings.fair_weights}
