"""Runs that another system performed, added to the history of the job that was taken over from it.

They are over: nothing follows from them, no channel hears of them, and no limit counts them. An id follows from job and
fire time, so existing runs stay as they are, and adding them again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from horarium.operations.jobs.jobs import JobOperations
from horarium.operations.writing.auditing import require_reach, told
from horarium.operations.writing.context import Context
from horarium.wire.history import PastRun, past_run_of


class Remembered(Struct, frozen=True):
    """How many were added, how many fire times had a run already, and how many are older than the job keeps runs."""

    added: int = 0
    known: int = 0
    too_old: int = 0


class History:
    """Adds finished runs. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, jobs: JobOperations) -> None:
        self._store, self._clock = context.store, context.clock
        self._jobs = jobs

    async def add(self, name: str, system: str, past: Sequence[PastRun]) -> Remembered:
        """Add runs of `system` to this job, `BATCH_MAX` at most. Raises NotFound, InvalidRequest or Forbidden."""
        job, now = await self._jobs.get_job(name), self._clock.now()
        require_reach(job)
        runs = {run.id: run for run in (past_run_of(each, job, system, now) for each in past)}
        kept = {id: run for id, run in runs.items() if run.prune_at is None or run.prune_at > now}
        there = await self._store.get_runs(list(kept)) if kept else []
        new = [run for run, known in zip(kept.values(), there, strict=True) if known is None]
        along = {}
        if new:
            said = {"system": system, "runs": len(new)}
            along[new[0].id] = told("job.history", f"job/{job.name}", now, after=said)
        added = sum(await self._store.add_runs(new, along)) if new else 0
        return Remembered(added, len(past) - (len(runs) - len(kept)) - added, len(runs) - len(kept))
