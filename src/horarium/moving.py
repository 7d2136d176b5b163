"""Runs follow their job. Whoever changes a job's target moves what waits along with the change; whoever puts a run back
to pending looks here afterwards, since the target may have been changed while the run was claimed. Between the two none
is left behind: the change finds the run pending, or the look finds the job changed.

What gets lost all the same (a crash between the write and the look) is found by the dispatcher when it claims the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horarium.clock import Instant
from horarium.editing import follow, is_astray
from horarium.model import Plan, Run, State
from horarium.ports import Signal, Store

ROUNDS_MAX = 1_000
"""How often one call reads and moves a batch at the most: somebody else may change the job all the time."""


async def move_put_back(store: Store, signal: Signal, runs: Iterable[Run], now: Instant) -> None:
    """Of these runs, which have just been written, move those that wait elsewhere than their jobs now say."""
    waiting = [run for run in runs if run.state is State.PENDING and run.job_id is not None]
    if not waiting:
        return
    jobs = {job.id: job for job in await store.get_jobs_by_id(list({run.job_id or "" for run in waiting})) if job}
    astray = {run.job_id or "" for run in waiting if run.job_id in jobs and is_astray(run, jobs[run.job_id])}
    if astray:
        await move_astray(store, signal, sorted(astray), now)


async def move_astray(store: Store, signal: Signal, job_ids: Sequence[str], now: Instant) -> None:
    """Move the waiting runs of these jobs to the queues where they belong."""
    for _ in range(ROUNDS_MAX if job_ids else 0):
        jobs = [job for job in await store.get_jobs_by_id(job_ids) if job is not None]
        unfinished = await store.unfinished_runs([job.id for job in jobs])
        plans = [planned for job in jobs if (planned := follow(Plan(job), unfinished[job.id], now)).runs]
        if not plans:
            return
        await store.commit_plans(plans, now)
        for queue in sorted({planned.job.queue for planned in plans}):
            signal.publish(f"queue:{queue}")
