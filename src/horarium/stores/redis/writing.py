"""What the scripts that write jobs, plans and records are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from horarium.clock import Instant
from horarium.model import Job, Plan, RunChange, Whole
from horarium.model.records import RecordChange
from horarium.stores.encoding import as_written
from horarium.stores.redis.loading import Read
from horarium.stores.redis.parts import parts
from horarium.stores.redis.rows import Arguments, come_along, encode_job, encode_record, new_run, pack_all, run_change


async def replace_runs(write: Read, changes: Sequence[RunChange]) -> list[bool]:
    """What `settle_runs` answers for changes of this kind."""
    answers: list[bool] = []
    for part in parts(changes):
        arguments = Arguments(before=2)
        batch: list[Any] = []
        for change in part:
            along = come_along((), change.records, arguments)
            batch += (change.token, *new_run(change.run, arguments), along)
        ids = pack_all([change.run.id for change in part])
        answers += map(bool, await write("replace_runs", ids, pack_all(batch), *arguments.values))
    return answers


def record_change(change: RecordChange, arguments: Arguments) -> tuple[Any, ...]:
    """What the script `put_records` is given."""
    row = None if change.deleted else arguments.place(encode_record(change.record))
    return change.record.name, change.expected, row, come_along((), change.records, arguments)


def plan_values(plan: Plan, arguments: Arguments, steady: Instant) -> Iterator[Any]:
    """What the script `commit_plans` is given."""
    yield plan.job.id
    yield plan.job.version
    yield arguments.place(encode_job(plan.job, plan.job.version + plan.versions))
    yield come_along((), plan.records, arguments)
    yield from swept_by(plan.job)
    yield from (len(plan.changes), len(plan.withdrawals), len(plan.runs))
    for change in as_written(plan.changes, steady):
        yield from run_change(change, arguments)
    for run in plan.withdrawals:
        yield from (run.id, run.token)
    for run in plan.runs:
        yield from new_run(run, arguments)
        yield come_along((), plan.along.get(run.id, ()), arguments)


def swept_by(job: Job) -> tuple[Instant, bool]:
    """What sweeps find a job by."""
    return job.planned_until, job.retention.runs_max is not None


def ids_of(plan: Plan) -> list[str]:
    changed = [change.run.id for change in plan.changes]
    return [*changed, *(run.id for run in plan.withdrawals), *(run.id for run in plan.runs)]


def whole_values(whole: Whole, steady: Instant) -> list[Any]:
    """What the script `write_whole` is given."""
    arguments = Arguments(before=14)
    plans = [value for plan in whole.plans for value in plan_values(plan, arguments, steady)]
    jobs: list[Any] = []
    for job in whole.jobs:
        row = arguments.place(encode_job(job, job.version))
        jobs += (job.id, row, come_along((), whole.along.get(job.id, ()), arguments), *swept_by(job))
    runs: list[Any] = []
    for run in whole.runs:
        runs += (*new_run(run, arguments), come_along((), whole.along.get(run.id, ()), arguments))
    records = [value for change in whole.records for value in record_change(change, arguments)]
    return [
        steady,
        pack_all([plan.job.id for plan in whole.plans]),
        pack_all([run_id for plan in whole.plans for run_id in ids_of(plan)]),
        pack_all(plans),
        len(whole.jobs),
        pack_all(jobs),
        len(whole.records),
        pack_all(records),
        pack_all([plan.job.version for plan in whole.plans]),
        pack_all([text for job in whole.jobs for text in (job.id, job.name)]),
        pack_all([value for change in whole.records for value in (change.record.name, change.expected)]),
        pack_all([run.id for run in whole.runs]),
        pack_all(runs),
        pack_all([run.unique_key for run in whole.runs if run.unique_key is not None]),
        *arguments.values,
    ]
