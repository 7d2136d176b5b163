"""A plan: what documents would change of what is stored, worked out by the very rules that change it. It writes nothing
but the plan itself, which `applying` carries out later if nothing has changed since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import bound_caller, reading, who_acts
from horarium.clock import DAY, MINUTE, SECOND, Instant
from horarium.errors import CallerError, HorariumError, InvalidJob, InvalidRequest
from horarium.model import Job, uuid7
from horarium.model.calendars import Calendar, shown_calendar
from horarium.model.channels import CHANNEL, AnyChannel
from horarium.model.plans import KEY_BYTES, PLAN, PlanKind, Step, StoredPlan, sealed
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.bounds.evaluating import evaluate, in_thread
from horarium.operations.bounds.listing import Slices, pages_of
from horarium.operations.bounds.reaching import require_followed
from horarium.operations.calendars import PREFIX as CALENDAR
from horarium.operations.calendars import CalendarOperations, decode_calendar
from horarium.operations.channels import ChannelOperations, decode_channel
from horarium.operations.jobs.importing import require_owned
from horarium.operations.jobs.jobs import EDIT_STEPS, JobOperations
from horarium.operations.looking.forecasting import FORECAST_STEPS, weighed
from horarium.operations.plans.fires import (
    FireDifferences,
    Pair,
    Peak,
    begun_together,
    compared,
    fire_differences,
)
from horarium.operations.plans.foreseen import Foreseen, foreseen
from horarium.operations.plans.stored import Listed, decode_plan, list_plans, read_plan, require_theirs
from horarium.operations.settling.holding import PLANNED_SECONDS, Holding
from horarium.operations.writing.auditing import require_reach, require_unbound, told
from horarium.operations.writing.context import Context
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Page
from horarium.rules.calendars import FireChange, without_days
from horarium.rules.differing import FieldChange, fields_compared
from horarium.rules.editing import edit
from horarium.rules.forecasting import Span
from horarium.rules.joins import is_join
from horarium.triggers.budget import LIST_STEPS, apart
from horarium.triggers.business_days import Content
from horarium.wire.channels import shown_channel
from horarium.wire.definitions import JobDefinition, definition_of, kept_definition

T = TypeVar("T")

Action = Literal["create", "update", "delete", "unchanged", "invalid"]
HORIZON_SECONDS = 14 * 86_400
HORIZON_SECONDS_MAX = 400 * 86_400
PEAK_HORIZON = 14 * DAY
"""How far ahead the busiest minute is looked for."""
AT_ONCE = MINUTE
"""A job whose next fire time lies no further ahead fires at once."""
LIFE = 7 * DAY
PLANS_MAX = 100
"""Plans that are kept; the oldest go first."""
SECRET_CHANGED = "the secret is another one"


class Documents(Struct, frozen=True):
    """Definitions by name, each read, or the error of reading it."""

    jobs: Sequence[tuple[str, JobDefinition | CallerError]] = ()
    calendars: Sequence[tuple[str, Calendar | CallerError]] = ()
    channels: Sequence[tuple[str, AnyChannel | CallerError]] = ()


class Change(Struct, frozen=True, kw_only=True):
    """What would become of one definition. `jobs`: of a calendar, those whose fire times change with it."""

    kind: PlanKind
    name: str
    action: Action
    fields: list[FieldChange] = []
    fires: FireDifferences | None = None
    jobs: list[FireChange] = []
    error: HorariumError | None = None


class Plan(Struct, Generic[T], frozen=True, kw_only=True):
    """What documents would change. `changes`: each as it was asked for. `fires_at_once`: jobs that fire within a minute
    of being applied."""

    id: str
    changes: list[T]
    fires_at_once: list[str]
    before: Peak | None
    after: Peak | None
    warnings: list[Foreseen]
    expires_at: Instant


class Looked(Struct, frozen=True):
    """A stored plan as it is now, without unchanged objects. `stale`: objects that others have changed since.
    `by`: who made it; `approved_by`: who lets callers apply it that may not write jobs."""

    plan: Plan[Change]
    stale: list[str]
    by: str
    approved_by: str


class Beside(Struct):
    """Intermediate results: the steps of the plan, jobs before and after, calendars that are to come.
    `owner`: the labels of those whose plan it is, if it prunes. `counts`: changes by action."""

    steps: list[Step] = []
    pairs: list[Pair] = []
    contents: dict[str, Content] = {}
    calendars: dict[str, Calendar] = {}
    owner: Mapping[str, str] = {}
    counts: Counter[str] = msgspec.field(default_factory=Counter)


def digest_of_job(job: Job, document: JobDefinition | None) -> str:
    """Tells apart what owners wrote of a job, and jobs of one name. Whether it is paused counts where the document says
    so, or deletes it."""
    kept = kept_definition(replace(job, trigger=without_days(job.trigger)))
    if document is not None and document.enabled is msgspec.UNSET:
        kept = replace(kept, enabled=msgspec.UNSET)
    return _digest(msgspec.json.encode((job.id, kept), order="deterministic"))


def _documents_of(steps: Sequence[Step]) -> Documents:
    """The definitions that the steps of a plan bring."""
    kinds: dict[PlanKind, Any] = {"job": JobDefinition, "calendar": Calendar, "channel": AnyChannel}
    found: dict[PlanKind, list[Any]] = {"job": [], "calendar": [], "channel": []}
    for step in steps:
        if step.document is not None:
            found[step.kind].append((step.name, msgspec.json.decode(step.document, type=kinds[step.kind])))
    return Documents(found["job"], found["calendar"], found["channel"])


def digest_of_record(record: Record) -> str:
    return _digest(record.body)


def _digest(text: bytes) -> str:
    return sha256(text).hexdigest()[:32]


class PlanMaking:
    """Plans of one namespace."""

    def __init__(
        self,
        context: Context,
        jobs: JobOperations,
        calendars: CalendarOperations,
        channels: ChannelOperations,
        holding: Holding,
    ) -> None:
        self._holding = holding
        self._store, self._clock, _, self._entropy = context
        self._jobs, self._calendars, self._channels = jobs, calendars, channels

    async def make(
        self,
        documents: Documents,
        prune: Mapping[str, str] | None = None,
        horizon_seconds: int = HORIZON_SECONDS,
        *,
        say: Callable[[Change], T],
    ) -> Plan[T]:
        """What these documents would change; with `prune`, jobs with these labels that are not among them would be
        deleted. Each that is wrong is told for itself. `say`: as what each change is kept. Raises InvalidRequest,
        Forbidden."""
        _check_caller(documents)
        if prune is not None and not prune:
            raise InvalidRequest("prune: name the labels that all jobs of these documents have", field="prune.labels")
        if not 0 < horizon_seconds <= HORIZON_SECONDS_MAX:
            raise InvalidRequest(f"horizon_seconds: from 1 to {HORIZON_SECONDS_MAX:,}", field="horizon_seconds")
        now, beside = self._clock.now(), Beside(owner=prune or {})
        until = now + horizon_seconds * SECOND
        with apart(FORECAST_STEPS):
            gone = [] if prune is None else await self._pruned(prune, {name for name, _ in documents.jobs})
            plan_id = f"{uuid7(now, self._entropy(10))}-{self._entropy(KEY_BYTES).hex()}"
            plan = await self._worked_out(plan_id, documents, gone, beside, now, until, say)
        await self._keep(plan, beside, now)
        return plan

    async def page(self, after: str | None, limit: int) -> Page[Listed]:
        """Plans, the newest first, as lists show them."""
        return await list_plans(self._store, after, limit, self._clock.now())

    async def look(self, plan_id: str) -> Looked:
        """A stored plan, worked out again against what is stored now. It writes nothing. Raises NotFound."""
        now, beside = self._clock.now(), Beside()
        record, steps = await read_plan(self._store, plan_id, now)
        stored, steps = decode_plan(record.body), steps or ()
        gone = [step.name for step in steps if step.document is None]
        jobs = [job for job in await self._store.get_jobs(gone) if job is not None] if gone else []
        documents, until = _documents_of(steps), now + HORIZON_SECONDS * SECOND
        jobs_alone = len(jobs) == len(gone) and not documents.calendars and not documents.channels
        await require_theirs(self._store, plan_id, [each for _, each in documents.jobs], steps, jobs_alone)
        with apart(FORECAST_STEPS):
            plan = await self._worked_out(plan_id, documents, jobs, beside, now, until, lambda change: change)
        read = {(step.kind, step.name): step.before for step in steps}
        stale = [step.name for step in beside.steps if read.get((step.kind, step.name)) != step.before]
        return Looked(replace(plan, expires_at=stored.expires_at), stale, stored.by, stored.approved_by)

    async def discard(self, plan_id: str) -> None:
        """Delete a plan. Raises NotFound."""
        now = self._clock.now()
        await self.look(plan_id)
        record, _ = await read_plan(self._store, plan_id, now)
        line = told("plan.discard", record.name, now)
        await self._store.put_records([record.removal(line)])

    async def _worked_out(
        self,
        plan_id: str,
        documents: Documents,
        gone: Sequence[Job],
        beside: Beside,
        now: Instant,
        until: Instant,
        say: Callable[[Change], T],
    ) -> Plan[T]:
        """`gone`: jobs that are to be deleted."""

        def tell(change: Change) -> T:
            beside.counts[change.action] += 1
            return say(change)

        changes = [tell(await self._calendar(name, each, beside)) for name, each in documents.calendars]
        changes += [tell(await self._channel(name, each, beside)) for name, each in documents.channels]
        changes += await self._of_jobs(documents.jobs, beside, now, until, tell)
        changes += [tell(await self._deleted(job, beside, now, until)) for job in gone]
        before, after = await self._peaks(beside, now)
        at_once = [
            job.name
            for _, job in beside.pairs
            if job is not None and job.next_fire_at is not None and job.next_fire_at <= now + AT_ONCE
        ]
        channels = {name for name, _ in documents.channels}
        herd = None if before is not None and after is not None and before.starts >= after.starts else after
        peak = None if herd is None else (herd.at, herd.starts)
        warnings = await foreseen(self._store, beside.pairs, beside.calendars, channels, peak, now, beside.owner)
        return Plan(
            id=plan_id,
            changes=changes,
            fires_at_once=at_once,
            before=before,
            after=after,
            warnings=warnings,
            expires_at=now + LIFE,
        )

    async def _keep(self, plan: Plan[Any], beside: Beside, now: Instant) -> None:
        """Store it, and delete the oldest ones. One with an error can't be applied, so its steps are not kept."""
        counts = beside.counts
        wrong = counts.get("invalid", 0)
        name, _, key = plan.id.rpartition("-")
        steps = b"" if wrong else sealed(tuple(beside.steps), key)
        origin = who_acts()
        by = "" if origin is None else origin.principal.name
        body = msgspec.json.encode(StoredPlan(plan.expires_at, steps, wrong, by, dict(counts)))
        line = told("plan.create", PLAN + name, now, after=dict(counts))
        await self._store.put_records([RecordChange(Record(name=PLAN + name, body=body), records=line)])
        newest = await self._store.list_records(RecordFilter(PLAN, descending=True), None, PLANS_MAX)
        if newest.next_after is not None:
            await self._store.prune_records(PLAN, newest.next_after.removeprefix(PLAN), PAGE_MAX)

    async def prune_expired(self, now: Instant) -> None:
        """Delete plans whose time is over, as of `now`."""
        oldest = uuid7(now - LIFE, bytes(10))
        await self._store.prune_records(PLAN, oldest, PAGE_MAX)

    # ---- records

    async def _calendar(self, name: str, calendar: Calendar | CallerError, beside: Beside) -> Change:
        try:
            if isinstance(calendar, CallerError):
                raise calendar
            beside.contents[name] = await self._calendars.content(calendar)
        except CallerError as error:
            return Change(kind="calendar", name=name, action="invalid", error=error)
        beside.calendars[name] = calendar
        (stored,) = await self._store.get_records([CALENDAR + name])
        before = None if stored is None else decode_calendar(stored.body)
        if before == calendar:
            return Change(kind="calendar", name=name, action="unchanged")
        jobs = [] if before is None else (await self._calendars.compare(name, calendar))[0]
        _step(beside, "calendar", name, calendar, stored)
        return replace(_change("calendar", name, before, calendar, shown_calendar), jobs=jobs)

    async def _channel(self, name: str, channel: AnyChannel | CallerError, beside: Beside) -> Change:
        (stored,) = await self._store.get_records([CHANNEL + name])
        before = None if stored is None else decode_channel(stored.body)
        try:
            if isinstance(channel, CallerError):
                raise channel
            wanted = await self._channels.wanted(channel, before)
        except CallerError as error:
            return Change(kind="channel", name=name, action="invalid", error=error)
        if wanted == before:
            return Change(kind="channel", name=name, action="unchanged")
        _step(beside, "channel", name, channel, stored)
        return _change("channel", name, before, wanted, shown_channel)

    # ---- jobs

    async def _of_jobs(
        self,
        given: Sequence[tuple[str, JobDefinition | CallerError]],
        beside: Beside,
        now: Instant,
        until: Instant,
        tell: Callable[[Change], T],
    ) -> list[T]:
        changes: list[Change] = []
        slices, names = Slices(), set[str]()
        for start in range(0, len(given), BATCH_MAX):
            batch = given[start : start + BATCH_MAX]
            stored = await self._store.get_jobs([name for name, _ in batch])
            for (name, definition), job in zip(batch, stored, strict=True):
                await slices.give_way()
                try:
                    if isinstance(definition, CallerError):
                        raise definition
                    if name in names:
                        raise InvalidJob(f"name: {name!r} is here twice", field="name")
                    names.add(name)
                    changes.append(await self._job(definition, job, beside, now))
                except CallerError as error:
                    changes.append(Change(kind="job", name=name, action="invalid", error=error))
        others = len(beside.steps) - len(beside.pairs)
        beside.pairs = await in_thread(begun_together, beside.pairs, others, now)
        decided = {after.name: (job, after) for job, after in beside.pairs if after is not None}
        said: list[T] = []
        for change in changes:
            if change.action != "invalid" and change.name in decided:
                await slices.give_way()
                try:
                    fires = await evaluate(partial(fire_differences, *decided[change.name], now, until), LIST_STEPS)
                    change = replace(change, fires=fires)
                except CallerError as error:
                    change = Change(kind="job", name=change.name, action="invalid", error=error)
            said.append(tell(change))
        return said

    async def _job(self, definition: JobDefinition, job: Job | None, beside: Beside, now: Instant) -> Change:
        name = definition.name
        if job is None:
            wanted = await self._jobs.job_from(definition, now, beside.contents)
        else:
            require_reach(job)
            require_owned(job, beside.owner, "plan it once without --prune")
            wanted = await self._jobs.wanted(job, definition, now, beside.contents)
        require_reach(wanted)
        jobs = {each.name: each for _, each in beside.pairs if each is not None} if is_join(wanted) else {}
        await require_followed(self._store, wanted, job, jobs)
        if wanted == job:
            return Change(kind="job", name=name, action="unchanged")
        after = wanted
        if job is not None:
            after = (await evaluate(partial(edit, job, wanted, (), now), EDIT_STEPS)).job
        before = None if job is None else digest_of_job(job, definition)
        beside.steps.append(Step("job", name, msgspec.json.encode(definition).decode(), before))
        beside.pairs.append((job, after))
        return _change("job", name, job, after, lambda name, job: definition_of(job))

    async def _pruned(self, labels: Mapping[str, str], kept: set[str]) -> list[Job]:
        """The jobs with these labels that are not among those kept."""
        pages = pages_of(lambda after: self._store.list_jobs(JobFilter(labels=labels), after, PAGE_MAX))
        with reading(bound_caller()):
            return [job async for page in pages for job in page if job.name not in kept]

    async def _deleted(self, job: Job, beside: Beside, now: Instant, until: Instant) -> Change:
        beside.steps.append(Step("job", job.name, None, digest_of_job(job, None)))
        beside.pairs.append((job, None))
        fires = await evaluate(partial(fire_differences, job, None, now, until), LIST_STEPS)
        return Change(kind="job", name=job.name, action="delete", fires=fires)

    async def _peaks(self, beside: Beside, now: Instant) -> tuple[Peak | None, Peak | None]:
        first = now - now % MINUTE + MINUTE
        asked = [(Span(first, first + PEAK_HORIZON, MINUTE), None)]
        changed = {job.name for job, _ in beside.pairs if job is not None}
        holds = await self._holding.look(PLANNED_SECONDS)
        with reading(bound_caller()):
            async with weighed(self._store, asked, holds, without=changed) as (counts,):
                return await in_thread(compared, counts, beside.pairs)


def _change(kind: PlanKind, name: str, before: T | None, after: T, shown: Callable[[str, T], Any]) -> Change:
    """What becomes of one that is new or another. `shown`: as its owner writes it, secrets masked."""
    old = {} if before is None else _plain(shown(name, before))
    # Two that are shown alike differ in masked values.
    fields = fields_compared(old, _plain(shown(name, after))) or [FieldChange("secret", None, SECRET_CHANGED)]
    return Change(kind=kind, name=name, action="create" if before is None else "update", fields=fields)


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain


def _step(beside: Beside, kind: PlanKind, name: str, document: Any, stored: Record | None) -> None:
    before = None if stored is None else digest_of_record(stored)
    beside.steps.append(Step(kind, name, msgspec.json.encode(document).decode(), before))


def _check_caller(documents: Documents) -> None:
    """Calendars and channels are for all; channels for admins."""
    if documents.calendars or documents.channels:
        require_unbound("calendars and channels")
