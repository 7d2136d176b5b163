"""Which days are business days, as a `Scheduler` defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from horarium.library.channels import converted
from horarium.library.named import Part, in_name_of_actor
from horarium.model import Name
from horarium.model.calendars import Calendar
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX
from horarium.wire.calendars import shown_calendar


class CalendarMethods(Part):
    """The calendars of a scheduler, as plain data: the fields of docs/calendars.md."""

    @in_name_of_actor
    async def put_calendar(self, name: str, calendar: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Define the calendar `name`, or replace it; jobs that use it follow within seconds. Raises InvalidRequest."""
        defined, _ = await self._operations.calendars.put(converted(name, Name, "name"), converted(calendar, Calendar))
        return shown_calendar(name, defined)

    async def compare_calendar(self, name: str, calendar: Mapping[str, Any]) -> list[dict[str, Any]]:
        """How the fire times of jobs within 400 days would change with these days: of each job that would, `added`,
        `removed` and `moved`. Nothing is written. Raises InvalidRequest."""
        changes, _ = await self._operations.calendars.compare(name, converted(calendar, Calendar))
        return [msgspec.to_builtins(change) for change in changes]

    async def get_calendar(self, name: str) -> dict[str, Any]:
        """The calendar of that name. Raises NotFound."""
        return shown_calendar(name, await self._operations.calendars.get(name))

    async def list_calendars(self) -> list[dict[str, Any]]:
        """All calendars, by name."""
        pages = pages_of(lambda after: self._operations.calendars.page(after, PAGE_MAX))
        return [shown_calendar(name, calendar) async for page in pages for name, calendar in page]

    @in_name_of_actor
    async def delete_calendar(self, name: str, *, actor: str | None = None) -> None:
        """Remove a calendar. Raises NotFound, and Conflict while jobs use it."""
        await self._operations.calendars.delete(name)
