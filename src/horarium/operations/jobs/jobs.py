"""Requests about jobs: defined, changed, paused, ended, triggered, backfilled, previewed.

Each operation says what it wants as a rule; `changes.py` reads, lets it decide, and writes if nothing has changed.
Signals are published after the write, so that those who wait need not poll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import bound_caller, who_acts
from horarium.clock import INSTANT_MAX, Instant, to_datetime, to_instant
from horarium.errors import AlreadyExists, Conflict, Forbidden, InvalidRequest, NotFound, TooExpensive
from horarium.model import PAYLOAD_BYTES_MAX, Cause, Job, Plan, Run, retry_key, trigger_key, uuid7
from horarium.model import run_id as run_id_of
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.reaching import may_reach_definition, require_followed, require_run
from horarium.operations.bounds.telling import require_channels
from horarium.operations.calendars import NOT_STORED, known_days, with_known_days
from horarium.operations.jobs.backfilling import Backfilling
from horarium.operations.jobs.changes import Changes, Decide, Seen, always
from horarium.operations.jobs.defining import Defining
from horarium.operations.jobs.grouping import Group, Reach
from horarium.operations.jobs.passed import in_stretches
from horarium.operations.jobs.triggering import Request, Triggering
from horarium.operations.jobs.versions import Versions, along_created
from horarium.operations.writing.auditing import require_reach, told_asked, told_backfill
from horarium.operations.writing.context import RACES_MAX, Context, contended
from horarium.operations.writing.named import job_named
from horarium.operations.writing.tracing import asked_trace
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Page, Store
from horarium.rules.compiled import after_end, forget_trigger, words_of
from horarium.rules.editing import backfill_fires, delete, edit, fires_beyond, pause, plan_backfill, plan_now
from horarium.rules.joins import fire_of, is_join, repeating
from horarium.rules.planning import job_fires, needs_unfinished, resume, timed
from horarium.triggers import FIRES_MAX, Trigger, parse_trigger
from horarium.triggers.budget import LIST_STEPS, PLAN_STEPS, PLAN_STEPS_MAX
from horarium.triggers.business_days import Content
from horarium.wire.definitions import JobDefinition, TargetCheck, job_from, with_definition
from horarium.wire.faults import check_size, instant_of
from horarium.wire.patches import patched_definition

EDIT_STEPS = 2 * PLAN_STEPS
"""For what follows from another rule: the fire times that it takes back, and the next one."""

PROBED = 20
"""Instants that are looked at in one go for a run by hand: those that are made together take one each."""

COMPOSED = frozenset({"any_of", "except", "between"})
"""Rules of many parts: a member takes a tenth of a millisecond to be put into words."""

COUNT_STEPS = 4 * LIST_STEPS
"""For how many fire times are left."""


class Backfill(Struct, frozen=True):
    """The result of one backfill. `left`: fire times of the span that it did not get to, counted up to a limit; they
    begin at `next_start`."""

    runs: list[Run]
    left: int = 0
    next_start: datetime | None = None


class JobOperations:
    """Operations on the jobs of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(
        self,
        context: Context,
        check_target: TargetCheck,
        changes: Changes,
        triggering: Triggering,
        backfilling: Backfilling,
        versions: Versions,
    ) -> None:
        self._store, self._clock, self._entropy = context.store, context.clock, context.entropy
        self._defining = Defining(context)
        self._check_target = check_target
        self.changes = changes
        self._triggering = triggering
        self._backfilling = backfilling
        self.versions = versions

    # ---- defined

    async def create_job(self, definition: JobDefinition) -> Job:
        """Define a new job. Raises AlreadyExists if the name is taken."""
        now = self._clock.now()
        job = await self.job_from(definition, now)
        require_reach(job)
        (is_new,) = await _add(self._store, self._defining, [job], now)
        if not is_new:
            message = f"job {definition.name!r} exists already; use PUT to replace it, or another name"
            raise AlreadyExists(message, field="name")
        return job

    async def create_jobs(self, definitions: Sequence[JobDefinition]) -> list[Job | None]:
        """Define many new jobs, all checked before any is written. None where the name is taken."""
        now = self._clock.now()
        jobs = [await self.job_from(definition, now) for definition in definitions]
        require_reach(*jobs)
        return [
            job if new else None
            for job, new in zip(jobs, await _add(self._store, self._defining, jobs, now), strict=True)
        ]

    async def job_from(
        self, definition: JobDefinition, now: Instant, beside: Mapping[str, Content] = NOT_STORED
    ) -> Job:
        """A new job, not stored yet. `beside`: calendars that are about to be stored. Raises InvalidJob or
        InvalidTrigger."""
        id = uuid7(now, self._entropy(10))
        definition = await with_known_days(self._store, _marked(definition), beside)
        return await _evaluate_job(lambda: job_from(definition, id=id, now=now, check_target=self._check_target))

    async def put_job(self, definition: JobDefinition) -> tuple[Job, bool]:
        """Define the job, or bring the existing one to this content. The second value: whether it is new. Unchanged
        content changes nothing, and never moves the next fire time."""
        for _ in range(RACES_MAX):
            if (await self._store.get_jobs([definition.name]))[0] is None:
                (created,) = await self.create_jobs([definition])
                if created is not None:
                    return created, True
                continue
            try:
                return await self.bring_to(definition.name, lambda job: definition), False
            except NotFound:
                continue
        raise contended(definition.name)

    async def patch_job(self, name: str, changes: Mapping[str, Any]) -> Job:
        """Apply a JSON merge patch (RFC 7396) to the job's definition."""
        return await self.bring_to(name, lambda job: patched_definition(job, changes))

    async def revert_job(self, name: str, version: int) -> Job:
        """Bring the job back to the content that it had at this version; make one that was deleted again. Raises
        NotFound."""
        (job,) = await self._store.get_jobs([name])
        if job is None:
            (made,) = await self.create_jobs([await self.versions.get_deleted(name, version)])
            if made is None:
                raise contended(name)
            return made
        kept = await self.versions.get(job, version)
        if (caller := bound_caller()) is not None and not may_reach_definition(caller, kept):
            raise Forbidden(f"{caller.name} may not see what job {name!r} was at version {version}")

        def content(now_stored: Job) -> JobDefinition:
            if now_stored.id != job.id:
                raise NotFound(f"job {name!r} was deleted and defined again; it has no version {version}")
            return kept

        return await self.bring_to(name, content, "job.revert")

    async def bring_to(self, name: str, content: Callable[[Job], JobDefinition], action: str = "job.update") -> Job:
        """Bring the job to the content that follows from the stored one, while others change it. Raises NotFound."""

        async def decide(seen: Seen) -> Plan | None:
            wanted = await self.wanted(seen.job, content(seen.job), seen.now)
            require_reach(wanted)
            await require_followed(self._store, wanted, seen.job)
            await require_channels(self._store, wanted, seen.job)
            if wanted == seen.job:
                return None
            return await evaluate(lambda: edit(seen.job, wanted, seen.unfinished, seen.now, seen.ran), EDIT_STEPS)

        async def reach(job: Job) -> Reach:
            wanted = await self.wanted(job, content(job), self._clock.now())
            if wanted == job:
                return Reach.NONE
            return Reach.AHEAD if wanted.queue == job.queue else Reach.SOME

        return await self.changes.change(name, decide, reach, action)

    async def wanted(
        self, job: Job, definition: JobDefinition, now: Instant, beside: Mapping[str, Content] = NOT_STORED
    ) -> Job:
        """The stored job with this content; an equal one if there is nothing to change."""
        definition = await with_known_days(self._store, _marked(definition), beside)
        return await _evaluate_job(lambda: with_definition(job, definition, now=now, check_target=self._check_target))

    # ---- looked at

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NotFound."""
        return await job_named(self._store, name)

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        """Jobs by name; at most 200 a page."""
        return await self._store.list_jobs(where, after, min(limit, PAGE_MAX))

    async def fires(self, name: str, count: int) -> tuple[list[datetime], str]:
        """The next fire times of a job, and its rule in words. Those of a paused job are none. Raises TooExpensive."""
        job = await self.get_job(name)
        _check_count(count)
        left = count if job.fires_max is None else max(0, min(count, job.fires_max - job.fires_count))
        now = max(self._clock.now(), 0)
        return await evaluate(lambda: ([*map(to_datetime, job_fires(job, now, left))], words_of(job)), LIST_STEPS)

    async def preview(self, spec: Mapping[str, Any], after: datetime | None, count: int) -> tuple[list[datetime], str]:
        """The fire times that a trigger would yield after an instant (left out: now), and the rule in words. Raises
        TooExpensive."""
        start = self._clock.now() if after is None else instant_of(after, "after")
        known = await known_days(self._store, spec)
        trigger: Trigger = await evaluate(lambda: parse_trigger(known).anchored(start), PLAN_STEPS)
        _check_count(count)

        def ask() -> tuple[list[datetime], str]:
            return [*map(to_datetime, trigger.list_fires(start, INSTANT_MAX, count))], trigger.words()

        return await evaluate(ask, LIST_STEPS)

    # ---- paused and ended

    async def delete_job(self, name: str) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop; its history stays until pruned."""

        async def decide(seen: Seen) -> Plan:
            if ran := await in_stretches(self._store, seen.job):
                with suppress(TooExpensive):  # then its rows count missed fire times by stretch
                    return await evaluate(lambda: delete(seen.job, seen.now, ran), PLAN_STEPS_MAX)
            return delete(seen.job, seen.now)

        forget_trigger(await self.changes.change(name, decide, always(Reach.SOME), "job.delete", plan_owed=False))

    async def pause_job(self, name: str, reason: str | None = None, until: datetime | None = None) -> Job:
        """No later fire time runs until it is resumed, or until an instant. A paused job stays as it is, but for
        another such instant."""
        end = None if until is None else to_instant(until)
        if end is not None and not self._clock.now() < end <= INSTANT_MAX:
            raise InvalidRequest("until: must lie in the future, and before the year 2200", field="until")

        async def decide(seen: Seen) -> Plan | None:
            if seen.job.enabled:
                return pause(seen.job, seen.unfinished, seen.now, reason, end, seen.ran)
            if end is None or seen.job.paused_until == end:
                return None
            return Plan(timed(replace(seen.job, paused_until=end, updated_at=seen.now)))

        async def reach(job: Job) -> Reach:
            return Reach.AHEAD if job.enabled else Reach.NONE

        return await self.changes.change(name, decide, reach, "job.pause")

    async def resume_job(self, name: str) -> Job:
        """Go on with the fire times from now on. A job that is not paused stays as it is."""

        async def decide(seen: Seen) -> Plan | None:
            if seen.job.enabled:
                return None
            return await evaluate(lambda: resume(seen.job, seen.now, seen.ran), EDIT_STEPS)

        return await self.changes.change(name, decide, always(Reach.NONE), "job.resume")

    # ---- runs by hand

    async def trigger_job(
        self,
        name: str,
        payload: bytes | None = None,
        key: str | None = None,
        *,
        retry_of: Run | None = None,
        follows: str | None = None,
    ) -> Run:
        """A run now, under the job's overlap policy (so it may come back `skipped`). With a `key`, asking again gives
        the run of this job that was made the first time. `retry_of`: the run whose work it does again. `follows`: the
        key of the follow-up that asks."""
        check_size("payload", payload, PAYLOAD_BYTES_MAX)
        cause = Cause.MANUAL if follows is None else Cause.FOLLOW_UP
        unique_key = follows
        if key is not None:
            unique_key = trigger_key(name, key) if retry_of is None else retry_key(retry_of.id, key)
        if unique_key is not None and (found := await self._store.get_run_by_key(unique_key)) is not None:
            await require_run(self._store, found)
            (job,) = [None] if key is None else await self._store.get_jobs([name])
            if job is not None and job.id != found.job_id:
                raise Conflict(f"the key {key!r} was used for run {found.id} of a job {name!r} that was deleted since")
            return found
        told = f"job.trigger job/{name}" if retry_of is None else f"run.retry run/{retry_of.id}"
        repeats, trace = None if retry_of is None else fire_of(retry_of), asked_trace()
        asked = Request(name, payload, unique_key, told, who_acts(), cause=cause, trace=trace, repeats=repeats)
        return await self._triggering.trigger(asked) or await self._trigger_in_turn(asked)

    async def _trigger_in_turn(self, asked: Request) -> Run:
        """A run of a job whose policy asks for a look at its other runs."""
        made: list[Run] = []
        unique_key = asked.unique_key

        async def decide(seen: Seen) -> Plan | None:
            if unique_key is not None:
                found = await self._store.get_run_by_key(unique_key) or seen.group.with_key(unique_key)
                if found is not None:
                    made[:] = [found]
                    return None
            taken = await self._taken(seen)
            planned, run = plan_now(seen.job, seen.unfinished, seen.now, asked.payload, taken)
            if not run.finished:
                run = await self._triggering.holding.said(run, seen.job)
            run = repeating(replace(run, unique_key=unique_key, cause=asked.cause), asked.repeats)
            made[:] = [self._triggering.tracing.mark(run, asked.trace)]
            records = told_asked(asked.origin, asked.told, made[0], seen.now)
            return replace(planned, runs=tuple(made), along={made[0].id: tuple(records)})

        await self.changes.change(asked.name, decide, always(Reach.COUNTED))
        stored = next(iter(await self._backfilling.runs([made[0].id])), None)
        if stored is None and unique_key is not None:
            stored = await self._store.get_run_by_key(unique_key)
        return stored or made[0]

    async def _taken(self, seen: Seen) -> set[Instant]:
        """The instants from now on, without a break, for which the job has a run already."""
        taken, free = seen.group.taken, seen.group.free
        for instant in range(seen.now, seen.now + PAGE_MAX * RACES_MAX):
            if instant in taken:
                continue
            if instant not in free:
                instants = range(instant, instant + PROBED)
                runs = await self._store.get_runs([run_id_of(seen.job.id, each) for each in instants])
                there = {each for each, run in zip(instants, runs, strict=True) if run is not None}
                taken.update(there)
                free.update(each for each in instants if each not in there)
            if instant not in taken:
                break
        return taken

    async def backfill_job(self, name: str, start: datetime, end: datetime) -> Backfill:
        """Runs for the fire times in [start, end), at most 1,000; fire times that have a run keep theirs. Asked again,
        it answers with the runs that it made the first time. What it did not get to is said."""
        first, last, last_asked = to_instant(start), to_instant(end), end
        if first > last:
            raise InvalidRequest("end: must not be earlier than start", field="end")
        if first > self._clock.now():
            raise InvalidRequest("start: lies ahead; a backfill is for fire times that have passed", field="start")
        asked: list[Instant] = []
        job_id = ""

        async def decide(seen: Seen) -> Plan | None:
            nonlocal job_id
            if after_end(seen.job) is not None:
                raise InvalidRequest(f"job {name!r} counts from the end of its last run; no fire times of it passed")
            if is_join(seen.job):
                raise InvalidRequest(f"job {name!r} follows from runs of others; backfill these, or trigger it")
            end = min(last, seen.now)
            asked[:] = await evaluate(lambda: backfill_fires(seen.job, first, end), LIST_STEPS)
            job_id = seen.job.id
            taken = {run.fire_at for run in await self._backfilling.runs([run_id_of(job_id, fire) for fire in asked])}
            planned = await evaluate(
                lambda: plan_backfill(seen.job, seen.unfinished, first, end, seen.now, taken, seen.ran), LIST_STEPS
            )
            planned = replace(planned, records=(*planned.records, *told_backfill(planned, start, last_asked, seen.now)))
            changes_it = needs_unfinished(seen.job) or not seen.job.enabled or seen.job.approval is not None
            if changes_it:
                return planned
            await self._backfilling.add(planned)
            return None

        async def reach(job: Job) -> Reach:
            return Reach.ALL if needs_unfinished(job) else Reach.NONE

        job = await self._backfilled_beside(name, decide, last) or await self.changes.change(name, decide, reach)
        stored = await self._backfilling.runs([run_id_of(job_id, fire) for fire in asked])
        made = [run for run in stored if run.cause is Cause.BACKFILL]
        now = min(last, self._clock.now())
        left = await evaluate(lambda: fires_beyond(job, asked, now), COUNT_STEPS)
        return Backfill(made, left, to_datetime(asked[-1] + 1) if left else None)

    async def _backfilled_beside(self, name: str, decide: Decide, end: Instant) -> Job | None:
        """Where runs may overlap and nothing of the span is owed, a backfill changes nothing of the job, and waits for
        no change of it. None: that is not so."""
        job, now = await self._backfilling.job(name), self._clock.now()
        is_owed = job.next_fire_at is not None and job.next_fire_at < min(end, now)
        if is_owed or needs_unfinished(job) or not job.enabled or job.approval is not None:
            return None
        require_reach(job)
        await decide(Seen(job, [], now, [], Group(job, now)))
        return job


async def _add(store: Store, defining: Defining, jobs: Sequence[Job], now: Instant) -> list[bool]:
    """Check whom these follow, and write them. One that follows from others is written only if no other one was
    meanwhile: two that are defined at one moment are no circle."""
    beside = {job.name: job for job in jobs}
    alone = len(jobs) == 1 and is_join(jobs[0])
    for _ in range(RACES_MAX):
        seen = await defining.joins() if alone else 0
        for job in jobs:
            await require_followed(store, job, beside=beside)
            await require_channels(store, job)
        if not alone:
            batches = [jobs[start : start + BATCH_MAX] for start in range(0, len(jobs), BATCH_MAX)]
            return [new for some in batches for new in await defining.add(some, along_created(some, now))]
        if (added := await defining.add_join(jobs[0], along_created(jobs, now), seen)) is not None:
            return [added]
    raise contended(jobs[0].name)


async def say_words(job: Job) -> None:
    """Have the words of a rule of many parts at hand before it is shown, worked out beside the event loop. Where too
    many ask at once, they are worked out as they are shown."""
    if has_many_parts(job):
        with suppress(TooExpensive):
            await evaluate(lambda: words_of(job), LIST_STEPS)


def has_many_parts(job: Job) -> bool:
    """Whether its rule takes long to be put into words."""
    return job.trigger.get("type") in COMPOSED


async def _evaluate_job(make: Callable[[], Job]) -> Job:
    """The job that is made; and, where a caller acts, what its rule is called: it is about to be shown, and is kept."""
    is_shown = who_acts() is not None

    def ask() -> Job:
        job = make()
        if is_shown and has_many_parts(job):
            words_of(job)
        return job

    return await evaluate(ask, PLAN_STEPS)


def _check_count(count: int) -> None:
    if not 0 <= count <= FIRES_MAX:
        raise InvalidRequest(f"count: must be from 0 to {FIRES_MAX}", field="count")


def _marked(definition: JobDefinition) -> JobDefinition:
    """With the labels to which its author is bound."""
    caller = bound_caller()
    if caller is None or caller.may_label(definition.labels):
        return definition
    return replace(definition, labels=dict(caller.marked(definition.labels)))
