"""Runs asked for by hand of jobs whose runs may overlap, written in groups.

Such a run changes nothing of its job, so it needs no compare-and-set: it is added like a one-off run. Requests come in
one by one and wait while the last group is being written; then all that have gathered, of any job, are one read
and one write. Many requests for one job cost no more than one request for each of many jobs.

The hard thing is a job that is deleted, or goes to another queue, between the read and the write. So the jobs are read
once more after it: a change that was committed before that is seen here, one that comes later sees the runs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.access.audit import Origin
from horarium.clock import SECOND, Clock, Instant
from horarium.errors import StoreUnavailable
from horarium.model import Cause, Job, Run
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.auditing import out_of_reach, told_asked
from horarium.operations.writing.contention import RACES_MAX, Entropy, contended
from horarium.operations.writing.named import no_job
from horarium.operations.writing.signalling import announce_runs
from horarium.operations.writing.tracing import Tracing, asked_trace
from horarium.ports import Signal, Store
from horarium.rules.editing import free_instant, put_off
from horarium.rules.planning import needs_unfinished, owed_run
from horarium.rules.reconciling import belongs

GROUP_MAX = 500
"""Requests that are written together."""
INSTANTS_REMEMBERED = 1_000
"""Jobs of which the instant of the last run is remembered."""


class Asked(Struct, eq=False):
    """One request. The answer is None where the job's policy asks for a look at its other runs. `told`: its action and
    object in the audit. `origin`: who asks; the group is written in a task that serves them all. `due_at`: not before
    then. `made`: the run of the answer is new."""

    name: str
    payload: bytes | None
    unique_key: str | None
    told: str
    origin: Origin | None
    answer: asyncio.Future[Run | None]
    due_at: Instant = 0
    cause: Cause = Cause.MANUAL
    made: bool = False
    trace: str | None = None


class Triggering:
    """Adds runs asked for by hand."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        entropy: Entropy,
        reconciler: Reconciler,
        tracing: Tracing,
    ) -> None:
        self.tracing = tracing
        self._store = store
        self._clock = clock
        self._signal = signal
        self._entropy = entropy
        self._reconciler = reconciler
        self._asked: list[Asked] = []
        self._writing: asyncio.Task[None] | None = None
        self._last: OrderedDict[str, Instant] = OrderedDict()

    async def trigger(
        self, name: str, payload: bytes | None, unique_key: str | None, told: str, cause: Cause = Cause.MANUAL
    ) -> Run | None:
        """A run of this job now; None: its policy asks for a look at its other runs. Raises NotFound, Forbidden."""
        answer = asyncio.get_running_loop().create_future()
        asked = Asked(name, payload, unique_key, told, who_acts(), answer, cause=cause, trace=asked_trace())
        self._asked.append(asked)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return await asked.answer

    async def trigger_all(self, group: Sequence[Asked]) -> None:
        """Answer each of these, at most `BATCH_MAX`; what is new of them is written in one go. If that fails, no one
        waits for the answers: the failure is the caller's."""
        try:
            await self._write(group)
        except BaseException:
            for asked in group:
                if not asked.answer.cancel() and not asked.answer.cancelled():
                    asked.answer.exception()
            raise

    async def _write_all(self) -> None:
        while self._asked:
            group, self._asked = self._asked[:GROUP_MAX], self._asked[GROUP_MAX:]
            try:
                await self._write(group)
            except BaseException as error:
                _answer_all(group, error)
                if not isinstance(error, Exception):
                    _answer_all(self._asked, error)
                    self._asked = []
                    raise

    async def _write(self, group: Sequence[Asked]) -> None:
        """Answer each of the group."""
        todo = [asked for asked in group if not asked.answer.done()]
        for _ in range(RACES_MAX):
            if not todo:
                return
            todo = await self._write_once(todo)
        for asked in todo:
            _fail(asked, contended(asked.name))

    async def _write_once(self, group: Sequence[Asked]) -> list[Asked]:
        """Read the jobs, add the runs, look at the jobs again. Those whose instant was taken by another process."""
        names = list(dict.fromkeys(asked.name for asked in group))
        jobs = dict(zip(names, await self._store.get_jobs(names), strict=True))
        runs: list[tuple[Asked, Run]] = []
        for asked in group:
            job = jobs[asked.name]
            if job is None:
                _fail(asked, no_job(asked.name))
            elif (refusal := out_of_reach(asked.origin, job)) is not None:
                _fail(asked, refusal)
            elif needs_unfinished(job):
                _succeed(asked, None)
            else:
                runs.append((asked, self._run(job, asked)))
        if not runs:
            return []
        now = self._clock.now()
        along = {
            run.id: told_asked(asked.origin, asked.told, run, now) for asked, run in runs if asked.origin is not None
        }
        added = await self._store.add_runs([run for _, run in runs], along)
        announce_runs(self._signal, (run for (_, run), new in zip(runs, added, strict=True) if new))
        await self._look_again([(asked, run) for (asked, run), new in zip(runs, added, strict=True) if new])
        refused = [(asked, run) for (asked, run), new in zip(runs, added, strict=True) if not new]
        return [asked for asked, run in refused if not await self._answered_before(asked, run)]

    def _run(self, job: Job, asked: Asked) -> Run:
        now = self._clock.now()
        run = owed_run(job, self._instant(job, now), now, Cause.MANUAL, asked.payload)
        run = replace(put_off(run, asked.due_at), unique_key=asked.unique_key, cause=asked.cause)
        return self.tracing.mark(run, asked.trace)

    def _instant(self, job: Job, now: Instant) -> Instant:
        """One that no run of this job made here has; another process may have taken it, then the next try is later."""
        last = self._last.get(job.id, 0)
        start = last + 1 if now <= last < now + SECOND else now
        instant = self._last[job.id] = free_instant(job, start, frozenset())
        self._last.move_to_end(job.id)
        if len(self._last) > INSTANTS_REMEMBERED:
            self._last.popitem(last=False)
        return instant

    async def _look_again(self, added: Sequence[tuple[Asked, Run]]) -> None:
        """Answer with the runs that were added, unless their job was deleted meanwhile. In an outage that is looked at
        later: the runs are there."""
        if not added:
            return
        ids = list({run.job_id or "" for _, run in added})
        try:
            jobs = {job.id: job for job in await self._store.get_jobs_by_id(ids) if job is not None}
        except StoreUnavailable:
            await self._reconciler.after_put_back([run for _, run in added])
            jobs = {}
        changed = [run for _, run in added if run.job_id in jobs and not belongs(run, jobs[run.job_id])]
        await self._reconciler.after_put_back(changed)
        for asked, run in added:
            if run.job_id in jobs and jobs[run.job_id].deleted_at is not None:
                _fail(asked, no_job(asked.name))
            else:
                asked.made = True
                _succeed(asked, run)

    async def _answered_before(self, asked: Asked, refused: Run) -> bool:
        """Whether the run that holds the unique key is the answer. If not, the next try is for a later instant."""
        if asked.unique_key is not None:
            holder = await self._store.get_run_by_key(asked.unique_key)
            if holder is not None:
                _succeed(asked, holder)
                return True
        job_id = refused.job_id or ""
        skipped = int.from_bytes(self._entropy(1), "big")
        self._last[job_id] = max(self._last.get(job_id, 0), refused.fire_at + skipped)
        return False


def _succeed(asked: Asked, run: Run | None) -> None:
    if not asked.answer.done():
        asked.answer.set_result(run)


def _fail(asked: Asked, error: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)


def _answer_all(group: Sequence[Asked], error: BaseException) -> None:
    for asked in group:
        if isinstance(error, Exception):
            _fail(asked, error)
        else:
            asked.answer.cancel()
