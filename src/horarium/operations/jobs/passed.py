"""Fire times beyond a job's cursor that have a row already, which no range of dropped ones may begin at or cover.

There are such: an edit takes the cursor back to its instant, and a run planned ahead by then that has been claimed, has
ended, or was cancelled by hand, keeps its row. So does a run of the time when the clock was ahead. A row for a range
that begins there could not be added, and its fire times would have no account.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from horarium.clock import Instant
from horarium.errors import TooExpensive
from horarium.model import Cause, Disposition, Job, Plan, Run, State
from horarium.model import run_id as run_id_of
from horarium.operations.bounds.evaluating import evaluate
from horarium.ports import BATCH_MAX, PAGE_MAX, RunFilter, Store
from horarium.rules.overridden import run_moved_to
from horarium.rules.planning import needs_unfinished
from horarium.rules.windows import fires_in_window
from horarium.triggers.budget import LIST_STEPS

PROBED_FIRES = 16
"""Fire times beyond a cursor that are looked up at a time, for those that have a row all the same."""


async def passed(store: Store, job: Job, now: Instant) -> list[Instant]:
    """Those up to `now`, ascending; looked for from the cursor on, until there are none for a while."""
    ran: list[Instant] = []
    after, count = job.planned_until, PROBED_FIRES
    while after < now:
        fires = await evaluate(partial(fires_in_window, job, after, now, count), LIST_STEPS)
        if not fires:
            break
        runs = await store.get_runs([run_id_of(job.id, fire) for fire in fires])
        found = [fire for fire, run in zip(fires, runs, strict=True) if run is not None]
        ran += found
        if not found or len(fires) < count:
            break
        after, count = fires[-1], min(2 * count, BATCH_MAX)
    return ran


async def in_the_way(
    store: Store, jobs: Sequence[Job], plans: Sequence[Plan], now: Instant
) -> dict[str, list[Instant]]:
    """Such fire times of each of these jobs whose plan records a range, or a missed one, or asks a person about some,
    or makes a run that counts, where they may be, by the job's id: it is to be planned again with them, tells of
    nothing that was not missed, and ends no run for one that is there. Another plan costs nothing here, such a one a
    read.

    Mostly it is another planner that has just made the same plan. Then this one will not be carried out:
    such jobs, of which there may be very many, are looked for no further."""
    ranges = {id: job for job, planned in zip(jobs, plans, strict=True) for id in _firsts(job, planned)}
    taken: dict[str, list[Instant]] = {
        job.id: [] for job in ranges.values() if job.missed is not None or _is_edited_since(job)
    }
    ranges |= {id: job for job, planned in zip(jobs, plans, strict=True) for id in _counted(job, planned)}
    ids = list(ranges)
    for start in range(0, len(ids), BATCH_MAX):
        for run in await store.get_runs(ids[start : start + BATCH_MAX]):
            if run is not None:
                taken.setdefault(ranges[run.id].id, []).append(run.fire_at)
    doubtful = list({job.id: job for job in ranges.values() if job.id in taken}.values())
    stored = await store.get_jobs_by_id([job.id for job in doubtful]) if doubtful else []
    found: dict[str, list[Instant]] = {}
    for job, as_it_is in zip(doubtful, stored, strict=True):
        if as_it_is is None or as_it_is.version != job.version:
            continue
        try:
            found[job.id] = sorted({*taken[job.id], *await in_stretches(store, job), *await passed(store, job, now)})
        except TooExpensive:
            found[job.id] = sorted(taken[job.id])
    return {job_id: ran for job_id, ran in found.items() if ran}


async def in_stretches(store: Store, job: Job) -> list[Instant]:
    """Fire times about which a person was asked that have a row all the same, ascending: a backfill was quicker."""
    found: list[Instant] = []
    for stretch in () if job.missed is None else job.missed.stretches:
        where, after = RunFilter(job=job.name, since=stretch.first, until=stretch.last + 1), None
        while True:
            page = await store.list_runs(where, after, PAGE_MAX)
            found += (run.fire_at for run in page.items if run.job_id == job.id)
            if (after := page.next_after) is None:
                break
    return sorted(found)


def _is_edited_since(job: Job) -> bool:
    """Whether it was edited since it was planned."""
    return job.created_at < job.updated_at and job.planned_until <= job.updated_at


def _firsts(job: Job, planned: Plan) -> list[str]:
    """The ids of rows at the first fire time of each such range, and of each stretch that the plan asks about."""
    stretches = () if planned.job.missed is None else planned.job.missed.stretches
    known = () if job.missed is None else job.missed.stretches
    asked = [run_id_of(job.id, each.first) for each in stretches if each not in known]
    return [*(run.id for run in planned.runs if _may_meet(run)), *asked]


def _counted(job: Job, planned: Plan) -> list[str]:
    """The ids of its runs that end or keep back others, or that `fires_max` counts, where the cursor may lie before
    such fire times, or a claim may have been quicker than an override."""
    if not needs_unfinished(job) and job.fires_max is None:
        return []
    stood = job.held_until is not None or _is_edited_since(job)
    made = [run for run in planned.runs if run.state is State.PENDING]
    return [run.id for run in made if stood or run.cause is Cause.CATCH_UP or run_moved_to(run) is not None]


def _may_meet(run: Run) -> bool:
    return run.state is State.SKIPPED and (run.last_fire_at is not None or run.disposition is Disposition.MISSED)
