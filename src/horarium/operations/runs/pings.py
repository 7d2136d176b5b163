"""Pings: reports of work that is done elsewhere.

A ping's address holds a key: the job's id, and a code that only this system can make of it. So no key has to be stored
or looked up, and one that was not given out opens nothing. The secret behind it is a record, made at the first need.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac

from horarium.errors import NotFound
from horarium.model import EXTERNAL, UNFINISHED, ExternalTarget, Job, Run, leased
from horarium.model.logs import LogLine
from horarium.operations.jobs.changes import Changes, Seen, always
from horarium.operations.jobs.grouping import Reach
from horarium.operations.runs.logs import LINES_MAX, Logs
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.keeping import Secret
from horarium.ports import PAGE_MAX, RunFilter
from horarium.rules.editing import free_instant
from horarium.rules.pinging import Ping, Sign, about, heard, unexpected

SECRET = "secret/pings"
CODE_CHARS = 24
"""Hexadecimal digits of the code in a key: 96 bits."""
STREAM = "ping"
UNKNOWN = "there is no job with this ping key"


class Pings:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, changes: Changes, settling: Settling, logs: Logs) -> None:
        self._store, self._clock, self._entropy = context.store, context.clock, context.entropy
        self._changes = changes
        self._settling = settling
        self._logs = logs
        self._secret = Secret(SECRET, context.store, context.entropy)

    # ---- keys

    async def key_of(self, job: Job) -> str | None:
        """The key of a job's address; None for a job whose work is done here."""
        if not isinstance(job.target, ExternalTarget):
            return None
        return f"{job.id}-{self._code(await self._secret.read(), job.id)}"

    async def job_of(self, key: str) -> Job:
        """The job that a key is for. Raises NotFound."""
        job_id, _, code = key.rpartition("-")
        known = self._code(await self._secret.read(), job_id)
        if not compare_digest(known.encode(), code.encode()):
            raise NotFound(UNKNOWN)
        (job,) = await self._store.get_jobs_by_id([job_id])
        if job is None or job.deleted_at is not None or not isinstance(job.target, ExternalTarget):
            raise NotFound(UNKNOWN)
        return job

    def _code(self, secret: bytes, job_id: str) -> str:
        return hmac(secret, job_id.encode(), sha256).hexdigest()[:CODE_CHARS]

    # ---- heard

    async def heard(self, job: Job, ping: Ping) -> Run:
        """Carry out a ping. The run that it was about, as it then is. Owed fire times are planned first. Raises
        NotFound where the job's work is not done elsewhere any more."""
        asked, job = job, await self._changes.change(job.name, _nothing, always(Reach.NONE))
        if job.id != asked.id or not isinstance(job.target, ExternalTarget):
            raise NotFound(UNKNOWN)
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            now = self._clock.now()
            run = about(await self._unfinished(job), ping, now)
            if run is None and ping.sign is Sign.LOG:
                return await self._note(await self._last(job) or await self._add(job), ping)
            if run is None:
                run = await self._add(job)
            change = heard(run, job, ping, now)
            if (await self._settling.write([change], {job.id: job}, now))[0]:
                return await self._note(leased(change.run, self._clock.steady()), ping)
        raise contended(job.name)

    async def _unfinished(self, job: Job) -> list[Run]:
        """Those that are done elsewhere: the job may have had another target, whose worker is still at work."""
        where = RunFilter(job=job.name, states=UNFINISHED, queue=EXTERNAL)
        page = await self._store.list_runs(where, None, PAGE_MAX)
        return [run for run in page.items if run.job_id == job.id]

    async def _last(self, job: Job) -> Run | None:
        page = await self._store.list_runs(RunFilter(job=job.name), None, 1)
        return next((run for run in page.items if run.job_id == job.id), None)

    async def _add(self, job: Job) -> Run:
        """The run of a ping that came when nothing was due."""
        for race in range(RACES_MAX):
            now = self._clock.now()
            run = unexpected(job, free_instant(job, now + race, frozenset()), now)
            if (await self._store.add_runs([run]))[0]:
                return run
        raise contended(job.name)

    async def _note(self, run: Run, ping: Ping) -> Run:
        """Keep the body of the ping in the run's log."""
        now = self._clock.now()
        lines = [LogLine(now, STREAM, line) for line in ping.body.splitlines()]
        for start in range(0, len(lines), LINES_MAX):
            await self._logs.append(run, lines[start : start + LINES_MAX])
        return run


async def _nothing(seen: Seen) -> None:
    """A look at a job, before which what it owes is planned."""
