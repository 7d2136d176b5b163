"""The door for clients of simple-scheduler: `/api/jobs`, `/api/runs`, `/api/status`. Its workers come over the bus."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from horarium.access.roles import Principal, Scope
from horarium.access.tokens import OtherIssuer, TokenRefused, Tokens
from horarium.api.guards import Keys
from horarium.api.limits import BODY_BYTES_MAX
from horarium.api.reading import read_all
from horarium.api.routing import AnyRequest
from horarium.clock import SECOND, Instant, to_datetime, to_instant
from horarium.doors.simple_jobs import (
    LABEL,
    NAME,
    SERIAL,
    RunShown,
    Sent,
    SimpleJobRefused,
    began_at,
    check_interval,
    check_new,
    definition,
    heard_at,
    merged,
    read_wanted,
    run_shown,
    sent_of,
    shown,
)
from horarium.doors.web import Route, is_short_id, read_object, short_id, value
from horarium.errors import AlreadyExists, CallerError, InvalidTrigger, NotFound, StateConflict
from horarium.model import Job, Run, State, in_wall_time, name_for, text_of
from horarium.operations.bounds.listing import pages_of
from horarium.operations.facade import Operations
from horarium.policies import Overlap
from horarium.ports import PAGE_MAX, JobFilter, RunFilter
from horarium.wire.definitions import JobDefinition

RUNS_MAX = 10_000
"""Runs in one answer: its clients know no pages."""
STATUSES = frozenset({"pending", "running", "cancelling", "completed", "failed", "cancelled"})
BEARER = "Bearer "
LEADS = (0, SECOND, 10 * SECOND)

log = logging.getLogger("horarium")


class SimpleScheduler:
    """See `web.Door`. `keys`: slow down those who guess. `bus`: on which bus its workers are. `enforce`: runs that must
    not be concurrent are not."""

    name = NAME
    shares = False
    prefixes: tuple[str, ...] = ("/api/jobs", "/api/runs", "/api/status")

    def __init__(self, operations: Operations, keys: Keys, tokens: Tokens, bus: str, enforce: bool) -> None:
        self._operations = operations
        self._keys = keys
        self._tokens = tokens
        self._bus = bus
        self._enforce = enforce

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/api/status", self.status),
            Route("GET", "/api/jobs", self.list_jobs, Scope.JOBS_READ),
            Route("POST", "/api/jobs", _told(self.create), Scope.JOBS_WRITE),
            Route("GET", "/api/jobs/{name}", self.get_job, Scope.JOBS_READ),
            Route("PATCH", "/api/jobs/{name}", _told(self.patch), Scope.JOBS_WRITE),
            Route("DELETE", "/api/jobs/{name}", self.delete, Scope.JOBS_WRITE),
            Route("GET", "/api/runs", _told(self.list_runs), Scope.RUNS_READ),
            Route("GET", "/api/runs/{id}", self.get_run, Scope.RUNS_READ),
            Route("GET", "/api/runs/{id}/cancel", self.cancel, Scope.RUNS_WRITE),
        ]

    # ---- who asks

    async def admit(self, asked: AnyRequest, scope: Scope | None) -> Response | None:
        if scope is None:
            return None
        given = asked.headers.get("authorization", "")
        if not given:
            return _unauthorized("Authorization header is missing")
        if not given.startswith(BEARER):
            return _unauthorized("Invalid authorization format")
        token = given.removeprefix(BEARER)
        try:
            caller: Principal = await self._tokens.find(token)
        except TokenRefused as refused:
            self._keys.sign_in_failed(asked, f"the access token is refused: {refused}", owes=False)
            return _unauthorized("Invalid issuer" if isinstance(refused, OtherIssuer) else "Invalid access token")
        asked.scope["user"] = caller
        if missing := caller.missing(scope):
            return value({"error": "Missing required scopes", "missing_scopes": missing}, 403)
        return None

    async def status(self, asked: AnyRequest) -> Response:
        return value({"status": "OK"})

    # ---- jobs

    async def list_jobs(self, asked: AnyRequest) -> Response:
        where = JobFilter(labels={LABEL: NAME})
        pages = pages_of(lambda after: self._operations.jobs.list_jobs(where, after, PAGE_MAX))
        found = sorted([job async for page in pages for job in page], key=lambda job: (job.created_at, job.id))
        return value([shown(job) for job in found] or None)

    async def get_job(self, asked: AnyRequest) -> Response:
        job = await self._job(asked)
        return Response(status_code=404) if job is None else value(shown(job))

    async def create(self, asked: AnyRequest) -> Response:
        wanted = read_wanted(read_object(await read_all(asked, BODY_BYTES_MAX)))
        check_new(wanted)
        name, enabled = wanted.name or "", bool(wanted.enabled)
        sent = merged(Sent(0), wanted)
        now = self._operations.clock.now()
        try:
            await self._write(
                lambda now: self._operations.jobs.create_job(self._definition(name, enabled, sent, now)), sent
            )
        except AlreadyExists:
            return value({"error": f"job {name!r} exists already"}, 409)
        await self._make_up(name, enabled, sent, now)
        return value({"name": name}, 201)

    async def patch(self, asked: AnyRequest) -> Response:
        """Only given fields are changed."""
        wanted = read_wanted(read_object(await read_all(asked, BODY_BYTES_MAX)))
        job = await self._job(asked)
        if job is None:
            return Response(status_code=404)
        sent = merged(sent_of(job), wanted)
        enabled = job.enabled if wanted.enabled is None else wanted.enabled
        if sent == sent_of(job) and enabled == job.enabled:
            return Response(status_code=204)
        name, now = text_of(job.name), self._operations.clock.now()

        def changed(stored: Job, now: Instant) -> JobDefinition:
            enabled = stored.enabled if wanted.enabled is None else wanted.enabled
            return self._definition(name, enabled, merged(sent_of(stored), wanted), now)

        try:
            await self._write(
                lambda now: self._operations.jobs.bring_to(job.name, lambda stored: changed(stored, now)), sent
            )
        except NotFound:  # it was deleted meanwhile
            return Response(status_code=404)
        if wanted.next_run_at is not None:
            await self._make_up(name, enabled, sent, now)
        return Response(status_code=204)

    def _definition(self, name: str, enabled: bool, sent: Sent, now: Instant) -> JobDefinition:
        return definition(name, enabled, sent, self._bus, self._enforce, now)

    async def _write(self, write: Callable[[Instant], Awaitable[object]], sent: Sent) -> None:
        """Where a one-off run was to be now, and now has passed before it was written, a little later."""
        check_interval(sent)
        for lead in LEADS:
            try:
                await write(self._operations.clock.now() + lead)
                return
            except InvalidTrigger:
                if sent.interval > 0 or lead == LEADS[-1]:
                    raise

    async def _make_up(self, name: str, enabled: bool, sent: Sent, now: Instant) -> None:
        """A next run that lies in the past is run once, at once."""
        if enabled and sent.interval > 0 and sent.next_run_at <= now:
            at = to_datetime(sent.next_run_at)
            await self._operations.jobs.backfill_job(name_for(name), at, at + timedelta(milliseconds=1))

    async def delete(self, asked: AnyRequest) -> Response:
        job = await self._job(asked)
        if job is not None:
            await self._operations.jobs.delete_job(job.name)
        return Response(status_code=204)

    async def _job(self, asked: AnyRequest) -> Job | None:
        try:
            job = await self._operations.jobs.get_job(name_for(asked.path_params["name"]))
        except NotFound:
            return None
        return job if job.labels.get(LABEL) == NAME else None

    # ---- runs

    async def list_runs(self, asked: AnyRequest) -> Response:
        """Runs of its bus, oldest first."""
        given = {name.lower(): text for name, text in asked.query_params.items()}
        status = given.get("status")
        if status and status not in STATUSES:
            return value({"status": "Invalid run status"}, 400)
        before = {name: _instant(given.get(name)) for name in ("createdbefore", "startedbefore", "heartbeatbefore")}
        job = given.get("jobname")
        where = RunFilter(job=name_for(job) if job else None, queue=f"bus/{self._bus}")
        runs = [
            run
            for run in await self._runs(where)
            if _is_before(run.fire_at, before["createdbefore"])
            and _is_before(began_at(run), before["startedbefore"])
            and _is_before(heard_at(run), before["heartbeatbefore"])
        ]
        found: list[RunShown] = [run_shown(run) for run in reversed(runs)]
        return value([run for run in found if "status" not in given or run.status == status] or None)

    async def _runs(self, where: RunFilter) -> list[Run]:
        """Those that are due: a run planned ahead is none yet to these clients."""
        found, now = list[Run](), self._operations.clock.now()
        async for page in pages_of(lambda after: self._operations.store.list_runs(where, after, PAGE_MAX)):
            due = (run for run in page if run.state is not State.SKIPPED and run.fire_at <= now)
            found += (in_wall_time(run, self._operations.clock) for run in due)
            if len(found) >= RUNS_MAX:
                break
        return found

    async def get_run(self, asked: AnyRequest) -> Response:
        run = await self._run(asked.path_params["id"])
        return Response(status_code=404) if run is None else value(run_shown(in_wall_time(run, self._operations.clock)))

    async def cancel(self, asked: AnyRequest) -> Response:
        """Yes, it is a GET."""
        run = await self._run(asked.path_params["id"])
        if run is None:
            return Response(status_code=404)
        try:
            await self._operations.runs.cancel_run(run.id)
        except StateConflict:
            (run,) = await self._operations.store.get_runs([run.id])
            if run is None or run.state is not State.CANCELLED:
                return value({"error": "Run already finished"}, 400)
        return Response(status_code=204)

    async def _run(self, id: str) -> Run | None:
        """By the 24 digits that clients are shown, or by the id that workers get."""
        text = id.lower()
        if not is_short_id(text):
            (run,) = await self._operations.store.get_runs([text]) if len(text) == 36 and text.isascii() else [None]
            return run
        above = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}ffffffff"
        page = await self._operations.store.list_runs(RunFilter(), above, 1)
        run = next(iter(page.items), None)
        return run if run is not None and short_id(run.id) == text else None


async def enforce_on_all(operations: Operations) -> None:
    """Jobs that were defined while it was not enforced are kept from running at once from now on, too."""
    where = JobFilter(labels={LABEL: NAME})
    async for page in pages_of(lambda after: operations.jobs.list_jobs(where, after, PAGE_MAX)):
        for job in page:
            if job.overlap is Overlap.ALLOW and not sent_of(job).allow_concurrent_runs:
                try:
                    await operations.jobs.patch_job(job.name, {"overlap": str(SERIAL)})
                except CallerError as error:
                    log.warning("job %s: its runs can't be kept from running at once: %s", job.name, error)


def _told(handle: Callable[[AnyRequest], Any]) -> Any:
    """With the fault shown to the caller."""

    async def told(asked: AnyRequest) -> Response:
        try:
            answer: Response = await handle(asked)
            return answer
        except (SimpleJobRefused, CallerError) as error:
            return value({"error": str(error)}, 400)

    return told


def _unauthorized(message: str) -> Response:
    return value({"error": message}, 401)


def _instant(text: str | None) -> Instant | None:
    if not text:
        return None
    try:
        given = msgspec.convert(text.replace(" ", "+"), datetime)
        return to_instant(given)
    except (msgspec.ValidationError, ValueError):
        raise SimpleJobRefused(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse') from None


def _is_before(at: Instant | None, bound: Instant | None) -> bool:
    """An instant that has not come is shown as the year 1, which lies before every bound."""
    return bound is None or at is None or at < bound
