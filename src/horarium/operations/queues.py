"""What is set for queues: the weights of their fairness keys."""

from __future__ import annotations

import msgspec

from horarium.access.acting import bound_caller
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.settling.turns import QUEUES, QueueSettings, settings_of
from horarium.operations.writing.auditing import refusal_of, told
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.ports import PAGE_MAX, Page


class QueueOperations:
    """Queues of one namespace, each by the name that its runs have. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock, _, self._entropy = context

    async def get(self, queue: str) -> QueueSettings:
        """What is set for a queue; of most, nothing is. Raises Forbidden as `put` does."""
        _require_reach(queue)
        return settings_of((await self._store.get_records([QUEUES + queue]))[0])

    async def put(self, queue: str, settings: QueueSettings) -> QueueSettings:
        """Set this for a queue, for runs that are made from now on. Raises Forbidden where who acts is bound to
        others."""
        _require_reach(queue)
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            (stored,) = await self._store.get_records([QUEUES + queue])
            before, version = settings_of(stored), 0 if stored is None else stored.version
            if before == settings:
                return settings
            line = told("queue.set", f"queue/{queue}", self._clock.now(), before=_plain(before), after=_plain(settings))
            record = Record(name=QUEUES + queue, body=msgspec.json.encode(settings), version=version + 1)
            if await self._store.put_records([RecordChange(record, version, records=line)]) == [True]:
                return settings
        raise contended(f"queue {queue}")

    async def page(self, after: str | None, limit: int) -> Page[tuple[str, QueueSettings]]:
        """Queues for which something is set, by name, of those that who asks may reach; at most 200."""
        found = await self._store.list_records(
            RecordFilter(QUEUES), None if after is None else QUEUES + after, min(limit, PAGE_MAX)
        )
        caller, named = bound_caller(), ((record.name.removeprefix(QUEUES), record) for record in found.items)
        items = tuple(
            (name, settings_of(record)) for name, record in named if caller is None or caller.may_reach(name, {})
        )
        more = None if found.next_after is None or caller is not None else found.next_after.removeprefix(QUEUES)
        return Page(items, more)


def _require_reach(queue: str) -> None:
    caller = bound_caller()
    if caller is not None and not caller.may_reach(queue, {}):
        raise refusal_of(caller)


def _plain(settings: QueueSettings) -> dict[str, object]:
    return {"fair_weights": settings.fair_weights}
