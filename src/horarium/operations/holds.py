"""Holds: records that every node reads, and markers that bring back what waited once a hold ends before its time.

A hold is the record `hold/ID`. Making, changing or lifting one leaves a marker record in the same transaction; the node
that finds it looks at the jobs and runs that the hold covers, page by page (`services.upkeep.holds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from horarium.access.acting import bound_caller, who_acts
from horarium.access.roles import Principal
from horarium.clock import to_text
from horarium.errors import Conflict, Forbidden, InvalidRequest, InvalidTrigger, NotFound
from horarium.model.holds import Hold, HoldRepeat, HoldScope
from horarium.model.records import Record, RecordChange
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.reaching import may_reach_job, require_job
from horarium.operations.calendars import known_days
from horarium.operations.settling.holding import PREFIX, Holding, decode_hold
from horarium.operations.writing.auditing import refusal_of, told
from horarium.operations.writing.context import RACES_MAX, Context, contended
from horarium.ports import APPLY, HOLDS, Page
from horarium.rules.applying import Owed
from horarium.rules.calendars import calendars_in
from horarium.rules.holds import PULLED, held_queues, next_begin, stretch_at
from horarium.triggers import parse_trigger
from horarium.triggers.budget import LIST_STEPS, limited
from horarium.wire.holds import HoldDefinition, HoldPatch, checked_end, checked_scope, hold_from, hold_view, is_over

CHANGED = "hold-change/"
"""Markers of changes that are still to be carried to jobs and runs."""
HOLDS_MAX = 500
"""Holds that have not ended."""

Wanted = Callable[[Hold], Hold]


class HoldOperations:
    """Holds of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, holding: Holding) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._holding = holding

    async def add(self, definition: HoldDefinition) -> Hold:
        """Make a hold. Raises InvalidRequest, Conflict where there are too many, and Forbidden for a caller that is
        bound to other queues."""
        now, origin = self._clock.now(), who_acts()
        definition = await self._checked(definition)
        there = sum(not is_over(hold, now) for hold in await self._holding.look(0))
        if there >= HOLDS_MAX:
            raise Conflict(f"there are {there} holds already; at most {HOLDS_MAX} are kept: lift one")
        id = f"{now:014x}{self._entropy(3).hex()}"
        hold = hold_from(definition, id=id, now=now, by=None if origin is None else origin.principal.name)
        _check_in_force(hold)
        if not await self.write(None, hold, "hold.create"):
            raise contended(f"hold {id}")
        return hold

    async def get(self, id: str) -> Hold:
        """The hold of that id, ended or not. Raises NotFound."""
        return (await self._read(id))[1]

    async def page(self, active: bool | None, after: str | None, limit: int) -> Page[Hold]:
        """Holds by id, oldest first: those that have not ended (None), that are in force (True), or that are not
        (False: those to come, and those that ended within the last month)."""
        now, found = self._clock.now(), list[Hold]()
        for hold in sorted(await self._holding.look(0), key=lambda hold: hold.id):
            in_force = stretch_at(hold, now) is not None
            wanted = not is_over(hold, now) if active is None else in_force is active
            if wanted and (after is None or hold.id > after) and await self._may_see(hold.scope):
                found.append(hold)
        return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    async def in_force(self) -> list[Hold]:
        """Those that are in force, for pages and counts: a moment old at most."""
        now = self._clock.now()
        return [hold for hold in await self._holding.look() if stretch_at(hold, now) is not None]

    async def held(self, queues: Sequence[str]) -> set[str]:
        """Those of these queues that a hold lies over as a whole."""
        return {*queues} - {*held_queues(await self._holding.look(), queues, self._clock.now())[0]}

    async def seen(self, holds: Iterable[Hold]) -> list[Hold]:
        """Those of them that who asks may see."""
        return [hold for hold in holds if await self._may_see(hold.scope)]

    async def seen_now(self) -> list[Hold]:
        """Those that there are, as far as who asks may see them: a moment old at most."""
        return await self.seen(await self._holding.look())

    async def update(self, id: str, patch: HoldPatch) -> Hold:
        """Change the end or the reason. Raises NotFound, InvalidRequest, and Conflict for one that has ended."""

        def wanted(hold: Hold) -> Hold:
            now = self._clock.now()
            if is_over(hold, now):
                raise Conflict(f"hold {id} has ended; make another one")
            if not isinstance(patch.until, msgspec.UnsetType):
                hold = replace(hold, ends_at=checked_end(patch.until, hold.begins_at, now))
                _check_in_force(hold)
            return hold if isinstance(patch.reason, msgspec.UnsetType) else replace(hold, reason=patch.reason)

        return await self._changed(id, wanted, "hold.update")

    async def lift(self, id: str) -> Hold:
        """End it now: what waited goes on. Lifting one that has ended changes nothing. Raises NotFound."""

        def lifted(hold: Hold) -> Hold:
            now = self._clock.now()
            return hold if is_over(hold, now) else replace(hold, lifted_at=now)

        return await self._changed(id, lifted, "hold.lift")

    async def renew(self, calendar: str) -> None:
        """Bring those that repeat by this calendar to its days of now."""
        now = self._clock.now()
        for hold in await self._holding.look(0):
            if is_over(hold, now) or hold.repeat is None or calendar not in calendars_in(hold.repeat.trigger):
                continue
            with suppress(InvalidTrigger):  # a calendar that is gone leaves its days
                trigger = await known_days(self._store, hold.repeat.trigger)
                repeat = HoldRepeat(trigger, hold.repeat.seconds)
                await self._changed(hold.id, lambda hold, repeat=repeat: replace(hold, repeat=repeat), "hold.update")  # type: ignore[misc]

    # ---- writing

    async def _changed(self, id: str, wanted: Wanted, action: str) -> Hold:
        for _ in range(RACES_MAX):
            record, before = await self._read(id)
            after = wanted(before)
            if after == before or await self.write(record, after, action):
                return after
        raise contended(f"hold {id}")

    async def write(self, stored: Record | None, hold: Hold, action: str) -> bool:
        """Write the hold if it is still as it was read, with the marker of the change. (For one of the breaker there is
        nothing to be carried but its end.)"""
        now = self._clock.now()
        before = None if stored is None else hold_view(decode_hold(stored.body), now)
        line = told(action, f"hold/{hold.id}", now, before=before, after=hold_view(hold, now))
        version = 1 if stored is None else stored.version + 1
        owed = Owed(hold.id, now)
        marker = Record(name=f"{CHANGED}{hold.id}/{version:012d}-{now:016x}", body=msgspec.json.encode(owed))
        record = Record(name=PREFIX + hold.id, body=msgspec.json.encode(hold), version=version)
        carried = (marker,) if hold.probing is None or is_over(hold, now) else ()
        change = RecordChange(record, version - 1, records=(*line, *carried))
        written = (await self._store.put_records([change]))[0]
        self._holding.stale()
        if written:
            self._signal.publish(HOLDS)
            self._signal.publish(APPLY)
        return written

    async def _read(self, id: str) -> tuple[Record, Hold]:
        (stored,) = await self._store.get_records([PREFIX + id])
        if stored is not None and await self._may_see((hold := decode_hold(stored.body)).scope):
            return stored, hold
        raise NotFound(f"there is no hold {id[:200]!r}")

    # ---- judging

    async def _checked(self, definition: HoldDefinition) -> HoldDefinition:
        caller, labels = bound_caller(), definition.scope.labels
        if caller is not None and labels:
            definition = replace(definition, scope=replace(definition.scope, labels=dict(caller.marked(labels))))
        definition = replace(definition, scope=checked_scope(definition.scope))
        if definition.scope.job is not None:
            try:
                await require_job(self._store, definition.scope.job)
            except NotFound as missing:
                raise InvalidRequest(f"scope.job: {missing.message}", field="scope.job") from None
        await self._require_reach(definition.scope)
        if definition.repeat is None:
            return definition
        trigger = await known_days(self._store, definition.repeat.trigger)
        await evaluate(lambda: _check_repeat(trigger), LIST_STEPS)
        return replace(definition, repeat=HoldRepeat(trigger, definition.repeat.seconds))

    async def _may_see(self, scope: HoldScope) -> bool:
        try:
            await self._require_reach(scope)
        except Forbidden:
            return False
        return True

    async def _require_reach(self, scope: HoldScope) -> None:
        """Raises Forbidden where who acts is bound, and the scope is not within that."""
        caller = bound_caller()
        if caller is None:
            return
        jobs = [] if scope.job is None else [job for job in await self._store.get_jobs([scope.job]) if job is not None]
        if not all(may_reach_job(caller, job) for job in jobs):
            raise refusal_of(caller)
        if not jobs and not _reaches(caller, scope):
            raise Forbidden(f"{caller.name} is bound {caller.bounds}; hold what these name, or a job there")


def _reaches(caller: Principal, scope: HoldScope) -> bool:
    """Whether all that it holds is within the bounds of this caller; not said of a job."""
    if caller.labels is None:
        return scope.queue is not None and caller.may_reach(PULLED + scope.queue.removeprefix(PULLED), {})
    return caller.queues is None and bool(scope.labels) and caller.may_label(scope.labels or {})


def _check_in_force(hold: Hold) -> None:
    """Raises InvalidRequest for one that repeats, and ends before its first stretch, or has none."""
    since = max(hold.begins_at, hold.created_at)
    with limited(LIST_STEPS):
        if hold.repeat is None or stretch_at(hold, since) or next_begin(hold, since - 1) is not None:
            return
        first = next_begin(replace(hold, ends_at=None), since - 1)
    if first is None:
        raise InvalidRequest("repeat.trigger: it has no fire time from then on", field="repeat.trigger")
    raise InvalidRequest(f"until: the hold is first in force at {to_text(first)}; end it later", field="until")


def _check_repeat(trigger: dict[str, object]) -> None:
    """Raises InvalidTrigger, and TooExpensive."""
    parsed = parse_trigger(trigger, field="repeat.trigger")
    if parsed.type == "after":
        raise InvalidTrigger("repeat.trigger: a hold follows from no job; give a rule", field="repeat.trigger")
    if parsed.after_end is not None:
        raise InvalidTrigger("repeat.trigger: a hold has no run from whose end to count", field="repeat.trigger")
    with limited(LIST_STEPS):
        parsed.anchored(0).next_fire(0)
