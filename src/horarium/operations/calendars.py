"""Calendars: kept as records, checked when they are written, carried to the jobs that use them by a service.

A calendar is the record `calendar/NAME`. A change of one leaves a marker record in its transaction; the node that finds
it brings the jobs up to date, page by page (`services.upkeep.calendars`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from horarium.clock import Instant
from horarium.errors import CalendarInUse
from horarium.model import Job
from horarium.model.calendars import Calendar
from horarium.model.holds import Hold
from horarium.model.records import Record, RecordChange, RecordFilter, put_over
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import pages_of
from horarium.operations.settling.holding import PREFIX as HOLDS
from horarium.operations.settling.holding import decode_hold
from horarium.operations.writing.auditing import require_unbound, told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept
from horarium.ports import APPLY, PAGE_MAX, JobFilter, Store
from horarium.rules.applying import Owed
from horarium.rules.calendars import FireChange, calendars_in, compare, content_of, uses_days, with_days
from horarium.rules.holds import end_of
from horarium.triggers.budget import LIST_STEPS, PLAN_STEPS
from horarium.triggers.business_days import Content
from horarium.wire.definitions import JobDefinition

PREFIX = "calendar/"
CHANGED = "calendar-change/"
"""Markers of changes that are still to be carried to jobs."""
SHOWN_MAX = 20
"""Jobs that are named where a calendar can't be deleted."""
COMPARED_MAX = 200
"""Jobs whose fire times one answer compares."""

decode_calendar = msgspec.json.Decoder(Calendar).decode


NOT_STORED: Mapping[str, Content] = MappingProxyType({})


async def known_days(
    store: Store, trigger: Mapping[str, Any], beside: Mapping[str, Content] = NOT_STORED
) -> dict[str, Any]:
    """The trigger with the days of the calendars that it names; those `beside` are as said there. Raises InvalidTrigger
    for one that is not there."""
    used = set(calendars_in(trigger))
    if not used:
        return dict(trigger)
    names = sorted(used - beside.keys())
    found = await store.get_records([PREFIX + name for name in names]) if names else []
    known = dict(beside)
    for name, record in zip(names, found, strict=True):
        if record is not None:
            known[name] = content_of(decode_calendar(record.body))
    return with_days(trigger, known)


async def with_known_days(
    store: Store, definition: JobDefinition, beside: Mapping[str, Content] = NOT_STORED
) -> JobDefinition:
    """The definition with the days of the calendars that its trigger names, as they are now."""
    if not uses_days(definition.trigger):
        return definition
    return msgspec.structs.replace(definition, trigger=await known_days(store, definition.trigger, beside))


def calendar_change(name: str, calendar: Calendar, stored: Record | None, now: Instant) -> RecordChange:
    """The write of a calendar over the stored one, with its audit entry and the marker of what jobs are owed."""
    before = None if stored is None else decode_calendar(stored.body)
    action = "calendar.create" if before is None else "calendar.update"
    line = told(action, f"calendar/{name}", now, before=before, after=calendar)
    version = 1 if stored is None else stored.version + 1
    owed = Record(name=f"{CHANGED}{name}/{version:012d}-{now:016x}", body=msgspec.json.encode(Owed(name, now)))
    return put_over(stored, PREFIX + name, msgspec.json.encode(calendar), (*line, owed))


class CalendarOperations:
    """Calendars of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._clock, self._signal, _ = context
        self._kept: Kept[Calendar] = Kept(context, "calendar", PREFIX, decode_calendar)
        self.get, self.page = self._kept.get, self._kept.page

    async def put(self, name: str, calendar: Calendar) -> tuple[Calendar, bool]:
        """Define the calendar, or bring the existing one to this; jobs that use it follow. The second value: whether it
        is new. Raises Forbidden where who acts is bound."""
        require_unbound("calendars")
        await self.content(calendar)

        async def wanted(stored: Record | None) -> RecordChange | None:
            same = stored is not None and decode_calendar(stored.body) == calendar
            return None if same else calendar_change(name, calendar, stored, self._clock.now())

        change = await self._kept.change(name, wanted)
        if change is not None:
            self._signal.publish(APPLY)
        return calendar, change is not None and not change.expected

    async def delete(self, name: str) -> None:
        """Remove a calendar. Raises NotFound, CalendarInUse while jobs use it, and Forbidden where who acts is
        bound."""
        require_unbound("calendars")

        async def wanted(stored: Record | None) -> RecordChange:
            if stored is None:
                raise self._kept.missing(name)
            users = [job.name async for job in self.users(name, SHOWN_MAX + 1)]
            if not users and (hold := await self._hold_by(name)) is not None:
                raise CalendarInUse(f"calendar {name!r} is used by hold {hold.id}: {hold.reason}; lift it first", [])
            if users:
                more = "" if len(users) <= SHOWN_MAX else " and others"
                raise CalendarInUse(
                    f"calendar {name!r} is used by {', '.join(users[:SHOWN_MAX])}{more}", users[:SHOWN_MAX]
                )
            line = told("calendar.delete", f"calendar/{name}", self._clock.now(), before=decode_calendar(stored.body))
            return stored.removal(line)

        await self._kept.change(name, wanted)

    async def users(self, name: str, limit: int) -> AsyncIterator[Job]:
        """The jobs that use it, by name, at most that many."""
        after: str | None = None
        while limit > 0:
            page = await self._store.list_jobs(JobFilter(), after, PAGE_MAX)
            for job in page.items:
                if limit > 0 and name in calendars_in(job.trigger):
                    limit -= 1
                    yield job
            if (after := page.next_after) is None:
                return

    async def _hold_by(self, name: str) -> Hold | None:
        """A hold that repeats by it and has not ended."""
        now = self._clock.now()
        pages = pages_of(lambda after: self._store.list_records(RecordFilter(HOLDS), after, PAGE_MAX))
        async for page in pages:
            for hold in map(decode_hold, (record.body for record in page)):
                if hold.repeat is not None and end_of(hold) > now and name in calendars_in(hold.repeat.trigger):
                    return hold
        return None

    async def compare(self, name: str, calendar: Calendar) -> tuple[list[FireChange], bool]:
        """How the fire times of jobs would change with these days; and whether there may be more than is told."""
        content = await self.content(calendar)
        now, found, looked_at = self._clock.now(), list[FireChange](), 0
        async for job in self.users(name, COMPARED_MAX + 1):
            looked_at += 1
            if looked_at > COMPARED_MAX:
                break
            change = await evaluate(lambda job=job: compare(job, name, content, now), LIST_STEPS)  # type: ignore[misc]
            if change is not None:
                found.append(change)
        return found, looked_at > COMPARED_MAX

    async def content(self, calendar: Calendar) -> Content:
        """Its days. Raises InvalidRequest for a calendar that can't be."""
        return await evaluate(lambda: content_of(calendar), PLAN_STEPS)
