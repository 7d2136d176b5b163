"""The next fire times, of all jobs together.

A store knows each job's next fire time, and gives jobs in its order: so the first `limit` fire times of all are among
those of the first `limit` jobs, and no more of them are looked at, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from horarium.clock import DAY, Instant
from horarium.errors import TooExpensive
from horarium.model import Job, State
from horarium.model.holds import Hold
from horarium.model.overrides import Override
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import Slices
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.compiled import after_end
from horarium.rules.holds import InForce, hold_at
from horarium.rules.overridden import moved_to, moves
from horarium.rules.planning import job_fires
from horarium.rules.windows import fires_in_window
from horarium.triggers.budget import FIRE_STEPS, is_spent, limited

UPCOMING_MAX = 1_000
SPAN_MAX = 31 * DAY
FIRES_LOOKED_AT = 20_000
"""Of all jobs together: enough for the busiest thousand, a few milliseconds each."""
FIRES_AT_ONCE = 50
PENDING = frozenset({State.PENDING})
Fire = tuple[Instant, str]
"""A fire time, and the name of its job."""


class Ahead(Struct, frozen=True, order=True):
    """One instant ahead at which a job runs: a fire time, or where one was moved to. `held`: the hold over it."""

    fire_at: Instant
    job: str
    moved: Override | None = None
    held: InForce | None = None


class Upcoming(Struct, frozen=True):
    """The fire times of a span, in order. `truncated`: there are more. `crowded`: jobs that were left out, since they
    fire more often than was asked for."""

    items: tuple[Ahead, ...]
    truncated: bool = False
    crowded: tuple[str, ...] = ()


async def upcoming(
    store: Store,
    since: Instant,
    until: Instant,
    limit: int,
    per_job: int | None = None,
    jobs_max: int = UPCOMING_MAX,
    holds: Sequence[Hold] = (),
) -> Upcoming:
    """Fire times in [since, until), the earliest first, at most `limit`: of runs that are planned already, and of rules
    beyond them. `per_job`: jobs with more fire times than this are named, not listed. `jobs_max`: how many jobs are
    looked at. `holds`: those that are named beside them. Rules that take too long to evaluate are left out; a span is
    cut off after SPAN_MAX, and the look after FIRES_LOOKED_AT fire times or the steps that its caller has."""
    whole, until = until <= since + SPAN_MAX, min(until, since + SPAN_MAX)
    limit = min(limit, UPCOMING_MAX)
    jobs_max = min(jobs_max, limit)
    jobs, _ = await store.due_jobs(until - 1, jobs_max + 1)
    more = len(jobs) > jobs_max or not whole
    slices = Slices()
    planned = {*await _planned(store, since, until, limit + 1)}
    found = sorted(planned)
    crowded: list[str] = []
    looked_at = 0
    for job in jobs:
        await slices.give_way()
        if per_job is None and len(found) > limit:  # later ones are beyond the last that counts
            until = min(until, found[limit][0] + 1)
        if looked_at > FIRES_LOOKED_AT or is_spent():
            more = True
            break
        if job.next_fire_at is not None and job.next_fire_at >= until:
            continue
        count = limit + 1 if per_job is None else per_job + 1
        fires = await evaluate(partial(_fires, job, since, until, count), FIRE_STEPS)
        looked_at += len(fires)
        if per_job is not None and len(fires) > per_job:
            crowded.append(job.name)
            found = [one for one in found if one[1] != job.name]
        elif fires:
            found += (fire for fire in fires if fire not in planned)
            found.sort()
            del found[limit + 1 :]
    named = {job.name: job for job in jobs if job.overrides or holds}
    items = (
        _ahead(fire, name, named.get(name), holds, place)
        for (fire, name), alike in groupby(found[:limit])
        for place, _ in enumerate(alike)
    )
    return Upcoming(tuple(items), len(found) > limit or more, tuple(crowded))


def _ahead(fire: Instant, name: str, job: Job | None, holds: Sequence[Hold], place: int) -> Ahead:
    """`place`: among the runs of that job at that instant."""
    if job is None:
        return Ahead(fire, name)
    moved = next(iter(moved_to(job, fire)[place:]), None)
    return Ahead(fire, name, moved, hold_at(holds, job, fire))


async def _planned(store: Store, since: Instant, until: Instant, limit: int) -> list[Fire]:
    """Runs of jobs that are planned, and whose fire time has not come."""
    where = RunFilter(states=PENDING, since=since, until=until)
    page = await store.list_runs(where, None, min(limit, PAGE_MAX))
    return [(run.fire_at, run.job) for run in page.items if run.job is not None]


def _fires(job: Job, since: Instant, until: Instant, count: int) -> list[Fire]:
    if after_end(job) is not None:
        return [(fire, job.name) for fire in job_fires(job, since - 1, count) if fire < until]
    found = [(to, job.name) for to in moves(job, since - 1, until - 1)]
    after = max(job.planned_until, since - 1)
    left = count if job.fires_max is None else min(count, job.fires_max - job.fires_count)
    while left > 0:
        try:
            with limited(FIRE_STEPS):
                fires = fires_in_window(job, after, until - 1, min(left, FIRES_AT_ONCE))
        except TooExpensive:
            break
        found += ((fire, job.name) for fire in fires)
        left -= len(fires)
        if len(fires) < FIRES_AT_ONCE:
            break
        after = fires[-1]
    return sorted(found)[:count] if job.overrides else found
