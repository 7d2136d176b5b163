"""Business days: each calendar by year, and the jobs that use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import Instant
from horarium.dashboard.formats import brief, local
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.calendar import midnight
from horarium.dashboard.views.job import zone_of_job
from horarium.errors import InvalidRequest, TooExpensive
from horarium.model import Job
from horarium.model.calendars import Calendar
from horarium.operations.bounds.evaluating import evaluate
from horarium.ports import PAGE_MAX
from horarium.rules.calendars import content_of, effect, ends_soon, holiday_names
from horarium.rules.compiled import words_of
from horarium.rules.differing import FireChanges
from horarium.triggers.budget import QUESTION_STEPS
from horarium.triggers.business_days import WEEKDAYS, date_of, day_of, days_of
from horarium.triggers.words import counted

USERS_SHOWN = 50
COUNTED_MAX = 20
"""Jobs of which the fire times of the year are looked at."""
MOVES_SHOWN = 6
FIRST_YEAR, LAST_YEAR = 1971, 2199


class Day(Struct, frozen=True):
    """A day of a month. `kind`: the class of its look; `words`: the same in text; `way`: where a fire time goes from
    here, `on` or `back` ("": none does)."""

    number: int
    kind: str
    words: str
    way: str = ""


class Move(Struct, frozen=True):
    """A fire time that lies elsewhere because of the calendar."""

    job: str
    words: str
    before: date
    after: date

    @property
    def way(self) -> str:
        return "on" if self.after > self.before else "back"

    @property
    def to(self) -> str:
        return f"{self.after:%a} {self.after.day} {self.after:%b}"


class Month(Struct, frozen=True):
    """A month in weeks from Monday on, with the days that have a name below it."""

    name: str
    weeks: list[list[Day | None]]
    named: list[tuple[int, str]]


class BusinessDays(Pages):
    """The pages at `/business-days`."""

    @Page("GET", "/business-days", "business-days", place="business-days")
    async def show_all(self, visit: Visit) -> Answer:
        page = await self._operations.calendars.page(None, PAGE_MAX)
        if len(page.items) == 1 and not visit.text("all"):
            return Went(f"/business-days/{page.items[0][0]}")
        rows = [
            {"name": name, "calendar": calendar, "ends_soon": ends_soon(calendar.ends_on, visit.now)}
            for name, calendar in page.items
        ]
        return Shown("business-days.html", {"rows": rows, "more": page.next_after is not None})

    @Page("GET", "/business-days/{name}", "business-year", place="business-days")
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
        users = [job async for job in self._operations.calendars.users(name, USERS_SHOWN + 1)]
        effects = [await _effect(job, name, calendar, year) for job in users[:COUNTED_MAX]]
        moves = sorted((move for _, _, found in effects for move in found), key=lambda move: (move.before, move.job))
        from_day: dict[date, list[Move]] = {}
        for move in moves:
            from_day.setdefault(move.before, []).append(move)
        months = [_month(year, month, days, names, off, from_day) for month in range(1, 13)]
        every = [day for month in months for week in month.weeks for day in week if day is not None]
        business = sum(day.kind in ("", "wk") for day in every)
        holidays, working = (sum(day.kind == kind for day in every) for kind in ("ho", "wk"))
        said = [(words, cut) for words, cut, _ in effects] + [("not counted", False)] * len(users)
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
                "ends_soon": ends_soon(calendar.ends_on, visit.now),
                "beyond": calendar.ends_on is not None and day_of(calendar.ends_on) < last,
                "users": [(job, _words(job, name), *said[place]) for place, job in enumerate(users[:USERS_SHOWN])],
                "uncounted": max(len(users[:USERS_SHOWN]) - COUNTED_MAX, 0),
                "moves": moves[: None if visit.text("moves") else MOVES_SHOWN],
                "moved": len(moves),
                "moved_days": len(from_day),
                "document": json.dumps(
                    {"calendars": [{"name": name, **msgspec.to_builtins(calendar)}]}, ensure_ascii=False, indent=2
                ),
                "more_users": len(users) > USERS_SHOWN,
            },
        )


async def _effect(job: Job, name: str, calendar: Calendar, year: int) -> tuple[str, bool, list[Move]]:
    """What the calendar does to the fire times of a job in a year: in words, whether that is about the first of them
    alone, and those that move."""
    zone = zone_of_job(job) or "UTC"
    since, until = midnight(date(year, 1, 1), zone), midnight(date(year + 1, 1, 1), zone)
    try:
        found, cut = await evaluate(
            lambda: effect(job, name, calendar.weekend, since, until), QUESTION_STEPS // COUNTED_MAX
        )
    except TooExpensive:
        return "not counted: it takes too long", False, []
    day: Callable[[Instant], date] = lambda instant: local(instant, zone).date()  # noqa: E731
    words = _words(job, name)
    return _counted(found), cut, [Move(job.name, words, day(before), day(after)) for before, after in found.moved]


def _words(job: Job, name: str) -> str:
    """Its rule as it is read beside its calendar, which is named above it."""
    return (
        brief(words_of(job), zone_of_job(job) or "UTC")
        .replace(f", {zone_of_job(job)}", "")
        .replace(f" (calendar {name})", "")
    )


def _counted(found: FireChanges) -> str:
    parts = [
        f"{len(some):,} {one if len(some) == 1 else many}"
        for some, one, many in (
            (found.moved, "moves", "move"),
            (found.removed, "out", "out"),
            (found.added, "in", "in"),
        )
        if some
    ]
    return ", ".join(parts) or "none"


def _month(
    year: int, month: int, days: Any, names: dict[int, str], off: set[int], from_day: Mapping[date, Sequence[Move]]
) -> Month:
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
        moves = from_day.get(day, ())
        said = [f"{day:%a} {day.day}, {names.get(number) or word}"]
        said += [f"{move.job} moves to {move.to}" for move in moves[:MOVES_SHOWN]]
        said += [f"{len(moves) - MOVES_SHOWN} more move"] if len(moves) > MOVES_SHOWN else []
        cells.append(Day(day.day, kind, "; ".join(said), moves[0].way if moves else ""))
    cells += [None] * (-len(cells) % 7)
    weeks = [cells[place : place + 7] for place in range(0, len(cells), 7)]
    return Month(f"{date(year, month, 1):%B}", weeks, named)
