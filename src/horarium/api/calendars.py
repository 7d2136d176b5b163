"""The endpoints under /calendars."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.reading import is_name, job_name, new_name, read_cursor, write_cursor
from horarium.api.schemas import Cursor, Page, PageLimit, PageQuery
from horarium.clock import DAY
from horarium.errors import InvalidRequest
from horarium.model.calendars import Calendar, DateText, shown_calendar
from horarium.rules.calendars import FireChange, content_of, holiday_names, text_of_day
from horarium.triggers.business_days import LAST_DAY, day_of, days_of

SPAN_MAX = 3_700
"""Days that one question may span: ten years."""
A_YEAR = 366
_NUMBER = re.compile(r"[0-9]{1,5}")


class CalendarView(Struct):
    """A calendar as it is shown: every default written out."""

    name: str
    title: str | None
    weekend: tuple[str, ...]
    holidays: tuple[Any, ...]
    business_days: tuple[str, ...]
    ends_on: str | None


class CalendarPage(Page[CalendarView]):
    """One page of calendars, by name."""


class DayView(Struct, omit_defaults=True):
    """One day. `name`: that of its holiday."""

    date: str
    business_day: bool
    name: str | UnsetType = UNSET


class DayPage(Page[DayView]):
    """The days of a span, in order."""


class CalendarChanges(Struct):
    """What a change of a calendar would do to jobs in the next 400 days. `truncated`: more jobs use it than are
    told."""

    changes: list[FireChange]
    truncated: bool


class PutQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Whether to write at all."""

    dry_run: Annotated[bool, Meta(description="Say what would change, and write nothing.")] = False


class DaysQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which days: from `since` (left out: today) to `until` (left out: a year on), both included; `limit` left out: all
    of them."""

    since: DateText | UnsetType = UNSET
    until: DateText | UnsetType = UNSET
    limit: PageLimit | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET


EXAMPLES = (
    Example(
        "settlement",
        {
            "title": "TARGET2",
            "holidays": [
                "2027-01-01",
                {"date": "2027-03-26", "name": "Good Friday"},
                {"rrule": "FREQ=YEARLY;BYMONTH=5;BYMONTHDAY=1", "name": "Labour Day"},
            ],
        },
    ),
)


class CalendarsApi(Handlers):
    @Endpoint(
        "PUT", "/calendars/{name}", "putCalendar", tag="calendars", scope=Scope.JOBS_WRITE, query=PutQuery, costly=True,
        summary="Define a calendar, or replace it",
        description="Jobs that use it follow within seconds. With `dry_run`, nothing is written; the answer "
        "tells of each job that uses it how its fire times would change.",
        body=Calendar, examples=EXAMPLES,
        answers={
            200: (dict[str, Any], "The calendar; with `dry_run` an object of `changes` and `truncated`"),
            201: (CalendarView, "The new calendar"),
        },
        problems=("too_expensive", "conflict"),
    )  # fmt: skip
    async def put(self, call: Call) -> Answer:
        name = new_name(call.request)
        asked: Calendar = call.body
        query: PutQuery = call.query
        if query.dry_run:
            changes, truncated = await self._operations.calendars.compare(name, asked)
            return answer(CalendarChanges(changes, truncated))
        calendar, created = await self._operations.calendars.put(name, asked)
        location = [("location", f"/api/v1/calendars/{name}")] if created else []
        return answer(_view(name, calendar), 201 if created else 200, location)

    @Endpoint(
        "GET", "/calendars/{name}", "getCalendar", tag="calendars", scope=Scope.JOBS_READ, bound=True,
        summary="Show a calendar",
        answers={200: (CalendarView, "The calendar")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        name = job_name(call.request, "calendar")
        return answer(_view(name, await self._operations.calendars.get(name)))

    @Endpoint(
        "GET", "/calendars", "listCalendars", tag="calendars", scope=Scope.JOBS_READ, query=PageQuery, bound=True,
        costly=True,
        summary="Calendars, by name",
        answers={200: (CalendarPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        page = await self._operations.calendars.page(read_cursor("calendars", query.cursor, is_name), query.limit)
        items = [_view(name, calendar) for name, calendar in page.items]
        return answer(CalendarPage(items, write_cursor("calendars", page.next_after)))

    @Endpoint(
        "DELETE", "/calendars/{name}", "deleteCalendar", tag="calendars", scope=Scope.JOBS_WRITE, costly=True,
        summary="Delete a calendar that no job uses",
        answers={204: (None, "It is gone")}, problems=("not_found", "calendar_in_use", "conflict"),
    )  # fmt: skip
    async def delete(self, call: Call) -> Answer:
        await self._operations.calendars.delete(job_name(call.request, "calendar"))
        return no_content()

    @Endpoint(
        "GET", "/calendars/{name}/days", "listCalendarDays", tag="calendars", scope=Scope.JOBS_READ, query=DaysQuery,
        bound=True, costly=True,
        summary="The days of a calendar",
        description="Each day from `since` to `until`, both included: whether it is a business day.",
        answers={200: (DayPage, "The days")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def days(self, call: Call) -> Answer:
        calendar = await self._operations.calendars.get(job_name(call.request, "calendar"))
        query: DaysQuery = call.query
        since = self._clock.now() // DAY if query.since is UNSET else _day(query.since, "since")
        until = min(since + A_YEAR - 1, LAST_DAY) if query.until is UNSET else _day(query.until, "until")
        if not since <= until < since + SPAN_MAX:
            raise InvalidRequest(f"until: lies before since, or {SPAN_MAX:,} days or more behind it", field="until")
        after = read_cursor("days", query.cursor, lambda text: _NUMBER.fullmatch(text) is not None)
        since = since if after is None else max(since, int(after) + 1)
        last = until if query.limit is UNSET else min(until, since + query.limit - 1)
        days, names = days_of(content_of(calendar)), holiday_names(calendar, since, last)
        items = [
            DayView(text_of_day(day), days.is_business(day), names.get(day, UNSET)) for day in range(since, last + 1)
        ]
        return answer(DayPage(items, write_cursor("days", str(last) if last < until else None)))


def _day(text: str, field: str) -> int:
    try:
        day = day_of(text)
    except ValueError:
        day = -1
    if not 0 <= day <= LAST_DAY:
        raise InvalidRequest(f"{field}: {text} is no day from 1970 to 2200", field=field)
    return day


def _view(name: str, calendar: Calendar) -> CalendarView:
    return CalendarView(**shown_calendar(name, calendar))
