"""Many jobs put in one request: each for itself, and as many as possible in one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.roles import NO_LABELS
from horarium.clock import Instant
from horarium.errors import CallerError, Conflict, HorariumError, InvalidJob, NotFound, TooExpensive
from horarium.model import Job, Plan
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.bounds.listing import Slices
from horarium.operations.bounds.reaching import require_followed
from horarium.operations.bounds.telling import channel_warnings
from horarium.operations.jobs.jobs import EDIT_STEPS, JobOperations
from horarium.operations.jobs.versions import Versions, along_created
from horarium.operations.settling.following import Following
from horarium.operations.settling.reconciling import Changed, Reconciler
from horarium.operations.writing.auditing import require_reach
from horarium.operations.writing.context import Context
from horarium.operations.writing.signalling import announce, announce_jobs
from horarium.rules.editing import edit, is_retimed, stands_still
from horarium.rules.reconciling import reconciled
from horarium.rules.spreading import spread
from horarium.triggers.budget import PLAN_STEPS_MAX, limited
from horarium.wire.definitions import JobDefinition, kept_definition

K = TypeVar("K")
NONE_RAN: Mapping[Any, Sequence[Instant]] = MappingProxyType({})


class Put(StrEnum):
    """The result of putting a job."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class _Sorted(Struct):
    """The actions, by the index of the definition: jobs to add, stored ones to change (and as what), and definitions
    that are refused."""

    new: dict[int, Job] = {}
    changed: dict[int, tuple[Job, Job]] = {}
    refused: dict[int, CallerError] = {}


class Importing:
    """Puts many jobs."""

    def __init__(
        self, context: Context, jobs: JobOperations, reconciler: Reconciler, versions: Versions, following: Following
    ) -> None:
        self._store, self._clock, self._signal = context.store, context.clock, context.signal
        self._jobs = jobs
        self._reconciler = reconciler
        self._versions = versions
        self._following = following

    async def put_jobs(
        self,
        definitions: Sequence[JobDefinition],
        *,
        dry_run: bool = False,
        owned_by: Mapping[str, str] = NO_LABELS,
    ) -> list[Put | HorariumError]:
        """Put many jobs, at most `BATCH_MAX`, each for itself: what became of it, or why nothing did. Jobs of an
        interval that are new, or get a new trigger, begin spread over it. Rules that are expensive to evaluate are
        refused once all of them together took too much. `dry_run`: says so, and writes nothing. `owned_by`: a job
        that has another value of one of these labels is refused."""
        stored = await self._store.get_jobs([definition.name for definition in definitions])
        now = self._clock.now()  # after the read: a process that stood still meanwhile would change jobs in the past
        with limited(PLAN_STEPS_MAX):
            todo = await self._sort(definitions, stored, now, owned_by)
        answers: list[Put | HorariumError] = [Put.UNCHANGED] * len(definitions)
        for index, error in todo.refused.items():
            answers[index] = error
        for index in (*todo.new, *todo.changed):
            answers[index] = Put.CREATED if index in todo.new else Put.UPDATED
        if not dry_run:
            for index in [*await self._add(todo.new, now), *await self._change(todo.changed, now)]:
                answers[index] = await self._put_one(definitions[index])
        return answers

    async def renew(self, jobs: Sequence[Job]) -> dict[str, HorariumError]:
        """Bring these jobs, as they were read, to the days that their calendars have now. Those by name that can't be,
        and why. One that was changed meanwhile keeps that change."""
        now, failed = self._clock.now(), dict[str, HorariumError]()
        changed: dict[str, tuple[Job, Job]] = {}
        for job in jobs:
            try:
                wanted = await self._jobs.wanted(job, kept_definition(job), now)
                if wanted != job:
                    changed[job.name] = job, wanted
            except HorariumError as error:
                failed[job.name] = error
        try:
            left = await self._change(changed, now)
        except TooExpensive:  # one of them is, and keeps no other from it
            left = list(changed)
        for name in left:
            try:
                await self._jobs.patch_job(name, {})
            except NotFound:
                pass  # it was deleted meanwhile
            except HorariumError as error:
                failed[name] = error
        return failed

    async def warnings(self, definitions: Sequence[JobDefinition]) -> list[str]:
        """For each of them the channels that are to come yet, in words: a file may bring them after its jobs."""
        return await channel_warnings(self._store, [definition.on for definition in definitions])

    async def _sort(
        self,
        definitions: Sequence[JobDefinition],
        stored: Sequence[Job | None],
        now: Instant,
        owned_by: Mapping[str, str],
    ) -> _Sorted:
        todo, names, slices, beside = _Sorted(), set[str](), Slices(), dict[str, Job]()
        for index, (definition, job) in enumerate(zip(definitions, stored, strict=True)):
            await slices.give_way()
            try:
                if definition.name in names:
                    raise InvalidJob(f"name: {definition.name!r} is here twice", field="name")
                names.add(definition.name)
                if job is None:
                    new = await self._jobs.job_from(definition, now)
                    require_reach(new)
                    await require_followed(self._store, new, beside=beside)
                    todo.new[index] = beside[new.name] = new
                    continue
                require_reach(job)
                require_owned(job, owned_by, "say that it is to be taken over (--take-over)")
                wanted = await self._jobs.wanted(job, definition, now)
                require_reach(wanted)
                await require_followed(self._store, wanted, job, beside)
                if wanted != job:
                    todo.changed[index] = job, wanted
                    beside[wanted.name] = wanted
            except CallerError as error:
                todo.refused[index] = error
        return todo

    async def _put_one(self, definition: JobDefinition) -> Put | HorariumError:
        try:
            _, created = await self._jobs.put_job(definition)
        except (CallerError, Conflict) as error:
            return error
        return Put.CREATED if created else Put.UPDATED

    async def _add(self, jobs: Mapping[int, Job], now: Instant) -> list[int]:
        """Add new jobs. Those whose name was taken meanwhile."""
        if not jobs:
            return []
        # Ids ascend in the order of the definitions: that is the order of jobs made at one instant.
        ids = sorted(job.id for job in jobs.values())
        ready = [replace(job, id=id) for job, id in zip(spread(list(jobs.values()), now), ids, strict=True)]
        added = await self._store.add_jobs(ready, along_created(ready, now))
        announce_jobs(self._signal, ready)
        return [index for index, new in zip(jobs, added, strict=True) if not new]

    async def _change(self, jobs: Mapping[K, tuple[Job, Job]], now: Instant) -> list[K]:
        """Change jobs in one go. Those left that need more than one look: paused or to be paused, due, or changed by
        another caller meanwhile."""
        simple = {index: pair for index, pair in jobs.items() if _is_simple(*pair, now)}
        plans = await self.plans(simple, now)
        followed = await self._following.plans(list(plans.values()), now)
        done = await self._store.commit_plans(followed, self._clock.steady()) if plans else []
        if any(done):
            announce_jobs(self._signal, [planned.job for planned in plans.values()])
        written = {index: planned for (index, planned), ok in zip(plans.items(), done, strict=True) if ok}
        announce(self._signal, list(written.values()))
        await self._reconciler.after_each(
            [Changed(simple[index][0], planned.job, planned) for index, planned in written.items()]
        )
        return [index for index in jobs if index not in written]

    async def plans(
        self, jobs: Mapping[K, tuple[Job, Job]], now: Instant, ran: Mapping[K, Sequence[Instant]] = NONE_RAN
    ) -> dict[K, Plan]:
        """The plans that make the second of each pair of the first, without their follow-ups. The jobs are planned up
        to `now`; `ran`: of those that are paused or held the fire times since that have a run."""
        if not jobs:
            return {}
        unfinished = await self._store.unfinished_runs([job.id for job, _ in jobs.values()])
        plans, slices = dict[K, Plan](), Slices()
        for index, (job, wanted) in jobs.items():
            await slices.give_way()
            asked = partial(edit, job, wanted, unfinished[job.id], now, ran.get(index, ()))
            plans[index] = await evaluate(asked, EDIT_STEPS)
        retimed = [index for index, (job, wanted) in jobs.items() if is_retimed(job, wanted)]
        for index, job in zip(retimed, spread([plans[index].job for index in retimed], now), strict=True):
            plans[index] = replace(plans[index], job=job)
        whole = [reconciled(planned, unfinished[planned.job.id], now) for planned in plans.values()]
        kept = [
            await self._versions.kept_with(planned, job, "job.update", now)
            for planned, (job, _) in zip(whole, jobs.values(), strict=True)
        ]
        return dict(zip(plans, kept, strict=True))


def require_owned(job: Job, owned_by: Mapping[str, str], way: str) -> None:
    """Raises InvalidJob for a job of another owner. `way`: how it is taken over all the same."""
    others = [f"{name}={job.labels[name]}" for name, text in owned_by.items() if job.labels.get(name, text) != text]
    if others:
        raise InvalidJob(
            f"name: {job.name!r} is a job of {', '.join(others)}; give it another name, or {way}",
            field="name",
        )


def _is_simple(job: Job, wanted: Job, now: Instant) -> bool:
    return not stands_still(job) and wanted.enabled and (job.next_fire_at is None or job.next_fire_at > now)
