"""Business days: each calendar by year, and the jobs that use it."""

from __future__ import annotations

from datetime import date
from typing import Any

from msgspec import Struct

from horarium.clock import DAY
from horarium.dashboard.formats import counted, local
from horarium.dashboard.site import Answer, Page, Shown, Visit, Went
from horarium.errors import InvalidRequest
from horarium.operations.facade import Operations
from horarium.ports import PAGE_MAX
from horarium.rules.calendars import content_of, holiday_names
from horarium.rules.compiled import words_of
from horarium.triggers.business_days import WEEKDAYS, date_of, day_of, days_of

USERS_SHOWN = 50
ENDS_SOON = 60
FIRST_YEAR, LAST_YEAR = 1971, 2199


class Day(Struct, frozen=True):
    """A day of a month. `kind`: the class of its look; `words`: the same in text."""

    number: int
    kind: str
    words: str


class Month(Struct, frozen=True):
    """A month in weeks from Monday on, with the days that have a name below it."""

    name: str
    weeks: list[list[Day | None]]
    named: list[tuple[int, str]]


class BusinessDays:
    """The pages at `/business-days`."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def pages(self) -> list[Page]:
        """The table."""
        place = "business-days"
        return [
            Page(path="/business-days", name="business-days", handle=self.show_all, place=place),
            Page(path="/business-days/{name}", name="business-year", handle=self.show, place=place),
        ]

    async def show_all(self, visit: Visit) -> Answer:
        page = await self._operations.calendars.page(None, PAGE_MAX)
        if len(page.items) == 1 and not visit.text("all"):
            return Went(f"/business-days/{page.items[0][0]}")
        today = visit.now // DAY
        rows = [
            {"name": name, "calendar": calendar, "ends_soon": _ends_soon(calendar.ends_on, today)}
            for name, calendar in page.items
        ]
        return Shown("business-days.html", {"rows": rows, "more": page.next_after is not None})

    async def show(self, visit: Visit) -> Answer:
        name = visit.path_name
        calendar = await self._operations.calendars.get(name)
        this = local(visit.now, visit.zone).year
        given = visit.text("year") or str(this)
        if not (given.isdigit() and FIRST_YEAR <= int(given) <= LAST_YEAR):
            raise InvalidRequest(f"year: give one from {FIRST_YEAR} to {LAST_YEAR}", field="year")
        year = int(given)
        first, last = day_of(f"{year}-01-01"), day_of(f"{year}-12-31")
        days, names = days_of(content_of(calendar)), holiday_names(calendar, first, last)
        off = {number for number, weekday in enumerate(WEEKDAYS) if weekday in calendar.weekend}
        months = [_month(year, month, days, names, off) for month in range(1, 13)]
        every = [day for month in months for week in month.weeks for day in week if day is not None]
        business = sum(day.kind in ("", "wk") for day in every)
        holidays, working = (sum(day.kind == kind for day in every) for kind in ("ho", "wk"))
        users = [job async for job in self._operations.calendars.users(name, USERS_SHOWN + 1)]
        return Shown(
            "business-year.html",
            {
                "name": name,
                "calendar": calendar,
                "year": year,
                "years": [each for each in (year - 1, year, year + 1) if FIRST_YEAR <= each <= LAST_YEAR],
                "months": months,
                "heading": f"{name}: {counted(business, 'business day')} in {year}",
                "holidays": holidays,
                "working": working,
                "ends_soon": _ends_soon(calendar.ends_on, visit.now // DAY),
                "beyond": calendar.ends_on is not None and day_of(calendar.ends_on) < last,
                "users": [(job, words_of(job)) for job in users[:USERS_SHOWN]],
                "more_users": len(users) > USERS_SHOWN,
            },
        )


def _ends_soon(ends_on: str | None, today: int) -> bool:
    return ends_on is not None and day_of(ends_on) < today + ENDS_SOON


def _month(year: int, month: int, days: Any, names: dict[int, str], off: set[int]) -> Month:
    first = day_of(f"{year}-{month:02}-01")
    end = day_of(f"{year + month // 12}-{month % 12 + 1:02}-01")
    cells: list[Day | None] = [None] * date_of(first).weekday()
    named = []
    for number in range(first, end):
        day = date_of(number)
        is_off, business = day.weekday() in off, days.is_business(number)
        kind = "wk" if business and is_off else "" if business else "we" if is_off and number not in names else "ho"
        word = {"wk": "works although weekend", "": "business day", "we": "weekend", "ho": "holiday"}[kind]
        if kind in ("wk", "ho"):
            named.append((day.day, names.get(number) or word.capitalize()))
        cells.append(Day(day.day, kind, f"{day:%a} {day.day}, {names.get(number) or word}"))
    cells += [None] * (-len(cells) % 7)
    weeks = [cells[place : place + 7] for place in range(0, len(cells), 7)]
    return Month(f"{date(year, month, 1):%B}", weeks, named)
