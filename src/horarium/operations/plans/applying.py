"""A plan carried out: as a whole in one transaction, or not at all, if what it changes is as it was read.

Planning raises the version of a job all the time, so what counts is what owners wrote. What is in place already (by an
earlier call whose answer was lost, or by an earlier page) is passed over; anything else that differs makes the plan
stale. Only then is written, by compare-and-set on the versions that were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.access.roles import Principal, Scope
from horarium.clock import Instant
from horarium.errors import AlreadyDecided, Forbidden, InvalidRequest, NotFound, PlanStale
from horarium.model import Job, Plan, Whole
from horarium.model.channels import CHANNEL
from horarium.model.plans import PLAN_ID, Step
from horarium.model.records import Record, RecordChange, put_over
from horarium.operations.bounds.reaching import require_followed
from horarium.operations.calendars import PREFIX as CALENDAR
from horarium.operations.calendars import CalendarOperations, calendar_change, decode_calendar
from horarium.operations.channels import ChannelOperations, channel_change, decode_channel
from horarium.operations.jobs.importing import Importing
from horarium.operations.jobs.jobs import JobOperations
from horarium.operations.jobs.passed import in_stretches, passed
from horarium.operations.jobs.versions import along_created
from horarium.operations.looking.forecasting import FORECAST_STEPS
from horarium.operations.plans.making import digest_of_job, digest_of_record
from horarium.operations.plans.stored import decode_plan, read_plan
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.auditing import require_reach, require_unbound, told
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.signalling import announce, announce_jobs
from horarium.ports import APPLY, BATCH_MAX
from horarium.rules.editing import delete, stands_still
from horarium.rules.reconciling import reconciled
from horarium.rules.spreading import spread
from horarium.triggers.budget import apart
from horarium.triggers.business_days import Content
from horarium.wire.definitions import JobDefinition

CHANGED_SHOWN_MAX = 20

_decode_job = msgspec.json.Decoder(JobDefinition).decode
_DECODERS: Mapping[str, Callable[[bytes | str], Any]] = {"calendar": decode_calendar, "channel": decode_channel}


class Applied(Struct, frozen=True):
    """How many changes one call made, and how many are left for the next one."""

    applied: int
    left: int = 0


class Todo(Struct):
    """The steps of one call, beside what is stored."""

    new: dict[str, JobDefinition] = {}
    changed: dict[str, tuple[Job, JobDefinition]] = {}
    deleted: dict[str, Job] = {}
    records: list[tuple[Step, Record | None]] = []
    stale: list[str] = []

    @property
    def size(self) -> int:
        return len(self.new) + len(self.changed) + len(self.deleted) + len(self.records)


class PlanApplying:
    """Carries out plans of one namespace."""

    def __init__(
        self,
        context: Context,
        jobs: JobOperations,
        importing: Importing,
        reconciler: Reconciler,
        calendars: CalendarOperations,
        channels: ChannelOperations,
    ) -> None:
        self._store, self._clock, self._signal, self._entropy = context
        self._jobs, self._importing, self._reconciler = jobs, importing, reconciler
        self._calendars, self._channels = calendars, channels

    async def apply(self, plan_id: str) -> Applied:
        """Make the changes of a plan: all of them, or the next 1,000. Once all are made, its definitions are deleted.
        A caller that may not write jobs applies one that was approved. Raises NotFound, PlanStale, Conflict,
        Forbidden."""
        caller = _caller_without_scope()
        if caller is not None:
            await self.require_approved(plan_id, caller)
        with apart(FORECAST_STEPS):
            for race in range(RACES_MAX):
                record, steps = await read_plan(self._store, plan_id, self._clock.now())
                if steps is None:
                    return Applied(0)
                _check_caller(steps, approved=caller is not None)
                beside = await self._contents(steps)
                todo, left = await self._todo(steps, beside)
                if todo.stale:
                    raise _stale(todo.stale)
                done = None if left else _emptied(record)
                if not todo.size and (done is None or all(await self._store.put_records([done]))):
                    return Applied(0, left)
                if todo.size and await self._write(todo, beside, done):
                    return Applied(todo.size, left)
                await pause_after(race, self._entropy)
        raise contended(f"what plan {plan_id.rpartition('-')[0]} changes")

    async def approve(self, plan_id: str) -> Applied:
        """Let callers apply it that may not write jobs, as it is: `left` says how many changes it makes. Raises
        NotFound, PlanStale, AlreadyDecided, Forbidden."""
        name, origin = plan_id.rpartition("-")[0], who_acts()
        caller = _caller_without_scope()
        if caller is not None:
            caller.require(Scope.JOBS_WRITE)
        require_unbound("approvals of plans")
        with apart(FORECAST_STEPS):
            for race in range(RACES_MAX):
                record, steps = await read_plan(self._store, plan_id, self._clock.now())
                plan = decode_plan(record.body)
                if steps is None or plan.approved_by:
                    raise AlreadyDecided(f"plan {name} was {'applied' if steps is None else 'approved'} already")
                _check_caller(steps)
                todo, left = await self._todo(steps, await self._contents(steps))
                if todo.stale:
                    raise _stale(todo.stale)
                by = "local" if origin is None else origin.principal.name
                body = msgspec.json.encode(replace(plan, approved_by=by))
                line = told("plan.approve", f"plan/{name}", self._clock.now(), after={"changes": plan.counts})
                if await self._store.put_records([put_over(record, record.name, body, line)]) == [True]:
                    return Applied(0, todo.size + left)
                await pause_after(race, self._entropy)
        raise contended(f"plan {name}")

    async def require_approved(self, plan_id: str, caller: Principal) -> None:
        """Raises Forbidden, unless a caller applies this that may not write jobs after one that may has approved it."""
        with suppress(NotFound, InvalidRequest):
            record, _ = await read_plan(self._store, plan_id, self._clock.now())
            if PLAN_ID.fullmatch(plan_id) and decode_plan(record.body).approved_by:
                return
        text = "it takes the scope jobs:write, or that someone who has it approves the plan"
        raise Forbidden(f"{caller.name} may not do this; {text}", [Scope.JOBS_WRITE])

    async def _contents(self, steps: Sequence[Step]) -> dict[str, Content]:
        """The days of the calendars that the plan brings."""
        return {
            step.name: await self._calendars.content(decode_calendar(step.document))
            for step in steps
            if step.kind == "calendar" and step.document is not None
        }

    # ---- beside what is stored

    async def _todo(self, every: Sequence[Step], beside: Mapping[str, Content]) -> tuple[Todo, int]:
        """What is left of the plan, as far as one call goes, and how much more there is."""
        todo, left = Todo(), 0
        for start in range(0, len(every), BATCH_MAX):
            steps = every[start : start + BATCH_MAX]
            named = [step for step in steps if step.kind != "job"]
            records = await self._store.get_records([_record_name(step) for step in named]) if named else []
            jobs = await self._store.get_jobs([step.name for step in steps if step.kind == "job"])
            each_record, each_job = iter(records), iter(jobs)
            for step in steps:
                some = todo if todo.size < BATCH_MAX else Todo()
                if step.kind == "job":
                    await self._add_job(some, step, next(each_job), beside)
                else:
                    _add_record(some, step, next(each_record))
                if some is not todo:
                    todo.stale += some.stale
                    left += some.size
        return todo, left

    async def _add_job(self, todo: Todo, step: Step, job: Job | None, beside: Mapping[str, Content]) -> None:
        definition = None if step.document is None else _decode_job(step.document)
        if job is not None:
            require_reach(job)
        if (None if job is None else digest_of_job(job, definition)) == step.before:
            if definition is None:
                if job is not None:
                    todo.deleted[step.name] = job
            elif job is None:
                todo.new[step.name] = definition
            else:
                todo.changed[step.name] = job, definition
        elif not await self._is_done(job, definition, beside):
            todo.stale.append(f"job {step.name}: {_how(job is not None, step.before is not None)}")

    async def _is_done(self, job: Job | None, definition: JobDefinition | None, beside: Mapping[str, Content]) -> bool:
        if definition is None or job is None:
            return definition is None and job is None
        return await self._jobs.wanted(job, definition, self._clock.now(), beside) == job

    # ---- written

    async def _write(self, todo: Todo, beside: Mapping[str, Content], done: RecordChange | None) -> bool:
        """False: something was written meanwhile."""
        pairs, ran, jobs = dict[str, tuple[Job, Job]](), dict[str, Sequence[Instant]](), dict[str, Job]()
        for name, (job, definition) in todo.changed.items():
            planned = await self._planned(job)
            if planned is None:
                return False
            now = self._clock.now()
            wanted = await self._jobs.wanted(planned, definition, now, beside)
            require_reach(planned, wanted)
            await require_followed(self._store, wanted, planned, jobs)
            jobs[name] = wanted
            pairs[name] = planned, wanted
            if stands_still(planned):
                ran[name] = await passed(self._store, planned, now)
        now = self._clock.now()
        plans = list((await self._importing.plans(pairs, now, ran)).values())
        plans = await self._reconciler.following.plans([*plans, *await self._ends(todo.deleted, now)], now)
        added = [await self._jobs.job_from(definition, now, beside) for definition in todo.new.values()]
        require_reach(*added)
        for job in added:
            await require_followed(self._store, job, beside=jobs)
            jobs[job.name] = job
        ids = sorted(job.id for job in added)
        new = tuple(replace(job, id=id) for job, id in zip(spread(added, now), ids, strict=True))
        records = tuple([await self._record(step, stored, now) for step, stored in todo.records])
        records = records if done is None else (*records, done)
        whole = Whole(jobs=new, along=along_created(new, now), plans=tuple(plans), records=records)
        if not await self._store.write_whole(whole, self._clock.steady()):
            return False
        announce_jobs(self._signal, [*new, *(plan.job for plan in plans)])
        self._signal.publish(APPLY)
        announce(self._signal, plans)
        before = [*(job for job, _ in pairs.values()), *todo.deleted.values()]
        for job, plan in zip(before, plans, strict=True):
            await self._reconciler.after_change(job, plan.job, plan)
        return True

    async def _planned(self, job: Job) -> Job | None:
        """The job with nothing owed by now."""
        if job.next_fire_at is None or job.next_fire_at > self._clock.now():
            return job
        try:
            return (await self._jobs.changes.planned_up_to_now(job.name))[0]
        except NotFound:
            return None

    async def _ends(self, jobs: Mapping[str, Job], now: Instant) -> list[Plan]:
        if not jobs:
            return []
        unfinished = await self._store.unfinished_runs([job.id for job in jobs.values()])
        deleted = {job.id: delete(job, now, await in_stretches(self._store, job)) for job in jobs.values()}
        return [
            await self._jobs.versions.kept_with(
                reconciled(deleted[job.id], unfinished[job.id], now), job, "job.delete", now
            )
            for job in jobs.values()
        ]

    async def _record(self, step: Step, stored: Record | None, now: Instant) -> RecordChange:
        assert step.document is not None
        if step.kind == "calendar":
            return calendar_change(step.name, decode_calendar(step.document), stored, now)
        before = None if stored is None else decode_channel(stored.body)
        wanted = await self._channels.wanted(decode_channel(step.document), before)
        return channel_change(step.name, wanted, stored, now)


def _add_record(todo: Todo, step: Step, stored: Record | None) -> None:
    if (None if stored is None else digest_of_record(stored)) == step.before:
        todo.records.append((step, stored))
    elif stored is None or not _is_written(step, stored):
        todo.stale.append(f"{step.kind} {step.name}: {_how(stored is not None, step.before is not None)}")


def _is_written(step: Step, stored: Record) -> bool:
    assert step.document is not None
    decode = _DECODERS[step.kind]
    return bool(decode(stored.body) == decode(step.document))


def _record_name(step: Step) -> str:
    return (CALENDAR if step.kind == "calendar" else CHANNEL) + step.name


def _how(is_there: bool, was_there: bool) -> str:
    if not was_there:
        return "was made since"
    return "was changed since" if is_there else "was deleted since"


def _stale(changed: Sequence[str]) -> PlanStale:
    shown = ", ".join(changed[:CHANGED_SHOWN_MAX])
    more = "" if len(changed) <= CHANGED_SHOWN_MAX else f" and {len(changed) - CHANGED_SHOWN_MAX} more"
    return PlanStale(f"{shown}{more}; make the plan again", changed[:CHANGED_SHOWN_MAX])


def _emptied(record: Record) -> RecordChange:
    """The plan without its steps."""
    body = msgspec.json.encode(replace(decode_plan(record.body), sealed=b""))
    return put_over(record, record.name, body)


def _caller_without_scope() -> Principal | None:
    """Who acts, if that may not write jobs."""
    origin = who_acts()
    return None if origin is None or not origin.principal.missing(Scope.JOBS_WRITE) else origin.principal


def _check_caller(steps: Sequence[Step], *, approved: bool = False) -> None:
    """Who applies an approved plan need not be an admin: who approved it was."""
    origin = who_acts()
    kinds = {step.kind for step in steps}
    if origin is None:
        return
    if "channel" in kinds and not approved:
        origin.principal.require(Scope.ADMIN)
    if kinds - {"job"}:
        require_unbound("calendars and channels")
