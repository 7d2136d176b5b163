"""Strips: one mark for each fire time, past and future, with the line of now between them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import DAY, INSTANT_MAX, Instant
from horarium.dashboard.formats import clock_text, day_text, local, localized, offset_of, relative
from horarium.dashboard.marks import HELD, PLANNED, WONT, Mark, mark_of, summed_up, why
from horarium.errors import TooExpensive
from horarium.model import Job, Run
from horarium.model.holds import Hold
from horarium.rules.holds import FOREVER, hold_at
from horarium.rules.planning import job_fires
from horarium.rules.windows import fires_in_window
from horarium.triggers.budget import FIRE_STEPS, FIRST_STEPS, limited
from horarium.triggers.words import counted

AHEAD_SMALL = 4
PITCH = 13


class Place(Struct, frozen=True):
    """One mark of a strip. `note`: the tip's sentence. `date`: written below. `seam`: the clocks change before
    it. `at`: its fire time."""

    mark: Mark
    title: str
    note: str
    link: str
    far: bool = False
    date: str = ""
    seam: str = ""
    at: Instant = 0


class Small(Struct, frozen=True):
    """Ten past, four next. `past` and `ahead` are pairs of an offset and a mark."""

    past: tuple[tuple[int, Mark], ...]
    ahead: tuple[tuple[int, Mark], ...]
    now_x: int
    width: int
    label: str


class Large(Struct, frozen=True):
    """The strip of a job's page."""

    past: tuple[Place, ...]
    ahead: tuple[Place, ...]


def ahead_of(job: Job, now: Instant, count: int, steps: int = FIRE_STEPS) -> list[Instant]:
    """The next fire times; none where the rule takes too long to evaluate here."""
    left = count if job.fires_max is None else max(0, min(count, job.fires_max - job.fires_count))
    try:
        with limited(steps):
            return job_fires(job, max(now, 0), left)
    except TooExpensive:
        return []


def within(job: Job, after: Instant, until: Instant, count: int) -> list[Instant]:
    """Fire times in (after, until], at most `count`; none where the rule takes too long to evaluate here."""
    try:
        with limited(FIRE_STEPS):
            return fires_in_window(job, max(after, 0), until, count)
    except TooExpensive:
        return []


def small(job: Job | None, runs: Sequence[Run], now: Instant, holds: Sequence[Hold] = ()) -> Small:
    """For a list. `runs`: the last ten, newest first. `holds`: the candidates for its future marks."""
    past = [mark_of(run, now) for run in reversed(runs)]
    if job is None:
        ahead = []
    elif job.enabled:
        fires = ahead_of(job, now, AHEAD_SMALL, FIRST_STEPS)
        ahead = [PLANNED if hold_at(holds, job, fire) is None else HELD for fire in fires]
    else:
        ahead = [WONT] * AHEAD_SMALL
    blank = (10 - len(past)) * PITCH
    now_x = 10 * PITCH + 3
    label = f"Last {counted(len(past), 'fire')}: {summed_up(past)}" if past else "No fire yet"
    if held := ahead.count(HELD):
        label += f"; held: {held} of the next {len(ahead)}"
    return Small(
        past=tuple((blank + place * PITCH, mark) for place, mark in enumerate(past)),
        ahead=tuple((now_x + 7 + place * PITCH, mark) for place, mark in enumerate(ahead)),
        now_x=now_x,
        width=now_x + 7 + AHEAD_SMALL * PITCH,
        label=label,
    )


def held_words(holds: Sequence[Hold], job: Job, fire: Instant, zone: str, now: Instant) -> str:
    """What a hold over a fire time says of itself; nothing: there is none."""
    found = hold_at(holds, job, fire)
    if found is None:
        return ""
    end = found.stretch.ends_at
    until = "until it is lifted" if end >= FOREVER else f"until {clock_text(end, zone, now)}"
    return f"on hold {until}" + (f": {found.hold.reason}" if found.hold.reason else "")


def large(job: Job, runs: Sequence[Run], now: Instant, zone: str, holds: Sequence[Hold] = (), ahead: int = 14) -> Large:
    """For a job's page. `runs`: newest first."""
    past = [_past(run, now, zone, place) for place, run in enumerate(runs)]
    fires = ahead_of(job, now, ahead) if job.enabled else within(job, now, INSTANT_MAX - 1, ahead)
    after = [
        _next(job, fire, now, zone, place, held_words(holds, job, fire, zone, now)) for place, fire in enumerate(fires)
    ]
    for place, hours in enumerate(_shifts(fires, zone)):
        if hours:
            after[place] = replace(after[place], seam=f"clocks {_way(hours)}")
    return Large(tuple(reversed(past)), tuple(after))


def _past(run: Run, now: Instant, zone: str, place: int) -> Place:
    mark = mark_of(run, now)
    then = local(run.fire_at, zone)
    date = _date(then, run.fire_at, now) if place % 7 == 3 else ""
    title = day_text(run.fire_at, zone)
    return Place(mark, title, localized(why(run, now), zone), f"/runs/{run.id}", place >= 9, date, at=run.fire_at)


def _next(job: Job, fire: Instant, now: Instant, zone: str, place: int, held: str) -> Place:
    then = local(fire, zone)
    date = _date(then, fire, now) if place % 7 == 3 else ""
    mark, note = WONT, "Will not run: the job is paused."
    if job.enabled:
        mark, note = PLANNED, f"Will run {relative(fire, now)}."
        if held:
            mark, note = HELD, f"{held[0].upper()}{held[1:]}."
    return Place(mark, day_text(fire, zone), note, "", place >= 4, date, at=fire)


def _date(then: datetime, instant: Instant, now: Instant) -> str:
    """The text below a mark: the time for near ones, else the day."""
    return f"{then:%H:%M}" if abs(instant - now) < DAY else f"{then.day} {then:%b}"


def _shifts(fires: Sequence[Instant], zone: str) -> list[float]:
    """For each fire time by how many hours the clocks of its zone changed since the one before."""
    offsets = [offset_of(fire, zone) for fire in fires]
    return [after - before for before, after in zip(offsets[:1] + offsets, offsets, strict=False)]


def _way(hours: float) -> str:
    return "forward" if hours > 0 else "back"


def clock_changes(fires: Sequence[Instant], zone: str) -> list[str]:
    """For each fire time a sentence where the clocks of its zone changed since the one before, else nothing."""
    return [
        f"The clocks go {_way(hours)} by {abs(hours):g} h before this one." if hours else ""
        for hours in _shifts(fires, zone)
    ]
