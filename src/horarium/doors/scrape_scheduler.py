"""The door for workers of the scheduler for scrape jobs: `/jobs/next`, `/jobs/{id}/complete`, `/jobs/{id}/error`.

Its workers know neither a run nor a token: a report is matched to the one run of its job that is claimed. One that
comes after its lease changes nothing, and is answered as all others are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from horarium.access.roles import Scope
from horarium.api.reading import read_all
from horarium.api.routing import AnyRequest
from horarium.api.work import claimed_queue, is_closed
from horarium.clock import to_text
from horarium.doors.scrape_jobs import LABEL, NAME, QUEUE, handed
from horarium.doors.web import Admit, Route, value
from horarium.errors import Conflict, NotFound
from horarium.model import CLAIMED, Failed, Outcome, Run, Succeeded
from horarium.operations.facade import Operations
from horarium.operations.jobs.changes import last_runs
from horarium.operations.settling.settling import Settlement
from horarium.ports import Claimed
from horarium.rules.explaining_ends import next_after_end
from horarium.rules.planning import due_of
from horarium.services.polling.claims import Claims
from horarium.wire.views import payload_of

REPORT_BYTES_MAX = 4_096
WORKER = "scrape-worker"

log = logging.getLogger("horarium")


UnixSeconds = Annotated[float, Meta(ge=0, le=1e12)]


class Told(Struct):
    """A report. Unix seconds; 0, or `null` as Go reads it: not known."""

    scheduled_at: UnixSeconds | None = 0
    picked_up_at: UnixSeconds | None = 0
    error: str | None = ""


class ScrapeScheduler:
    """See `web.Door`. `wait_seconds`: how long a worker waits for a job."""

    name = NAME
    shares = True
    prefixes: tuple[str, ...] = ("/jobs",)
    queue = claimed_queue(QUEUE)

    def __init__(self, operations: Operations, claims: Claims, admit: Admit, wait_seconds: float) -> None:
        self._operations = operations
        self._claims = claims
        self.admit = admit
        self._wait_seconds = wait_seconds

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/jobs/next", self.next, Scope.WORK),
            Route("POST", "/jobs/{id}/complete", self.complete, Scope.WORK),
            Route("POST", "/jobs/{id}/error", self.error, Scope.WORK),
        ]

    async def next(self, asked: AnyRequest) -> Response:
        """The next job that is due, as soon as there is one."""
        if self._claims.closed:
            return _stopping()
        queues, asked_at = [self.queue], self._operations.clock.now()
        claiming = asyncio.ensure_future(self._claims.claim(queues, 1, WORKER, self._wait_seconds))
        claimed = await self._while_connected(asked, claiming)
        if claimed.runs and is_closed(asked):
            await self._claims.give_back(claimed)
            return Response(status_code=204)
        for run in claimed.runs:
            job = claimed.jobs.get(run.job_id or "")
            given = None if job is None else handed(payload_of(job.target))
            if given is not None:
                waited = (self._operations.clock.now() - asked_at) // 1000
                log.info("poll_stats", extra={"promoted_count": 1, "poll_duration_ms": waited})
                return value(given)
            await self._settle(run, Failed("not a job of this door", retryable=False))
        return _stopping() if self._claims.closed else Response(status_code=204)

    async def _while_connected(self, asked: AnyRequest, claiming: asyncio.Future[Claimed]) -> Claimed:
        """The claim, unless its worker leaves first: then nothing stays claimed."""
        leaving = asyncio.ensure_future(_left(asked))
        try:
            either: set[asyncio.Future[Any]] = {claiming, leaving}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                return await claiming
            claiming.cancel()
            await asyncio.wait([claiming])
            if not claiming.cancelled() and claiming.exception() is None:
                await self._claims.give_back(claiming.result())
            return Claimed()
        finally:
            leaving.cancel()
            if not claiming.done():
                claiming.cancel()

    async def complete(self, asked: AnyRequest) -> Response:
        return await self._report(asked, failed=False)

    async def error(self, asked: AnyRequest) -> Response:
        return await self._report(asked, failed=True)

    async def _report(self, asked: AnyRequest, *, failed: bool) -> Response:
        body = await read_all(asked, REPORT_BYTES_MAX)
        try:
            told = msgspec.json.decode(body, type=Told, strict=False) if body.strip() else Told()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return value({"error": f"not a report: {error}"}, 400)
        try:
            job = await self._operations.jobs.get_job(asked.path_params["id"])
        except NotFound:
            job = None
        if job is None or job.labels.get(LABEL) != NAME:
            return value({"error": f"there is no job {asked.path_params['id']!r}"}, 404)
        outcome = Failed(told.error or "the worker gave no reason", retryable=False) if failed else Succeeded()
        unfinished = (await self._operations.store.unfinished_runs([job.id]))[job.id]
        run = next((run for run in unfinished if run.state in CLAIMED and run.queue == self.queue), None)
        if run is not None and await self._settle(run, outcome):
            await self._tell(job.name, told, failed)
        return Response(status_code=204)

    async def _settle(self, run: Run, outcome: Outcome) -> bool:
        """Whether it counted."""
        try:
            await self._operations.settling.settle_one(Settlement(run.id, run.token, outcome))
        except (Conflict, NotFound):
            return False
        return True

    async def _tell(self, id: str, told: Told, failed: bool) -> None:
        """The line that those who run such a system look for."""
        operations = self._operations
        job = await operations.jobs.get_job(id)
        fire_at = next_after_end(job, (await last_runs(operations.store, [job])).get(job.id))
        duration = round(operations.clock.now() / 1000 - told.picked_up_at * 1000) if told.picked_up_at else 0
        waited = round(((told.picked_up_at or 0) - told.scheduled_at) * 1000) if told.scheduled_at else 0
        again = None if fire_at is None else to_text(due_of(job, fire_at))
        fields = {"job_id": id, "duration_ms": duration, "wait_ms": waited}
        if failed:
            log.warning("job_error", extra={**fields, "error": (told.error or "")[:200], "will_retry_at": again})
        else:
            log.info("job_complete", extra={**fields, "next_run_at": again})


async def _left(asked: AnyRequest) -> None:
    while (await asked.receive())["type"] != "http.disconnect":
        pass


def _stopping() -> Response:
    return value({"error": "the server is stopping"}, 503)
