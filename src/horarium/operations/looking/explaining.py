"""Explanations of a job that ran and should not have, or did not and should have.

The rule is `rules.explaining`; this fetches what it needs: the job as it was then, and the run of that instant or the
skipped one that covers it. Earlier versions of a job are records; where none is kept, the present one is taken, and
that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from horarium.access.acting import bound_caller
from horarium.clock import INSTANT_MAX, SECOND, Instant, to_datetime, to_instant, to_text
from horarium.errors import InvalidRequest
from horarium.model import Job, Run, State
from horarium.model import run_id as run_id_of
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.jobs.changes import last_runs
from horarium.operations.jobs.jobs import JobOperations
from horarium.operations.jobs.versions import Version, Versions
from horarium.operations.settling.holding import Holding
from horarium.operations.writing.context import Context
from horarium.ports import PAGE_MAX, RunFilter
from horarium.rules.compiled import after_end
from horarium.rules.editing import is_retimed
from horarium.rules.explaining import EXPLAIN_STEPS, Explanation, candidates, explain, explain_held
from horarium.rules.explaining_ends import PLANNED, Beside, explain_from_end, explain_join, next_after_end
from horarium.rules.joins import Window, decode_window, is_join, join_of, window_name
from horarium.rules.overridden import of_fire
from horarium.triggers.words import say_list

VERSIONS_LOOKED_AT = 1_000
RUNS_LOOKED_AT = 4_000
"""How many runs one look for those of a span goes through."""


class Explanations(NamedTuple):
    """Explanations of fire times, in order, and the instant after which the next ones come."""

    items: list[Explanation]
    next_after: Instant | None = None


class Explaining:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, jobs: JobOperations, versions: Versions, holding: Holding) -> None:
        self._store, self._clock = context.store, context.clock
        self._versions = versions
        self._jobs = jobs
        self._holding = holding

    async def at(self, name: str, at: Instant | None = None) -> Explanation:
        """Why the job ran, did not run, will run or will not run then (left out: now). Raises NotFound."""
        job, now = await self._jobs.get_job(name), self._clock.now()
        at = now if at is None else at
        _check(at, "at")
        told = await self._at(job, at, now)
        follows = {each.trigger for of_one in job.on.values() for each in of_one if each.trigger is not None}
        unknown = await self._unknown(sorted(follows)) if told.fires else []
        if not unknown:
            return told
        return told._replace(reason=f"{told.reason}; to follow from its runs, there is no job {say_list(unknown)}")

    async def _at(self, job: Job, at: Instant, now: Instant) -> Explanation:
        (run,) = await self._store.get_runs([run_id_of(job.id, at)])
        skipped = await self._skipped(job, at, at + 1) if run is None else []
        run = run or _covering(skipped, at)
        if after_end(job) is not None:
            return await self._from_end(job, at, now, run)
        if is_join(job):
            return await self._joined(job, at, now, run)
        return await self._explained(job, await self._as_it_was(job, at), at, now, run)

    async def between(
        self, name: str, since: Instant, until: Instant, limit: int, after: Instant | None = None
    ) -> Explanations:
        """One explanation for each fire time in [since, until), those that the rule excludes too."""
        job, now = await self._jobs.get_job(name), self._clock.now()
        _check(since, "since")
        _check(until, "until")
        limit = min(limit, PAGE_MAX)
        start = since - 1 if after is None else max(after, since - 1)
        if after_end(job) is not None:
            return await self._between_ends(job, start, until, now, limit)
        if is_join(job):
            return await self._between_windows(job, start, min(until, now + 1), now, limit)
        past, fires = await self._past(job, start + 1), list[Instant]()
        changes = [at for at, _ in past if start + 1 < at < until]
        for first, end in pairwise((start + 1, *changes, until)):
            if first < end and len(fires) <= limit:
                then, _ = _then(job, first, past)
                asked = partial(candidates, then, first - 1, end - 1, limit + 1 - len(fires))
                fires += await evaluate(asked, EXPLAIN_STEPS)
        page, more = fires[:limit], len(fires) > limit
        runs = await self._store.get_runs([run_id_of(job.id, fire) for fire in page]) if page else []
        skipped = await self._skipped(job, page[0], page[-1] + 1) if page else []
        items = [
            await self._explained(job, _then(job, fire, past), fire, now, run or _covering(skipped, fire))
            for fire, run in zip(page, runs, strict=True)
        ]
        return Explanations(items, page[-1] if more else None)

    async def _explained(
        self, job: Job, as_it_was: tuple[Job, bool], at: Instant, now: Instant, run: Run | None
    ) -> Explanation:
        then, known = as_it_was
        told = await evaluate(partial(explain, then, at, now, run), EXPLAIN_STEPS)
        told = explain_held(told, then, await self._holding.look(), now)
        if known or run is not None:
            return told
        changed = to_text(job.updated_at)
        return told._replace(
            reason=f"{told.reason} (by the job as it is since {changed}; what it was before is not kept)"
        )

    # ---- of a job that follows from runs of others

    async def _joined(self, job: Job, at: Instant, now: Instant, run: Run | None = None) -> Explanation:
        start = join_of(job).window_of(at)
        if run is None:
            (run,) = await self._store.get_runs([run_id_of(job.id, start)])
            run = run or _covering(await self._skipped(job, start, start + 1), start)
        (record,) = await self._store.get_records([window_name(job, start)])
        told = explain_join(job, at, now, run, Window() if record is None else decode_window(record.body))
        if unknown := await self._unknown(told.missing if told.fires and run is None else ()):
            told = told._replace(reason=f"{told.reason}; there is no job {say_list(unknown)}")
        whole = of_fire(job, start)
        owed_at = max(at, now) if whole is None else whole.due_at
        return explain_held(told, job, await self._holding.look(), now, owed_at) if told.fires else told

    async def _unknown(self, names: Sequence[str]) -> list[str]:
        """Those of these jobs that are not there, to be named; a caller who is bound is told none."""
        names = names if bound_caller() is None else ()
        found = await self._store.get_jobs(names) if names else []
        return [repr(name) for name, each in zip(names, found, strict=True) if each is None]

    async def _between_windows(
        self, job: Job, after: Instant, until: Instant, now: Instant, limit: int
    ) -> Explanations:
        join, items = join_of(job), list[Explanation]()
        start: Instant | None = join.window_of(max(after, job.created_at))
        if start is not None and start <= after:
            start = join.next_window(start)
        while start is not None and start < until:
            if len(items) == limit:
                return Explanations(items, items[-1].at)
            items.append(await self._joined(job, start, now))
            start = join.next_window(start)
        return Explanations(items)

    # ---- of a job that counts from ends

    async def _from_end(self, job: Job, at: Instant, now: Instant, run: Run | None) -> Explanation:
        then, _ = await self._as_it_was(job, at)
        after = await self._planned(job, at, now, 1)
        judged = then if after else job
        before = await self._newest(job, at)
        beside = Beside(before, after[0] if after else None, await self._last(job))
        told = explain_from_end(judged, at, now, run, beside)
        if after and not told.fires:
            return told
        return explain_held(told, job, await self._holding.look(), now, max(at, now))

    async def _between_ends(self, job: Job, start: Instant, until: Instant, now: Instant, limit: int) -> Explanations:
        runs = await self._planned(job, start, min(until - 1, now), limit + 1)
        items = [await self._from_end(job, run.fire_at, now, run) for run in runs[:limit]]
        if len(runs) > limit:
            return Explanations(items, runs[limit - 1].fire_at)
        coming = next_after_end(job, await self._last(job))
        if coming is not None and start < coming < until and not any(item.at == coming for item in items):
            if len(items) == limit:
                return Explanations(items, items[-1].at)
            items.append(await self._from_end(job, coming, now, None))
        return Explanations(items)

    async def _last(self, job: Job) -> Run | None:
        return (await last_runs(self._store, [job])).get(job.id)

    async def _newest(self, job: Job, until: Instant) -> Run | None:
        """The last planned run before the instant."""
        found = await self._runs(job, RunFilter(job=job.name, until=until), 1)
        return found[0] if found else None

    async def _planned(self, job: Job, after: Instant, until: Instant, limit: int) -> list[Run]:
        """The first planned runs in (after, until], looked for in spans that grow. These runs are a delay apart."""
        span = (after_end(job) or SECOND) * (limit + 1)
        found: list[Run] = []
        while after < until and len(found) < limit:
            end = min(after + span, until)
            where = RunFilter(job=job.name, since=after + 1, until=end + 1)
            found += reversed(await self._runs(job, where, RUNS_LOOKED_AT))
            after, span = end, 2 * span
        return found[:limit]

    async def _runs(self, job: Job, where: RunFilter, limit: int) -> list[Run]:
        """Planned runs, the newest first."""
        found: list[Run] = []
        after, looked = None, 0
        while len(found) < limit and looked < RUNS_LOOKED_AT:
            page = await self._store.list_runs(where, after, PAGE_MAX)
            found += (run for run in page.items if run.job_id == job.id and run.cause in PLANNED)
            after, looked = page.next_after, looked + PAGE_MAX
            if after is None:
                break
        return found[:limit]

    async def _as_it_was(self, job: Job, at: Instant) -> tuple[Job, bool]:
        """The job as it was then, and whether that is known."""
        return _then(job, at, await self._past(job, at))

    async def _past(self, job: Job, since: Instant) -> list[tuple[Instant, Job]]:
        """The job as it was from each of its changes on, the oldest first; none if it is the same since `since`."""
        if since >= job.updated_at or job.updated_at == job.created_at:
            return []
        found, after = list[Version](), None
        for _ in range(VERSIONS_LOOKED_AT // PAGE_MAX):
            page = await self._versions.page(job, after, PAGE_MAX)
            found += page.items
            after = page.next_after
            if after is None:
                break
        past = list[tuple[Instant, Job]]()
        for version in reversed(found):
            then = _as_defined(job, version)
            kept = bool(past) and not is_retimed(past[-1][1], then)
            past.append((version.at, replace(then, anchor_at=past[-1][1].anchor_at) if kept else then))
        present = past[-1][1].anchor_at
        return [
            (at, replace(then, anchor_at=job.anchor_at) if then.anchor_at == present else then) for at, then in past
        ]

    async def _skipped(self, job: Job, first: Instant, until: Instant) -> Sequence[Run]:
        """Skipped runs that may cover instants from `first` on and before `until`, the newest first."""
        where = RunFilter(job=job.name, states=frozenset({State.SKIPPED}), until=until)
        runs = (await self._store.list_runs(where, None, PAGE_MAX)).items
        return [run for run in runs if run.job_id == job.id and (run.last_fire_at or run.fire_at) >= first]


def _then(job: Job, at: Instant, past: Sequence[tuple[Instant, Job]]) -> tuple[Job, bool]:
    if not past or at >= job.updated_at or at < job.created_at:
        return job, True
    return next(((then, True) for since, then in reversed(past) if since <= at), (job, False))


def _covering(skipped: Sequence[Run], at: Instant) -> Run | None:
    return next((run for run in skipped if run.fire_at <= at <= (run.last_fire_at or run.fire_at)), None)


def _as_defined(job: Job, version: Version) -> Job:
    """The job with its rule, its window and its switch as that version has them."""
    wanted = version.definition
    enabled = wanted.enabled is msgspec.UNSET or wanted.enabled
    return replace(
        job,
        trigger=wanted.trigger,
        anchor_at=version.at,
        starts_at=None if wanted.starts_at is None else to_instant(wanted.starts_at),
        ends_at=None if wanted.ends_at is None else to_instant(wanted.ends_at),
        fires_max=wanted.fires_max,
        enabled=enabled,
        paused_at=None if enabled else version.at,
        pause_reason=None if enabled else job.pause_reason,
        paused_until=None if enabled else version.paused_until,
    )


def _check(at: Instant, field: str) -> None:
    if not 0 <= at <= INSTANT_MAX:
        told = to_datetime(min(max(at, 0), INSTANT_MAX)).year
        raise InvalidRequest(f"{field}: lies outside of the years 1970 to 2200 (nearest: {told})", field=field)
