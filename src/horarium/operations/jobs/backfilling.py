"""Backfills of jobs whose runs may overlap: such a one changes nothing of its job, so its runs are added like one-offs.

What many callers ask at one time is asked of the store together: the jobs, the runs that are there, and the new ones.

A job may be deleted, or go to another queue, between the read and the write. So the jobs are read once more after it: a
change that was committed before that is seen here, one that comes later sees the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from horarium.errors import StoreUnavailable
from horarium.model import Job, Plan, Run
from horarium.model.records import RecordChange
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.context import Context
from horarium.operations.writing.gathering import Gathered
from horarium.operations.writing.named import jobs_by_id, no_job
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import BATCH_MAX
from horarium.rules.reconciling import belongs


class Backfilling:
    """Reads and writes for backfills. `job`: the one of a name; `runs`: those of these ids that are there; `add`: the
    runs of a plan that changes nothing of its job, its records with the first that is new. `job` and `add` raise
    NotFound; `add`, if the job was deleted meanwhile."""

    def __init__(self, context: Context, reconciler: Reconciler) -> None:
        self._store, self._signal = context.store, context.signal
        self._reconciler = reconciler
        self._rating = Rating(context)
        self.job: Gathered[str, Job] = Gathered(self._jobs)
        self.runs: Gathered[Sequence[str], list[Run]] = Gathered(self._runs)
        self.add: Gathered[Plan, None] = Gathered(self._add)

    async def _jobs(self, names: Sequence[str]) -> list[Job | Exception]:
        unique = list(dict.fromkeys(names))
        jobs = dict(zip(unique, await self._store.get_jobs(unique), strict=True))
        return [jobs[name] or no_job(name) for name in names]

    async def _runs(self, asked: Sequence[Sequence[str]]) -> list[list[Run] | Exception]:
        ids = list(dict.fromkeys(run_id for some in asked for run_id in some))
        found: dict[str, Run] = {}
        for start in range(0, len(ids), BATCH_MAX):
            runs = await self._store.get_runs(ids[start : start + BATCH_MAX])
            found.update({run.id: run for run in runs if run is not None})
        return [[found[run_id] for run_id in some if run_id in found] for some in asked]

    async def _add(self, plans: Sequence[Plan]) -> list[Exception | None]:
        return [answer for group in _groups(plans) for answer in await self._add_group(group)]

    async def _add_group(self, group: Sequence[Plan]) -> list[Exception | None]:
        holding = self._reconciler.holding
        runs = [run for planned in group for run in await holding.all_said(planned.runs, planned.job)]
        along = {planned.runs[0].id: planned.records for planned in group if planned.runs}
        is_new: dict[str, bool] = {}
        for start in range(0, len(runs), BATCH_MAX):
            batch = await self._rating.lined_up(runs[start : start + BATCH_MAX])
            told = {run.id: along[run.id] for run in batch if run.id in along}
            answers = await self._store.add_runs(batch, told)
            is_new.update({run.id: new for run, new in zip(batch, answers, strict=True)})
        added = [[run for run in planned.runs if is_new[run.id]] for planned in group]
        untold = [
            record
            for planned, new in zip(group, added, strict=True)
            if new and not is_new[planned.runs[0].id]
            for record in planned.records
        ]
        if untold:
            await self._store.put_records([RecordChange(record) for record in untold])
        announce_runs(self._signal, (run for new in added for run in new))
        return await self._look_again(group, added)

    async def _look_again(self, group: Sequence[Plan], added: Sequence[list[Run]]) -> list[Exception | None]:
        """In an outage that is looked at later: the runs are there."""
        try:
            jobs = await jobs_by_id(self._store, (planned.job.id for planned in group))
        except StoreUnavailable:
            await self._reconciler.after_put_back([run for new in added for run in new])
            return [None] * len(group)
        answers: list[Exception | None] = []
        changed: list[Run] = []
        for planned, new in zip(group, added, strict=True):
            job = jobs.get(planned.job.id)
            gone = job is None or job.deleted_at is not None
            changed += [run for run in new if job is None or gone or not belongs(run, job)]
            answers.append(no_job(planned.job.name) if gone else None)
        await self._reconciler.after_put_back(changed)
        return answers


def _groups(plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """Those that are written together: one batch at most, in which no run is there twice."""
    group: list[Plan] = []
    ids: set[str] = set()
    for planned in plans:
        own = {run.id for run in planned.runs}
        if group and (len(ids) + len(own) > BATCH_MAX or not ids.isdisjoint(own)):
            yield group
            group, ids = [], set()
        group.append(planned)
        ids |= own
    yield group
