"""Calendar: past runs by outcome and future ones, hour by hour; the hours that crowd stand out."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, INSTANT_MAX, MINUTE, Instant, to_instant
from horarium.dashboard.attention import last_runs_of, some_runs
from horarium.dashboard.foresight import Foresight, is_in_view
from horarium.dashboard.formats import local, utc_text, zone_of
from horarium.dashboard.marks import FAILED, HELD, LEGEND, PLANNED, Mark, mark_of, worst_first
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit
from horarium.dashboard.strips import within
from horarium.model import Run, State
from horarium.operations.facade import Operations
from horarium.operations.looking.upcoming import UPCOMING_MAX, upcoming
from horarium.ports import PAGE_MAX, JobFilter, RunFilter
from horarium.rules.forecasting import Bucket
from horarium.rules.holds import Stretch, stretches
from horarium.triggers.words import counted

PAST_MAX = 600
FAR_TOO_MANY = 4
JOBS_MAX = 100
RUNS_MAX = 800
FEW_JOBS = 60
"""Up to this number of jobs, twice as many runs are read: few of them have that many."""
SOON = 2 * HOUR
"""Where more ran than is read at one time, the jobs that seldom fire are read one by one, this many of them."""
FAILED_MAX = 400
"""Failed runs that are read for themselves: they are drawn, however often their job fires."""
DRAWN_MAX = 6
CROWDED_FROM = 8
FIRST_DAY, LAST_DAY = date(1970, 2, 1), date(2199, 11, 30)
"""A month from each end of what fire times lie in, so that all that is shown around a day is in it."""
OFTEN = 23
"""Fire times a day from which on a job is counted in a line, not drawn."""
SPANS = {"day": 1, "week": 7, "month": 31}


class Fire(Struct, frozen=True):
    """One fire time of the span."""

    at: Instant
    job: str
    mark: Mark
    link: str


class Cell(Struct):
    """One hour of one day. `unnamed`: fires beyond those listed, which are counted alone. `partly`: there may be more
    than is known. `quarter`: where the line of now lies. `twice`: the clocks repeat it. `held`: a hold lies over
    the rest of it, or a part of that."""

    at: datetime
    fires: list[Fire]
    gap: bool = False
    now: bool = False
    future: bool = False
    unnamed: int = 0
    partly: bool = False
    quarter: int = 0
    twice: bool = False
    held: bool = False

    @property
    def count(self) -> int:
        return len(self.fires) + self.unnamed

    @property
    def marks(self) -> list[Mark]:
        """The worst first, six at most."""
        known = sorted((fire.mark for fire in self.fires), key=worst_first)
        return [*known, *[PLANNED] * min(self.unnamed, DRAWN_MAX)][:DRAWN_MAX]

    @property
    def label(self) -> str:
        """Its content, in words."""
        counts = Counter(fire.mark.word for fire in self.fires)
        counts[PLANNED.word] += self.unnamed
        told = ", ".join(f"{count:,} {word[0].lower()}{word[1:]}" for word, count in counts.most_common() if count)
        least = "at least " if self.partly else ""
        said = f"{least}{counted(self.count, 'fire')}: {told}" if told else f"{least}no fire"
        return f"{self.at:%a %H:%M}{', which comes twice' if self.twice else ''}, {said}"

    @property
    def rest(self) -> str:
        """The address of all that ran in it, or of the jobs that it still has."""
        begin = to_instant(self.at)
        if self.future or self.now:
            return f"/forecast?cell={utc_text(begin)}"
        return f"/runs?since={utc_text(begin)}&until={utc_text(begin + HOUR)}"

    @property
    def more(self) -> int:
        return max(self.count - DRAWN_MAX, 0)

    @property
    def crowded(self) -> bool:
        return self.count >= CROWDED_FROM


class Drawn(Struct):
    """What is known of a span. `often`: jobs that are left out, since they fire often. `sums`: how many fires of the
    others each hour ahead has, where they are too many to be listed. `unknown_before`: until when in the past there may
    be more than is listed. `held`: when a hold lies over everything, from now on."""

    fires: list[Fire]
    often: list[str]
    sums: dict[Instant, int] = {}
    unknown_before: Instant = 0
    counting: bool = False
    held: list[Stretch] = []


class Calendar(Pages):
    """The page at `/calendar`."""

    def __init__(self, operations: Operations, foresight: Foresight) -> None:
        self._operations, self._foresight = operations, foresight

    @Page("GET", "/calendar", "calendar", scope=Scope.RUNS_READ, also=Scope.JOBS_READ, place="calendar")
    async def show(self, visit: Visit) -> Answer:
        span = visit.one_of("span", SPANS) or "week"
        first = first_day(_day(visit), span)
        days = [first + timedelta(days=place) for place in range(_length(first, span))]
        since, until = midnight(days[0], visit.zone), midnight(days[-1] + timedelta(days=1), visit.zone)
        drawn = await self._drawn(visit, since, until, len(days))
        cells = _cells(days, drawn, visit)
        step = timedelta(days=len(days)) if span != "month" else timedelta(days=31)
        return Shown(
            "calendar.html",
            {
                "span": span,
                "days": days,
                "today": local(visit.now, visit.zone).date(),
                "hours": range(24),
                "cells": cells,
                "sums": _sums(days, cells) if span == "month" else {},
                "blanks": days[0].weekday(),
                "rest": -(days[0].weekday() + len(days)) % 7,
                "heading": _heading(days, span),
                "busiest": _busiest(cells),
                "before": _link(span, first - (step if span != "month" else timedelta(days=1))),
                "after": _link(span, first + step),
                "spans": [(name, _link(name, _day(visit))) for name in SPANS],
                "legend": (*LEGEND, HELD) if any(fire.mark is HELD for fire in drawn.fires) or drawn.held else LEGEND,
                "counting": drawn.counting,
                "cut": since < drawn.unknown_before,
                "left_out": drawn.often,
                "draw_all": bool(visit.text("often")),
                "draw_them": f"{_link(span, _day(visit))}&often=1",
                "partly": {day for row in cells for day, cell in zip(days, row, strict=True) if cell.partly},
                "chosen_day": _day(visit),
                "day_links": [(day, _link(span, day)) for day in days],
                "listed": _listed(cells, _day(visit) if _day(visit) in days else days[0]),
            },
        )

    async def _drawn(self, visit: Visit, since: Instant, until: Instant, days: int) -> Drawn:
        every = bool(visit.text("often"))
        drawn = await self._past(since, min(until, visit.now + 1), visit.now, days, every)
        if until > visit.now:
            begin = max(since, visit.now + 1)
            hours = (until - begin) // HOUR
            most = UPCOMING_MAX if every else max(hours * OFTEN // 24, 2)
            holds = [] if visit.principal.bound else await self._operations.reconciler.holding.look()
            ahead = await upcoming(self._operations.store, begin, until, UPCOMING_MAX, most, JOBS_MAX, holds)
            drawn.held = [part for each in holds if each.scope.all for part in stretches(each, begin, until)]
            often = {*drawn.often, *ahead.crowded}
            if ahead.truncated:
                summed = await self._sums(begin, until, visit, most, often)
                drawn.counting = summed is None
                drawn.sums, more = summed or ({}, set())
                often |= more
            drawn.fires += [
                Fire(one.fire_at, one.job, PLANNED if one.held is None else HELD, f"/jobs/{one.job}")
                for one in ahead.items
            ]
            drawn.often = [] if every else sorted(often)
        left_out = set(drawn.often)
        drawn.fires = [fire for fire in drawn.fires if fire.job not in left_out or fire.mark is FAILED]
        return drawn

    async def _sums(
        self, begin: Instant, until: Instant, visit: Visit, most: int, often: set[str]
    ) -> tuple[dict[Instant, int], set[str]] | None:
        """By arithmetic: how many fires each hour has but those of jobs that fire more often than that, and these;
        None: that is not there yet."""
        whole = begin - begin % MINUTE
        hour = whole + (60 - local(begin, visit.zone).minute) * MINUTE
        asks = [(min(hour - HOUR, until), min(hour, until), 60, "job")]
        asks += [(hour, until, 3600, "job")] if hour < until else []
        forecasts = await self._foresight.several(asks, running=False, in_view=is_in_view(visit))
        if forecasts is None:
            return None
        found = [each.buckets for each in forecasts]
        soon = [bucket for bucket in found[0] if bucket.at >= whole]
        later = [bucket for buckets in found[1:] for bucket in buckets]
        return await asyncio.to_thread(_summed, soon, most, often, later)

    async def _past(self, since: Instant, until: Instant, now: Instant, days: int, every: bool) -> Drawn:
        runs, cut = await self._newest(since, until)
        often: list[str] = []
        known_from, failed_from = runs[-1].fire_at if cut else 0, 0
        found = {run.id: run for run in runs}
        if cut:
            seldom, often, cut = await self._by_how_often(now)
            room = RUNS_MAX if len(seldom) > FEW_JOBS else 2 * RUNS_MAX
            each = min(OFTEN * days, PAGE_MAX, max(room // max(len(seldom), 1), 1))
            of_jobs = await last_runs_of(self._operations, seldom, each, since, until)
            found.update((run.id, run) for of_job in of_jobs.values() for run in of_job)
            cut = cut or (each < OFTEN * days and any(len(of_job) == each for of_job in of_jobs.values()))
            failed, beyond = await self._newest(since, until, frozenset({State.FAILED}), FAILED_MAX)
            found.update((run.id, run) for run in failed)
            failed_from = failed[-1].fire_at if beyond and failed else 0
        counts = Counter(run.job for run in found.values())
        often += [job for job, count in counts.items() if job is not None and count >= OFTEN * days]
        fires = [Fire(run.fire_at, run.job, mark_of(run, now), f"/runs/{run.id}") for run in found.values() if run.job]
        return Drawn(fires, [] if every else often, {}, known_from if cut or (every and often) else failed_from)

    async def _newest(
        self, since: Instant, until: Instant, states: frozenset[State] = frozenset(), most: int = PAST_MAX
    ) -> tuple[list[Run], bool]:
        """All runs of the span in these states, and whether there are more than is read."""
        if since >= until:
            return [], False
        where = RunFilter(states=states, since=since, until=until)
        return await some_runs(
            self._operations, where, most, lambda newest: not states and _far_too_many(newest, since, until)
        )

    async def _by_how_often(self, now: Instant) -> tuple[list[str], list[str], bool]:
        """The jobs that seldom fire, those that fire often, and whether there are more of them than are looked at."""
        store = self._operations.store
        jobs, beyond = await store.due_jobs(INSTANT_MAX, JOBS_MAX)
        paused = await store.list_jobs(JobFilter(enabled=False), None, JOBS_MAX // 4)
        often = []
        for job in jobs:
            if job.next_fire_at is None or job.next_fire_at - now > SOON:
                continue
            if len(within(job, now, now + DAY, OFTEN)) == OFTEN:
                often.append(job.name)
        names = [job.name for job in (*jobs, *paused.items)]
        seldom = [name for name in dict.fromkeys(names) if name not in often]
        return seldom, often, beyond is not None or paused.next_after is not None


def _summed(
    first: Sequence[Bucket], most: int, often: set[str], rest: Sequence[Bucket]
) -> tuple[dict[Instant, int], set[str]]:
    counts: Counter[str] = Counter()
    for bucket in (*first, *rest):
        counts.update(bucket.starts)
    left_out = often | {job for job, count in counts.items() if job and count > most}
    sums = {
        bucket.at: sum(count for job, count in bucket.starts.items() if job not in left_out)
        for bucket in (*first, *rest)
    }
    return sums, left_out


def _far_too_many(newest: Sequence[Run], since: Instant, until: Instant) -> bool:
    """Whether at this pace the span holds many times as much as is read, so that reading on would be for nothing."""
    covered = until - newest[-1].fire_at if newest else until - since
    return covered * FAR_TOO_MANY * PAST_MAX < (until - since) * len(newest)


def first_day(day: date, span: str) -> date:
    """Where the span that holds this day begins."""
    if span == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if span == "month" else day


def _length(first: date, span: str) -> int:
    if span != "month":
        return SPANS[span]
    return ((first + timedelta(days=31)).replace(day=1) - first).days


def _day(visit: Visit) -> date:
    """The day that is asked for; today where it is none, or one that no fire time can have."""
    today = local(visit.now, visit.zone).date()
    try:
        day = date.fromisoformat(visit.text("day"))
    except ValueError:
        return today
    return day if FIRST_DAY <= day <= LAST_DAY else today


def midnight(day: date, zone: str) -> Instant:
    """The beginning of a day in a zone."""
    return max(to_instant(datetime(day.year, day.month, day.day, tzinfo=zone_of(zone))), 0)


def _cells(days: list[date], drawn: Drawn, visit: Visit) -> list[list[Cell]]:
    """By hour, then by day. An hour that the clocks repeat is one cell, one that they leave out is empty."""
    zone = zone_of(visit.zone)
    here = local(visit.now, visit.zone)
    rows = []
    begins: list[tuple[Instant, Cell]] = []
    for hour in range(24):
        row = []
        for day in days:
            at = datetime(day.year, day.month, day.day, hour, tzinfo=zone)
            instant = to_instant(at)
            gap = local(instant, visit.zone).hour != hour
            is_now = (day, hour) == (here.date(), here.hour)
            cell = Cell(at, [], gap, is_now, instant > visit.now)
            cell.quarter = here.minute // 15
            cell.twice = not gap and at.utcoffset() != at.replace(fold=1).utcoffset()
            ends = instant + HOUR
            cell.partly = not gap and (instant < drawn.unknown_before or (drawn.counting and ends > visit.now))
            cell.held = ends > visit.now and any(one.begins_at < ends and one.ends_at > instant for one in drawn.held)
            row.append(cell)
            if not gap:
                begins.append((instant, cell))
        rows.append(row)
    begins.sort(key=lambda pair: pair[0])
    instants = [instant for instant, _ in begins]
    for fire in sorted(drawn.fires, key=lambda one: one.at):
        place = bisect_right(instants, fire.at) - 1
        if place >= 0:
            begins[place][1].fires.append(fire)
    listed = Counter(bisect_right(instants, fire.at) - 1 for fire in drawn.fires if fire.at > visit.now)
    sums: Counter[int] = Counter()
    for at_bucket, count in drawn.sums.items():
        sums[bisect_right(instants, at_bucket) - 1] += count
    for place, count in sums.items():
        if place >= 0:
            begins[place][1].unnamed = max(count - listed[place], 0)
    return rows


def _sums(days: list[date], cells: list[list[Cell]]) -> dict[date, list[tuple[Mark, int]]]:
    """For each day how many fires had each outcome, the worst first."""
    sums: dict[date, list[tuple[Mark, int]]] = {}
    for place, day in enumerate(days):
        counts = Counter(fire.mark for row in cells for fire in row[place].fires)
        if unnamed := sum(row[place].unnamed for row in cells):
            counts[PLANNED] += unnamed
        sums[day] = sorted(counts.items(), key=lambda pair: worst_first(pair[0]))
    return sums


def _busiest(cells: list[list[Cell]]) -> str:
    every = [cell for row in cells for cell in row]
    most = max(every, key=lambda cell: cell.count)
    if not most.count:
        return "Nothing ran and nothing will run within it."
    where = " of what is known" if any(cell.partly for cell in every) else ""
    return f"Busiest hour{where}: {most.at:%a %H:%M}, {counted(most.count, 'fire')}."


def _listed(cells: list[list[Cell]], day: date) -> list[Cell]:
    return [cell for row in cells for cell in row if cell.at.date() == day and (cell.count or cell.partly)]


def _heading(days: list[date], span: str) -> str:
    first, last = days[0], days[-1]
    if span == "day":
        return f"{first:%A} {first.day} {first:%B %Y}"
    if span == "month":
        return f"{first:%B %Y}"
    if first.month == last.month:
        return f"{first.day} to {last.day} {last:%B %Y}"
    return f"{first.day} {first:%B} to {last.day} {last:%B %Y}"


def _link(span: str, day: date) -> str:
    return f"/calendar?span={span}&day={day.isoformat()}"
