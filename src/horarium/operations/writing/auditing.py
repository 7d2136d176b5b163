"""The audit entries of what an operation writes, to go with it in its transaction.

Each function gives records, or none where no caller acts: writes of the services themselves, and of programs that name
no actor, are not audited. Jobs are shown as readers see them, so no secret enters the audit.

A caller that is bound to queues or labels is kept to them here too: whether it may touch a job or a run is judged on
the reads for the very write, so no change of the job can come between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from horarium.access import audit
from horarium.access.acting import bound_caller, who_acts
from horarium.access.audit import Origin
from horarium.access.roles import Principal
from horarium.clock import Instant, to_datetime
from horarium.errors import Forbidden
from horarium.model import Job, Plan, Run, key_as_given, own_labels
from horarium.model.records import Record

Records = tuple[Record, ...]
NOT_SAID: Mapping[str, str] = MappingProxyType({})


def told(action: str, object: str, now: Instant, *, before: Any = None, after: Any = None) -> Records:
    """The entry of one change, by who acts."""
    origin = who_acts()
    return () if origin is None else (audit.entry(origin, action, object, now, before=before, after=after),)


def told_job(action: str, before: Job | None, after: Job | None, now: Instant) -> Records:
    """The same for a job: as it was, and as it is to be (its version that which was read, as in a plan, or
    the next one)."""
    job = after or before
    if who_acts() is None or job is None:
        return ()
    from horarium.wire.views import job_text  # a dozen modules, that a program which only enqueues does without

    if before is not None and after is not None:
        written = after if after.version == before.version + 1 else replace(after, version=before.version + 1)
        after = None if after.deleted_at is not None else written
    return told(
        action,
        f"job/{job.name}",
        now,
        before=None if before is None else job_text(before),
        after=None if after is None else job_text(after),
    )


def told_cancel(run: Run, cancelled: Run, reason: str, now: Instant) -> Records:
    """The entry of a run that is cancelled, or asked to stop."""
    after = {"state": cancelled.state, "reason": reason}
    return told("run.cancel", f"run/{run.id}", now, before={"state": run.state}, after=after)


def told_runs(runs: Iterable[Run], asked: Mapping[str, str] = NOT_SAID) -> Mapping[str, Records]:
    """Entries to go along with one-off runs that are added, by their ids. `asked`: as in `told_asked`, by id too; left
    out: that the run was made."""
    origin = who_acts()
    if origin is None:
        return {}
    return {
        run.id: told_asked(origin, asked.get(run.id, f"run.create run/{run.id}"), run, run.created_at) for run in runs
    }


def told_asked(origin: Origin | None, asked: str, run: Run, now: Instant) -> Records:
    """The entry of a run asked for by hand. `asked`: the action and its object, apart by a space."""
    action, _, object = asked.partition(" ")
    return () if origin is None else (audit.entry(origin, action, object, now, after=summary(run)),)


def told_backfill(planned: Plan, start: datetime, end: datetime, now: Instant) -> Records:
    """The entry of a backfill, if it makes any runs."""
    if not planned.runs:
        return ()
    after = {"start": start, "end": end, "runs": len(planned.runs)}
    return told("job.backfill", f"job/{planned.job.name}", now, after=after)


def summary(run: Run) -> dict[str, Any]:
    """What the audit says of a new run."""
    return {
        "run_id": run.id,
        "job": run.job,
        "queue": run.queue,
        "state": run.state,
        "due_at": to_datetime(run.due_at),
        "unique_key": key_as_given(run.unique_key),
        **({"labels": labels} if (labels := own_labels(run)) else {}),
    }


# ---- bound callers ----------------------------------------------------------------------------------------------


def require_reach(*touched: Job | Run) -> None:
    """Raises Forbidden if who acts may not touch these jobs, and runs that belong to none."""
    origin = who_acts()
    refusal = None if origin is None else out_of_reach(origin, *touched)
    if refusal is not None:
        raise refusal


def out_of_reach(origin: Origin | None, *touched: Job | Run) -> Forbidden | None:
    """Why this caller may not touch all of these jobs, and runs that belong to none."""
    if origin is None or not origin.principal.bound:
        return None
    if all(origin.principal.may_reach(each.queue, _labels_of(each)) for each in touched):
        return None
    return refusal_of(origin.principal)


def _labels_of(each: Job | Run) -> Mapping[str, str]:
    return each.labels if isinstance(each, Job) else own_labels(each)


def require_unbound(of_all: str) -> None:
    """Raises Forbidden if who acts is bound: these things have no queue and no labels, so jobs of others use them."""
    caller = bound_caller()
    if caller is not None:
        raise Forbidden(f"{caller.name} is bound {caller.bounds}, and {of_all} are for all")


def refusal_of(caller: Principal) -> Forbidden:
    """The error of a bound caller who would touch what others have."""
    where = "in none of them" if caller.labels is None else "outside of them"
    return Forbidden(f"{caller.name} is bound {caller.bounds}, and this is {where}")
