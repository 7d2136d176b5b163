"""What people and programs ask for about jobs: defined, changed, paused, ended, triggered, backfilled, previewed.

Each operation reads, lets a pure function decide, and writes if nothing changed meanwhile; where it lost a race it
reads again. Signals are published after the write, so that whoever waits need not poll. `operations.py` adds the runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Clock, Instant, to_datetime, to_instant
from horarium.definitions import JobDefinition, TargetCheck, define, definition_of, invalid_job, redefine
from horarium.editing import (
    MOVED_MAX,
    backfill_fires,
    delete,
    follow,
    pause,
    plan_backfill,
    plan_now,
    resume,
    revise,
)
from horarium.errors import (
    AlreadyExists,
    CallerError,
    Conflict,
    HorariumError,
    InvalidJob,
    InvalidRequest,
    NotFound,
)
from horarium.model import (
    PAYLOAD_BYTES_MAX,
    Cause,
    Job,
    Plan,
    Run,
    State,
    uuid7,
)
from horarium.model import run_id as run_id_of
from horarium.moving import move_astray
from horarium.planning import next_fire, plan, trigger_of
from horarium.ports import BATCH_MAX, PAGE_MAX, JobFilter, Page, Signal, Store
from horarium.spreading import spread
from horarium.triggers import FIRES_MAX, Trigger, parse_trigger

RACES_MAX = 50
"""How often an operation that lost a race reads again before it gives up."""

YIELD_EVERY = 50
"""After so many jobs of a batch, others have their turn."""

Entropy = Callable[[int], bytes]
"""So many random bytes."""


class Put(StrEnum):
    """What became of a job that was put."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class JobOperations:
    """Everything that can be asked of one namespace. Raises the errors of `errors`, nothing else.

    `settled` is called with every settled run and its job, for metrics and trimming.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        entropy: Entropy,
        check_target: TargetCheck,
        settled: Callable[[Run, Job | None], None] = lambda run, job: None,
        cancel_asked: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.signal = signal
        self._entropy = entropy
        self._check_target = check_target
        self._settled = settled
        self._cancel_asked = cancel_asked

    # ---- jobs

    async def create_job(self, definition: JobDefinition) -> Job:
        """Define a new job. Raises AlreadyExists if the name is taken."""
        (job,) = await self.create_jobs([definition])
        if job is None:
            message = f"job {definition.name!r} exists already; use PUT to replace it, or another name"
            raise AlreadyExists(message, field="name")
        return job

    async def create_jobs(self, definitions: Sequence[JobDefinition]) -> list[Job | None]:
        """Define many new jobs, all checked before any is written. None where the name is taken."""
        now = self.clock.now()
        jobs = [self._define(definition, now) for definition in definitions]
        added: list[bool] = []
        for start in range(0, len(jobs), BATCH_MAX):
            added += await self.store.add_jobs(jobs[start : start + BATCH_MAX])
        self.signal.publish("jobs")
        return [job if new else None for job, new in zip(jobs, added, strict=True)]

    def _define(self, definition: JobDefinition, now: Instant) -> Job:
        id = uuid7(now, self._entropy(10))
        return define(definition, id=id, now=now, check_target=self._check_target)

    async def put_job(self, definition: JobDefinition) -> tuple[Job, bool]:
        """Define the job, or bring the existing one to this content. The second value: whether it is new. Unchanged
        content changes nothing, and never moves the next fire time."""
        for _ in range(RACES_MAX):
            if (await self.store.get_jobs([definition.name]))[0] is None:
                (created,) = await self.create_jobs([definition])
                if created is not None:
                    return created, True
                continue
            try:
                return await self._revise(definition.name, lambda job: definition), False
            except NotFound:
                continue
        raise contended(definition.name)

    async def put_jobs(
        self, definitions: Sequence[JobDefinition], *, dry_run: bool = False
    ) -> list[Put | HorariumError]:
        """Put many jobs, `BATCH_MAX` at the most, each for itself: what became of it, or why nothing did. Jobs of an
        interval that are new, or get a new trigger, begin spread over it. `dry_run`: says so, and writes nothing."""
        now = self.clock.now()
        answers: list[Put | HorariumError] = [Put.UNCHANGED] * len(definitions)
        created: dict[int, Job] = {}
        changed: dict[int, Job] = {}
        stored = await self.store.get_jobs([definition.name for definition in definitions])
        names: set[str] = set()
        for index, (definition, job) in enumerate(zip(definitions, stored, strict=True)):
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                if definition.name in names:
                    raise InvalidJob(f"name: {definition.name!r} stands here twice", field="name")
                names.add(definition.name)
                if job is None:
                    created[index] = self._define(definition, now)
                elif redefine(job, definition, now=now, check_target=self._check_target) != job:
                    changed[index] = job
            except CallerError as error:
                answers[index] = error
        for index in (*created, *changed):
            answers[index] = Put.CREATED if index in created else Put.UPDATED
        if not dry_run:
            left = await self._add_spread(created, now) + await self._revise_spread(changed, definitions, now)
            for index in left:
                try:
                    answers[index] = Put.CREATED if (await self.put_job(definitions[index]))[1] else Put.UPDATED
                except (CallerError, Conflict) as error:
                    answers[index] = error
        return answers

    async def _add_spread(self, jobs: Mapping[int, Job], now: Instant) -> list[int]:
        """Add new jobs. Those whose name was taken meanwhile."""
        if not jobs:
            return []
        added = await self.store.add_jobs(spread(list(jobs.values()), now))
        self.signal.publish("jobs")
        return [index for index, new in zip(jobs, added, strict=True) if not new]

    async def _revise_spread(
        self, jobs: Mapping[int, Job], definitions: Sequence[JobDefinition], now: Instant
    ) -> list[int]:
        """Change jobs in one go. Those left that need more than one look: paused or to be paused, due, or changed by
        somebody else meanwhile."""
        simple = {
            index: job
            for index, job in jobs.items()
            if job.enabled and definitions[index].enabled is not False
            if job.next_fire_at is None or job.next_fire_at > now
        }
        unfinished = await self.store.unfinished_runs([job.id for job in simple.values()]) if simple else {}
        plans = {
            index: self._revised(job, definitions[index], unfinished[job.id], now) for index, job in simple.items()
        }
        wanted = {index: planned for index, planned in plans.items() if planned is not None}
        retimed = [index for index, planned in wanted.items() if planned.job.trigger != simple[index].trigger]
        for index, job in zip(retimed, spread([wanted[index].job for index in retimed], now), strict=True):
            wanted[index] = replace(wanted[index], job=job)
        done = await self.store.commit_plans(list(wanted.values()), now) if wanted else []
        if any(done):
            self.signal.publish("jobs")
        for planned, ok in zip(wanted.values(), done, strict=True):
            if ok:
                self._signal_runs(planned.runs)
        many = [planned.job.id for planned in wanted.values() if len(planned.withdrawals) >= MOVED_MAX]
        await move_astray(self.store, self.signal, many, now)
        settled = {index for index, ok in zip(wanted, done, strict=True) if ok}
        return [index for index in jobs if index not in settled]

    async def patch_job(self, name: str, changes: Mapping[str, Any]) -> Job:
        """Apply a JSON merge patch (RFC 7396) to the job's definition."""
        if changes.get("name", name) != name:
            raise invalid_job("the name of a job can't be changed - at `$.name`")

        def patched(job: Job) -> JobDefinition:
            fields = patch_definition(msgspec.to_builtins(definition_of(job)), changes)
            try:
                return msgspec.convert(fields, JobDefinition)
            except msgspec.ValidationError as error:
                raise invalid_job(str(error)) from None

        return await self._revise(name, patched)

    async def _revise(self, name: str, wanted: Callable[[Job], JobDefinition]) -> Job:
        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan | None:
            return self._revised(job, wanted(job), unfinished, now)

        job, planned = await self._change_job(name, change)
        if planned is not None and len(planned.withdrawals) >= MOVED_MAX:
            await move_astray(self.store, self.signal, [job.id], self.clock.now())
        return job if planned is None or job.enabled else await self._withdraw_rest(job, planned)

    def _revised(self, job: Job, wanted: JobDefinition, unfinished: Sequence[Run], now: Instant) -> Plan | None:
        """The plan that brings the job to this content, and its waiting runs along; None where it is as it shall be."""
        revised = redefine(job, wanted, now=now, check_target=self._check_target)
        return None if revised == job else follow(self._edited(job, revised, unfinished, now), unfinished, now)

    def _edited(self, job: Job, revised: Job, unfinished: Sequence[Run], now: Instant) -> Plan:
        enabled = revised.enabled
        changed = revise(job, replace(revised, enabled=job.enabled), unfinished, now)
        if enabled == job.enabled:
            return changed
        if enabled:
            switched = resume(changed.job, now)
            return replace(changed, job=switched.job, runs=(*changed.runs, *switched.runs))
        # What was planned ahead is withdrawn once, by the pause: it alone accounts for what was claimed already.
        paused = pause(replace(changed.job, fires_count=job.fires_count), unfinished, now, None)
        return replace(paused, runs=changed.runs)

    async def get_job(self, name: str) -> Job:
        """The job of that name. Raises NotFound."""
        job = (await self.store.get_jobs([name]))[0]
        if job is None:
            raise NotFound(f"there is no job named {name!r}")
        return job

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        """Jobs by name; 200 a page at the most."""
        return await self.store.list_jobs(where, after, min(limit, PAGE_MAX))

    async def delete_job(self, name: str) -> None:
        """End the job: pending runs are cancelled, running ones asked to stop; its history stays until pruned."""

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan:
            return delete(job, unfinished, now)

        job, _ = await self._change_job(name, change, settle_due=False)
        await self._cancel_rest(job)
        self.signal.publish("cancel")

    async def _cancel_rest(self, job: Job) -> None:
        """Cancel what was claimed or released in the moment in which its job was deleted. No run comes to it."""
        for _ in range(RACES_MAX):
            unfinished = (await self.store.unfinished_runs([job.id]))[job.id]
            now = self.clock.now()
            changes = delete(job, unfinished, now).changes
            if not changes:
                return
            await self.store.settle_runs(changes, now)

    async def pause_job(self, name: str, reason: str | None = None) -> Job:
        """No later fire time runs until it is resumed. A paused job stays as it is."""

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan | None:
            return pause(job, unfinished, now, reason) if job.enabled else None

        job, planned = await self._change_job(name, change)
        return job if planned is None else await self._withdraw_rest(job, planned)

    async def _withdraw_rest(self, paused: Job, planned: Plan) -> Job:
        """End what was claimed ahead of its time in the moment in which its job was paused: the pause meant to withdraw
        it and found it changed. Nothing of it if the job was resumed meanwhile. The job as it then is."""
        meant = {run.id for run in planned.withdrawals} | {change.run.id for change in planned.changes}
        paused_at = paused.paused_at
        if not meant or paused_at is None:
            return paused

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan | None:
            left = [run for run in unfinished if run.id in meant and run.created_at <= paused_at]
            again = pause(job, left, paused_at, job.pause_reason)
            if job.paused_at != paused_at or not (again.changes or again.withdrawals):
                return None
            cursor = max(job.planned_until, again.job.planned_until)
            return replace(again, job=replace(again.job, planned_until=cursor, fires_count=job.fires_count))

        for _ in range(RACES_MAX):
            job, more = await self._change_job(paused.name, change)
            if more is None:
                return job
        raise contended(paused.name)

    async def resume_job(self, name: str) -> Job:
        """Go on with the fire times from now on. A job that is not paused stays as it is."""

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan | None:
            return None if job.enabled else resume(job, now)

        return (await self._change_job(name, change))[0]

    async def _change_job(
        self,
        name: str,
        change: Callable[[Job, list[Run], Instant], Awaitable[Plan | None]],
        settle_due: bool = True,
    ) -> tuple[Job, Plan | None]:
        """Read, decide, write if unchanged; again where somebody was faster. Fire times that are owed by now are
        planned first (under the rule that owed them), unless the job ends."""
        for _ in range(RACES_MAX):
            job = await self.get_job(name)
            now = self.clock.now()
            if not job.enabled:
                job = await self._past_what_ran(job, now)
            unfinished = (await self.store.unfinished_runs([job.id]))[job.id]
            if settle_due and job.next_fire_at is not None and job.next_fire_at <= now:
                owed = plan(job, unfinished, now)
                if (await self.store.commit_plans([owed], now))[0]:
                    self._signal_runs(owed.runs)
                continue
            planned = await change(job, unfinished, now)
            if planned is None:
                return job, None
            if (await self.store.commit_plans([planned], now))[0]:
                self.signal.publish("jobs")
                self._signal_runs(planned.runs)
                return replace(planned.job, version=planned.job.version + 1), planned
        raise contended(name)

    async def _past_what_ran(self, job: Job, now: Instant) -> Job:
        """The paused job, its cursor beyond fire times that ran all the same: those that were planned ahead and claimed
        while the pause was being written. What passes in the pause is recorded from there on."""
        for _ in range(RACES_MAX):
            fire = next_fire(replace(job, enabled=True), job.planned_until)
            if fire is None or fire > now or (await self.store.get_runs([run_id_of(job.id, fire)]))[0] is None:
                break
            job = replace(job, planned_until=fire)
        return job

    async def trigger_job(self, name: str, payload: bytes | None = None, unique_key: str | None = None) -> Run:
        """A run now, under the job's overlap policy (so it may come back `skipped`). With `unique_key`, asking again
        gives the run that was made the first time."""
        check_payload(payload)
        made: list[Run] = []

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan:
            planned, run = plan_now(job, unfinished, now, payload, await self._taken(job, now))
            run = replace(run, unique_key=unique_key)
            made[:] = [run]
            return replace(planned, runs=(run,))

        if unique_key is not None and (found := await self.store.get_run_by_key(unique_key)) is not None:
            return found
        await self._change_job(name, change)
        self.signal.publish("cancel")
        stored = (await self.store.get_runs([made[0].id]))[0]
        if stored is None and unique_key is not None:
            stored = await self.store.get_run_by_key(unique_key)
        return stored or made[0]

    async def _taken(self, job: Job, now: Instant) -> set[Instant]:
        """The instants from `now` on, without a break, for which the job has a run already."""
        taken: set[Instant] = set()
        for start in range(now, now + PAGE_MAX * RACES_MAX, PAGE_MAX):
            instants = range(start, start + (PAGE_MAX if taken else 1))
            runs = await self.store.get_runs([run_id_of(job.id, instant) for instant in instants])
            taken.update(instant for instant, run in zip(instants, runs, strict=True) if run is not None)
            if None in runs:
                break
        return taken

    async def backfill_job(self, name: str, start: datetime, end: datetime) -> list[Run]:
        """Runs for the fire times in [start, end), 1,000 at the most; fire times that have a run keep theirs.
        Asked again, it answers with the runs that it made the first time."""
        first, last = to_instant(start), to_instant(end)
        if first >= last:
            raise InvalidRequest("end: must be later than start", field="end")

        asked: list[str] = []

        async def change(job: Job, unfinished: list[Run], now: Instant) -> Plan:
            end = min(last, now)
            fires = backfill_fires(job, first, end)
            asked[:] = [run_id_of(job.id, fire) for fire in fires]
            there = await self.store.get_runs(asked)
            taken = {fire for fire, run in zip(fires, there, strict=True) if run is not None}
            return plan_backfill(job, unfinished, first, end, now, taken)

        await self._change_job(name, change)
        stored = await self.store.get_runs(asked)
        return [run for run in stored if run is not None and run.cause is Cause.BACKFILL]

    async def fires(self, name: str, count: int) -> tuple[list[datetime], str]:
        """The next fire times of a job, and its rule in words. Those of a paused job are none."""
        job = await self.get_job(name)
        after = max(self.clock.now(), 0)
        return [to_datetime(fire) for fire in _job_fires(job, after, count)], trigger_words(job)

    def preview(self, spec: Mapping[str, Any], after: datetime | None, count: int) -> tuple[list[datetime], str]:
        """The fire times that a trigger would yield after an instant (left out: now), and the rule in words."""
        start = self.clock.now() if after is None else to_instant(after)
        if not 0 <= start <= INSTANT_MAX:
            raise InvalidRequest("after: lies outside of the years 1970 to 2200", field="after")
        trigger: Trigger = parse_trigger(dict(spec)).anchored(start)
        if not 0 <= count <= FIRES_MAX:
            raise InvalidRequest(f"count: must be from 0 to {FIRES_MAX}", field="count")
        return [to_datetime(fire) for fire in trigger.list_fires(start, INSTANT_MAX, count)], trigger.words()

    # ---- shared with the operations on runs

    def _signal_runs(self, runs: Sequence[Run]) -> None:
        for queue in sorted({run.queue for run in runs if run.state is State.PENDING}):
            self.signal.publish(f"queue:{queue}")


def trigger_words(job: Job) -> str:
    """The job's rule in words."""
    return trigger_of(job).words()


def patch_definition(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    """The definition with a merge patch applied. A trigger or target of another type takes the place of the old one:
    fields of the old type would make no sense in it."""
    kept = dict(fields)
    for field in ("trigger", "target"):
        change = changes.get(field)
        if isinstance(change, Mapping) and change.get("type", kept[field]["type"]) != kept[field]["type"]:
            kept[field] = {}
    return merge_patch(kept, dict(changes))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _job_fires(job: Job, after: Instant, count: int) -> list[Instant]:
    if not 0 <= count <= FIRES_MAX:
        raise InvalidRequest(f"count: must be from 0 to {FIRES_MAX}", field="count")
    left = count if job.fires_max is None else min(count, job.fires_max - job.fires_count)
    found: list[Instant] = []
    fire = next_fire(job, after)
    while fire is not None and len(found) < left:
        found.append(fire)
        fire = next_fire(job, fire)
    return found


def contended(what: str) -> Conflict:
    return Conflict(f"{what} changes faster than this request could be carried out; try again")


def check_payload(payload: bytes | None) -> None:
    check_size("payload", payload, PAYLOAD_BYTES_MAX)


def check_size(field: str, text: bytes | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {limit:,} are kept", field=field)
