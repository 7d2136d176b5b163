"""Forecast: how much there is to do in each hour of a week, of which jobs, and where it is quiet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from msgspec import Struct, structs

from horarium.access.acting import reading
from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, MINUTE, SECOND, Instant, to_instant
from horarium.dashboard.charts import LoadChart, load_chart
from horarium.dashboard.foresight import Foresight, is_in_view
from horarium.dashboard.formats import address, duration, in_words, instant_of, local, utc_text, zone_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.strips import within
from horarium.dashboard.views.calendar import FIRST_DAY, LAST_DAY, midnight
from horarium.errors import InvalidRequest
from horarium.operations.facade import Operations
from horarium.operations.plans.making import Documents
from horarium.ports import PAGE_MAX
from horarium.rules.forecasting import Bucket
from horarium.rules.planning import due_of
from horarium.triggers.words import counted
from horarium.wire.definitions import definition_of

LEVELS = 5
"""Steps of colour, from the least to the most."""
JOBS_SHOWN = 12
PLACES_MAX = 100_000
SPREAD_SECONDS = 1_800
"""The jitter of jobs that are spread: they begin within half an hour of where they do now."""
STEP = 10 * MINUTE
"""The steps in which a day is drawn."""
QUIET_SHOWN = 5


class Cell(Struct):
    """One hour of one day. `value`: run-minutes, or starts; None: it has passed, or the clocks leave it out."""

    at: Instant
    words: str
    value: int | None = None
    starts: int = 0
    kind: str = "gone"
    chosen: bool = False


class Share(Struct, frozen=True):
    """The part of one job in an hour. `width`: of 96, beside the greatest; `took`: how long its runs take, as measured;
    None: that is estimated."""

    job: str
    at: Instant
    starts: int
    minutes: float
    width: int
    took: Instant | None


class Asked(Struct, frozen=True):
    """What the address asks for. `places`: how many runs can go on at once; None: not known."""

    first: date
    queue: str
    places: int | None
    count: str
    cell: Instant | None

    def link(self, **changes: Any) -> str:
        """The address of another choice."""
        asked = structs.replace(self, **changes)
        cell = None if asked.cell is None else utc_text(asked.cell)
        week, places = asked.first.isoformat(), str(asked.places or "")
        return address("/forecast", week=week, queue=asked.queue, places=places, count=asked.count, cell=cell)


class Forecasts(Pages):
    """The page at `/forecast`."""

    def __init__(self, operations: Operations, foresight: Foresight) -> None:
        self._operations, self._foresight = operations, foresight

    @Page("GET", "/forecast", "forecast", also=Scope.RUNS_READ, place="forecast")
    async def show(self, visit: Visit) -> Answer:
        asked = _asked(visit)
        since, until = _week(asked.first, visit.zone)
        begin = max(since, _hour_of(visit.now, visit.zone))
        over = begin >= until
        found = None if over else await self._foresight.forecast(begin, until, 3600, in_view=is_in_view(visit))
        counting = found is None and not over
        buckets = [] if found is None else found.buckets
        queues = sorted({queue for bucket in buckets for queue in bucket.starts if queue})
        measured = any(bucket.running for bucket in buckets)
        if not asked.count:
            asked = structs.replace(asked, count="minutes" if measured else "starts")
        cells = _cells(asked, buckets, visit, begin if counting else until)
        ahead = [cell for row in cells for cell in row if cell.value is not None]
        worst = max(ahead, key=lambda cell: cell.value or 0, default=None)
        chosen = asked.cell or (worst.at if worst is not None and worst.value else None)
        _colour(ahead, asked, chosen)
        hour = await self._hour(asked, chosen, visit) if chosen is not None and begin <= chosen and not counting else {}
        return Shown(
            "forecast.html",
            {
                "asked": asked,
                "days": [asked.first + timedelta(days=place) for place in range(7)],
                "today": local(visit.now, visit.zone).date(),
                "cells": cells,
                "queues": queues,
                "measured": measured,
                "heading": "The hours ahead are being counted" if counting else _heading(ahead, asked, worst),
                "summary": "" if counting else _summary(ahead, asked, worst, found.estimated if found else frozenset()),
                "unit": "run-minutes" if asked.count == "minutes" else "starts",
                "most": _room(asked) or (worst.value if worst else 0) or 0,
                "left_out": [] if found is None else found.left_out,
                "from_today": asked.link(first=local(visit.now, visit.zone).date(), cell=None),
                "before": asked.link(first=asked.first - timedelta(days=7), cell=None),
                "after": asked.link(first=asked.first + timedelta(days=7), cell=None),
                "counting": counting or hour is None,
                **(hour or {}),
            },
        )

    async def _hour(self, asked: Asked, at: Instant, visit: Visit) -> dict[str, Any] | None:
        """The day of a cell as a line, and the jobs of its hour; None: they are not there yet."""
        day = local(at, visit.zone).date()
        begin, end = midnight(day, visit.zone), midnight(day + timedelta(days=1), visit.zone)
        asks = [(begin, end, STEP // SECOND, "queue"), (at, at + HOUR, 60, "job")]
        if (found := await self._foresight.several(asks, in_view=is_in_view(visit))) is None:
            return None
        of_day, of_jobs = found
        shares, others, herd = _shares(of_jobs.buckets, of_jobs.seconds)
        together = _together(of_jobs.buckets, herd)
        most_then = await self._most_then(of_jobs.buckets, together, herd)
        gains = herd is not None and (most_then is None or most_then < herd.total)
        return {
            "at": at,
            "until": at + HOUR,
            "chart": _day_chart(of_day.buckets, asked, visit.zone),
            "shares": shares[:JOBS_SHOWN],
            "estimate": duration(int(of_jobs.usual_seconds * SECOND)),
            "estimated": any(share.took is None and share.minutes for share in shares[:JOBS_SHOWN]),
            "others": others + sum(share.starts for share in shares[JOBS_SHOWN:]),
            "starts": sum(bucket.total for bucket in of_jobs.buckets),
            "herd": herd,
            "together": together if gains else [],
            "most_then": most_then,
            "spread_minutes": SPREAD_SECONDS // 60,
            "jobs_more": max(len(shares) - JOBS_SHOWN, 0),
        }

    async def _most_then(self, buckets: Sequence[Bucket], names: list[str], herd: Bucket | None) -> int | None:
        """How many begin in the busiest minute of the hour once these jobs are spread; None: they are too many."""
        if herd is None or not 0 < len(names) <= PAGE_MAX:
            return None
        starts = Counter({bucket.at: bucket.total for bucket in buckets})
        for job in await self._operations.store.get_jobs(names):
            if job is not None and (fires := within(job, herd.at - 1, herd.at + MINUTE - 1, 1)):
                due = due_of(structs.replace(job, jitter_seconds=SPREAD_SECONDS), fires[0])
                starts[herd.at] -= 1
                starts[due - due % MINUTE] += 1
        return max(starts.values())

    @Page("POST", "/forecast", "spread", also=Scope.RUNS_READ, place="forecast")
    async def spread(self, visit: Visit) -> Answer:
        """A plan that gives a jitter to the jobs that begin in one minute; it writes nothing of theirs."""
        at = instant_of(visit.text("at"), "at", "UTC")
        if at is None:
            raise InvalidRequest("at: give the hour", field="at")
        with reading(visit.principal):
            of_jobs = await self._operations.forecasting.forecast(at, at + HOUR, 60, "job")
            names = _together(of_jobs.buckets, _shares(of_jobs.buckets, {})[2])
            jobs = [job for job in await self._operations.store.get_jobs(names) if job is not None]
        definitions = [
            structs.replace(definition_of(job), jitter_seconds=SPREAD_SECONDS)
            for job in jobs
            if job.jitter_seconds < SPREAD_SECONDS
        ]
        if not definitions:
            raise InvalidRequest("at: no jobs begin together in that hour, or they have a jitter already", field="at")
        plan = await self._operations.planned_changes.make(
            Documents([(each.name, each) for each in definitions]), say=lambda change: change.kind
        )
        return Went(f"/plans/{plan.id}", f"{counted(len(plan.changes), 'change')} planned. Nothing is written yet.")

    @Page("GET", "/quiet-minutes", "quiet-minutes", place="forecast")
    async def quiet_minutes(self, visit: Visit) -> Answer:
        """Minutes of the next day in which the fewest runs start, each far from the others."""
        begin = visit.now - visit.now % MINUTE + MINUTE
        found = await self._foresight.forecast(begin, begin + DAY, 60, in_view=is_in_view(visit))
        if found is None:
            return Shown("quiet.html", {"best": None})
        best: list[Bucket] = []
        starts = [bucket.total for bucket in found.buckets]
        busy = [sum(starts[max(place - 5, 0) : place + 6]) for place in range(len(starts))]
        for place in sorted(range(len(starts)), key=lambda place: (starts[place], busy[place], place)):
            bucket = found.buckets[place]
            if all(abs(bucket.at - other.at) >= HOUR for other in best):
                best.append(bucket)
            if len(best) == QUIET_SHOWN:
                break
        most = max(found.buckets, key=lambda bucket: bucket.total)
        return Shown("quiet.html", {"best": sorted(best, key=lambda bucket: bucket.at), "most": most})


def _asked(visit: Visit) -> Asked:
    """Raises InvalidRequest."""
    today = local(visit.now, visit.zone).date()
    cell = instant_of(visit.text("cell"), "cell", "UTC")
    try:
        day = date.fromisoformat(visit.text("week")) if visit.text("week") else None
    except ValueError:
        raise InvalidRequest("week: give a day, such as 2026-12-24", field="week") from None
    day = day or (today if cell is None else local(cell, visit.zone).date())
    given, count = visit.text("places").strip(), visit.one_of("count", ("minutes", "starts"))
    if given and not (given.isdigit() and 0 < int(given) <= PLACES_MAX):
        raise InvalidRequest(f"places: give a number from 1 to {PLACES_MAX:,}", field="places")
    return Asked(
        first=day if FIRST_DAY <= day <= LAST_DAY else today,
        queue=visit.text("queue"),
        places=int(given) if given else None,
        count=count,
        cell=None if cell is None else _hour_of(cell, visit.zone),
    )


def _week(first: date, zone: str) -> tuple[Instant, Instant]:
    return midnight(first, zone), midnight(first + timedelta(days=7), zone)


def _hour_of(instant: Instant, zone: str) -> Instant:
    """The beginning of its hour on that zone's clocks."""
    here = local(instant, zone)
    return instant - (here.minute * 60 + here.second) * SECOND - instant % SECOND


def _value(bucket: Bucket, asked: Asked, length: int) -> float:
    """Run-minutes of this queue in a bucket of that length, or its starts."""
    of = bucket.running if asked.count == "minutes" else bucket.starts
    value = sum(of.values()) if not asked.queue else of.get(asked.queue, 0)
    return value * length / MINUTE if asked.count == "minutes" else value


def _cells(asked: Asked, buckets: Sequence[Bucket], visit: Visit, unknown_from: Instant) -> list[list[Cell]]:
    """By day, then by hour. An hour that the clocks repeat is one cell."""
    zone = zone_of(visit.zone)
    rows = []
    values: Counter[tuple[date, int]] = Counter()
    starts: Counter[tuple[date, int]] = Counter()
    for bucket in buckets:
        here = local(bucket.at, visit.zone)
        values[here.date(), here.hour] += _value(bucket, asked, HOUR)  # type: ignore[assignment]
        starts[here.date(), here.hour] += bucket.total if not asked.queue else bucket.starts.get(asked.queue, 0)
    for place in range(7):
        day = asked.first + timedelta(days=place)
        row = []
        for hour in range(24):
            at = datetime(day.year, day.month, day.day, hour, tzinfo=zone)
            cell = Cell(max(to_instant(at), 0), f"{at:%a} {day.day}, {hour:02}:00")
            if (day, hour) in values:
                cell.value, cell.starts = math.ceil(values[day, hour]), starts[day, hour]
            elif local(cell.at, visit.zone).hour != hour:
                cell.kind = "gap"
            elif cell.at >= unknown_from:
                cell.kind = "unknown"
            row.append(cell)
        rows.append(row)
    return rows


def _room(asked: Asked) -> int | None:
    """How many run-minutes an hour has room for."""
    return asked.places * 60 if asked.places and asked.count == "minutes" else None


def _colour(ahead: Sequence[Cell], asked: Asked, chosen: Instant | None) -> None:
    room, most = _room(asked), max((cell.value or 0 for cell in ahead), default=0)
    quietest = _quietest(ahead)
    for cell in ahead:
        value = cell.value or 0
        cell.chosen = cell.at == chosen
        if room is not None and value > room:
            cell.kind = "over"
        else:
            cell.kind = f"l{min(math.ceil(LEVELS * value / (room or most or 1)), LEVELS)}"
            if cell is quietest:
                cell.kind += " quietest"


def _quietest(ahead: Sequence[Cell]) -> Cell | None:
    return min(ahead, key=lambda cell: (cell.value or 0, cell.starts, cell.at), default=None)


def _heading(ahead: Sequence[Cell], asked: Asked, worst: Cell | None) -> str:
    if worst is None:
        return "These days are over"
    room = _room(asked)
    if not worst.value:
        return "Nothing will run on these days"
    if room is None:
        return f"Most is to be done {worst.words.replace(', ', ' at ')}"
    over = sum((cell.value or 0) > room for cell in ahead)
    if not over:
        return "There is room in every hour"
    return f"{in_words(over)} {'hour needs' if over == 1 else 'hours need'} more than there is"


def _summary(ahead: Sequence[Cell], asked: Asked, worst: Cell | None, estimated: frozenset[str]) -> str:
    quietest = _quietest(ahead)
    if worst is None or quietest is None:
        return "What ran in it is in the calendar."
    if not worst.value:
        return "No job fires in them."
    unit, room = "run-minutes" if asked.count == "minutes" else "starts", _room(asked)
    of = "" if room is None else f" of {room:,}"
    unit = unit.removesuffix("s") if worst.value == 1 and not of else unit
    guessed = ""
    if estimated and asked.count == "minutes":
        jobs, whose = ("1 job is", "its") if len(estimated) == 1 else (f"{len(estimated):,} jobs are", "their")
        guessed = f"; {jobs} estimated by the others, for want of a run of {whose} own"
    where = f" on {asked.queue.removeprefix('pull/')}" if asked.queue else ""
    return (
        f"Worst: {worst.words}, {worst.value or 0:,}{of} {unit}{where}. "
        f"Quietest: {quietest.words}, {quietest.value or 0:,}. "
        f"Starts are exact; lengths are the usual ones of each job{guessed}."
    )


def _shares(buckets: Sequence[Bucket], seconds: Mapping[str, float]) -> tuple[list[Share], int, Bucket | None]:
    """The jobs of an hour, the greatest share first; how many starts are of others; and the minute in which the most
    begin."""
    starts: Counter[str] = Counter()
    minutes: dict[str, float] = {}
    first: dict[str, Instant] = {}
    for bucket in buckets:
        for job, count in bucket.starts.items():
            starts[job] += count
            first.setdefault(job, bucket.at)
        for job, running in bucket.running.items():
            minutes[job] = minutes.get(job, 0.0) + running
    most = max((minutes.get(job, 0.0) or starts[job] for job in starts if job), default=1) or 1
    shares = []
    for job, count in starts.items():
        of_job, took = minutes.get(job, 0.0), seconds.get(job)
        width = round(96 * (of_job or count) / most)
        if job:
            shares.append(Share(job, first[job], count, of_job, width, None if took is None else int(took * SECOND)))
    shares.sort(key=lambda share: (-share.minutes, -share.starts, share.job))
    herd = max(buckets, key=lambda bucket: bucket.total, default=None)
    return shares, starts[""], herd


def _together(buckets: Sequence[Bucket], herd: Bucket | None) -> list[str]:
    """The jobs that begin in the busiest minute and at no other of that hour, if they are several."""
    if herd is None:
        return []
    starts: Counter[str] = Counter()
    for bucket in buckets:
        starts.update(bucket.starts)
    names = sorted(job for job in herd.starts if job and starts[job] == 1)
    return names if len(names) > 1 else []


def _day_chart(buckets: Sequence[Bucket], asked: Asked, zone: str) -> LoadChart:
    values = [_value(bucket, asked, MINUTE) for bucket in buckets]
    return load_chart(
        [bucket.at for bucket in buckets], values, asked.places if asked.count == "minutes" else None, zone
    )
