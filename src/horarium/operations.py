"""What people and programs ask for, carried out: jobs defined and changed, runs asked for, claimed and settled.

The API, the command line's local mode and the library all come through here. Each operation reads, lets a pure
function decide, and writes if nothing changed meanwhile; where it lost a race it reads again. It publishes signals
after the write, so that whoever waits need not poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import INSTANT_MAX, Clock, Instant, to_datetime, to_instant, to_micros
from horarium.definitions import JobDefinition, TargetCheck, define, definition_of, invalid_job, redefine
from horarium.errors import (
    AlreadyExists,
    Conflict,
    HorariumError,
    InvalidRequest,
    LeaseLost,
    NotFound,
    StateConflict,
)
from horarium.model import (
    CLAIMED,
    DEFAULT_RUN_POLICY,
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    Cause,
    Job,
    Node,
    Outcome,
    Plan,
    Run,
    RunChange,
    State,
    uuid7,
)
from horarium.model import run_id as run_id_of
from horarium.planning import (
    backfill_fires,
    delete,
    next_fire,
    pause,
    plan,
    plan_backfill,
    plan_now,
    resume,
    revise,
    trigger_of,
)
from horarium.ports import BATCH_MAX, PAGE_MAX, Beat, JobFilter, Page, Pulse, RunFilter, Signal, Stats, Store
from horarium.settling import cancel, retention_of, settle
from horarium.triggers import FIRES_MAX, Trigger, parse_trigger

RACES_MAX = 50
"""How often an operation that lost a race reads again before it gives up."""
BATCHES_AT_ONCE = 4
"""Batches of runs that are handed to the store without waiting for one another."""
NODES_SHOWN_SECONDS = 24 * 3600

Entropy = Callable[[int], bytes]
"""So many random bytes."""


class Settlement(Struct, frozen=True):
    """An outcome reported from outside, under the token of the claim."""

    run_id: str
    token: int
    outcome: Outcome


class Operations:
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
        raise _contended(definition.name)

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
            revised = redefine(job, wanted(job), now=now, check_target=self._check_target)
            if revised == job:
                return None
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

        job, planned = await self._change_job(name, change)
        return job if planned is None or job.enabled else await self._withdraw_rest(job, planned)

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
        raise _contended(paused.name)

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
        raise _contended(name)

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
        _check_payload(payload)
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

    # ---- runs

    async def add_runs(self, runs: Sequence[Run]) -> list[bool]:
        """Add one-off runs, in batches, some of them under way at a time. False: the unique key is taken."""
        added: list[bool] = []
        for start in range(0, len(runs), BATCH_MAX * BATCHES_AT_ONCE):
            stop = min(start + BATCH_MAX * BATCHES_AT_ONCE, len(runs))
            batches = [runs[first : min(first + BATCH_MAX, stop)] for first in range(start, stop, BATCH_MAX)]
            for answer in await asyncio.gather(*map(self.store.add_runs, batches)):
                added += answer
            self._signal_runs(runs[start:stop])
        return added

    async def get_run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound."""
        run = (await self.store.get_runs([run_id]))[0]
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        return run

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        """Runs, newest fire time first; 200 a page at the most."""
        return await self.store.list_runs(where, after, min(limit, PAGE_MAX))

    async def cancel_run(self, run_id: str, reason: str = "cancelled by request") -> Run:
        """Cancel a pending run at once; ask a running one to stop (it is then `cancelling`). Raises StateConflict for
        one that is finished."""
        for _ in range(RACES_MAX):
            run = await self.get_run(run_id)
            if run.state is State.CANCELLING:
                return run
            now = self.clock.now()
            changed = cancel(run, retention_of(run, await self._job_of(run)), now, reason)
            if (await self.store.settle_runs([RunChange(changed, run.token, run.state)], now))[0]:
                if changed.state is State.CANCELLING:
                    self._cancel_asked(changed)
                self.signal.publish("cancel")
                self._after_settle(changed, None)
                return changed
        raise _contended(run_id)

    async def retry_run(self, run_id: str) -> Run:
        """A new run for the work of one that failed or was cancelled, due now, with its attempts counted anew. The
        finished run stays as it is. Raises StateConflict for one that is not finished, or that completed."""
        run = await self.get_run(run_id)
        if run.state not in (State.FAILED, State.CANCELLED, State.SKIPPED):
            raise StateConflict(f"run {run_id} is {run.state}; only a failed, cancelled or skipped run can be retried")
        if run.job is not None:
            job = await self._job_of(run)
            if job is None or job.deleted_at is not None:
                raise StateConflict(f"run {run_id}: its job {run.job!r} was deleted")
            return await self.trigger_job(run.job, run.payload)
        now = self.clock.now()
        again = _fresh(run, id=uuid7(now, self._entropy(10)), now=now)
        await self.add_runs([again])
        return again

    async def _job_of(self, run: Run) -> Job | None:
        return None if run.job_id is None else (await self.store.get_jobs_by_id([run.job_id]))[0]

    async def heartbeat(self, run_id: str, token: int, progress: bytes | None = None) -> Pulse:
        """Renew a lease. Raises LeaseLost, or NotFound."""
        _check_size("progress", progress, RESULT_BYTES_MAX)
        pulse = (await self.store.heartbeat_runs([Beat(run_id, token, progress)], self.clock.now()))[0]
        if pulse is None:
            raise await self._lease_lost(run_id, token)
        return pulse

    async def settle_one(self, settlement: Settlement) -> Run:
        """Settle one claimed run. Raises LeaseLost or NotFound, and then nothing was written."""
        (settled,) = await self.settle([settlement])
        if isinstance(settled, HorariumError):
            raise settled
        return settled

    async def settle(self, settlements: Sequence[Settlement]) -> list[Run | HorariumError]:
        """Settle many claimed runs in one go. For each the run as it then stands, or the error that applies."""
        answers: dict[int, Run | HorariumError] = {}
        todo = dict(enumerate(settlements))
        for _ in range(RACES_MAX):
            if not todo:
                break
            await self._settle_round(todo, answers)
        for index in todo:
            answers[index] = _contended(settlements[index].run_id)
        return [answers[index] for index in range(len(settlements))]

    async def _settle_round(self, todo: dict[int, Settlement], answers: dict[int, Run | HorariumError]) -> None:
        """Read the runs, decide, write. What was written or refused leaves `todo`; what lost a race stays in it."""
        runs = await self.store.get_runs([settlement.run_id for settlement in todo.values()])
        jobs = await self._jobs_of([run for run in runs if run is not None])
        now = self.clock.now()
        changes: dict[int, RunChange] = {}
        for (index, settlement), run in zip(list(todo.items()), runs, strict=True):
            error = _refusal(settlement, run, now)
            if error is not None or run is None:
                answers[index] = error or NotFound(f"there is no run {settlement.run_id!r}")
                del todo[index]
                continue
            after = settle(run, jobs.get(run.job_id or ""), settlement.outcome, now)
            changes[index] = RunChange(after, run.token, run.state, held=True)
        written = await self.store.settle_runs(list(changes.values()), now) if changes else []
        for (index, change), done in zip(changes.items(), written, strict=True):
            if done:
                answers[index] = change.run
                del todo[index]
                self._after_settle(change.run, jobs.get(change.run.job_id or ""))

    async def _jobs_of(self, runs: Sequence[Run]) -> dict[str, Job]:
        ids = list({run.job_id for run in runs if run.job_id is not None})
        if not ids:
            return {}
        return {job.id: job for job in await self.store.get_jobs_by_id(ids) if job is not None}

    async def _lease_lost(self, run_id: str, token: int) -> HorariumError:
        run = (await self.store.get_runs([run_id]))[0]
        if run is None:
            return NotFound(f"there is no run {run_id!r}")
        return _lost(run, token)

    def _after_settle(self, run: Run, job: Job | None) -> None:
        self._settled(run, job)
        if run.state is State.PENDING or run.serial or run.concurrency_key is not None:
            self.signal.publish(f"queue:{run.queue}")

    def _signal_runs(self, runs: Sequence[Run]) -> None:
        for queue in sorted({run.queue for run in runs if run.state is State.PENDING}):
            self.signal.publish(f"queue:{queue}")

    # ---- the rest

    async def nodes(self) -> list[Node]:
        """The nodes that gave a sign of life within the last day."""
        return await self.store.list_nodes(self.clock.now() - NODES_SHOWN_SECONDS * 1_000_000)

    async def stats(self) -> Stats:
        """Counts by queue."""
        return await self.store.stats(self.clock.now())


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


def _refusal(settlement: Settlement, run: Run | None, now: Instant) -> HorariumError | None:
    if run is None:
        return None
    held = run.state in CLAIMED and run.token == settlement.token
    if not held or run.lease_expires_at is None or run.lease_expires_at <= now:
        return _lost(run, settlement.token)
    return None


def _lost(run: Run, token: int) -> Conflict:
    if run.token == token and run.finished:
        return LeaseLost(f"run {run.id} is {run.state} already; this report changed nothing")
    return LeaseLost(
        f"the lease on run {run.id} under token {token} is lost: the run is {run.state} under token {run.token}; "
        "stop working on it, this report changed nothing"
    )


def _contended(what: str) -> Conflict:
    return Conflict(f"{what} changes faster than this request could be carried out; try again")


def _check_payload(payload: bytes | None) -> None:
    _check_size("payload", payload, PAYLOAD_BYTES_MAX)


def _check_size(field: str, text: bytes | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {limit:,} are kept", field=field)


def _fresh(run: Run, *, id: str, now: Instant) -> Run:
    """The same work as a new run."""
    start_seconds = (run.policy or DEFAULT_RUN_POLICY).timeouts.start_seconds
    return Run(
        id=id,
        queue=run.queue,
        fire_at=now,
        due_at=now,
        created_at=now,
        priority=run.priority,
        cause=Cause.MANUAL,
        payload=run.payload,
        policy=run.policy,
        concurrency_key=run.concurrency_key,
        concurrency_max=run.concurrency_max,
        lease_seconds=run.lease_seconds,
        execution_seconds=run.execution_seconds,
        start_by=None if start_seconds is None else now + to_micros(start_seconds),
    )
