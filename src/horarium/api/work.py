"""The endpoints that workers use: claim, heartbeat, complete, fail, settle. The hot path.

The hard case is a worker that disconnects. One that leaves while it waits must take no run with it; one that leaves at
the moment of the hand-over has its runs given back; one that leaves later loses its lease in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from horarium.access.roles import Scope
from horarium.api import examples
from horarium.api.access import require_queues
from horarium.api.answers import CLOSED
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer, no_content
from horarium.api.limits import LOG_BODY_BYTES_MAX, REPORT_BYTES_MAX
from horarium.api.looking_schemas import Kept, LineRequest, LogRequest
from horarium.api.problems import InvalidContent, Stopping, TooManyWaiters, problem_of
from horarium.api.reading import run_id
from horarium.api.routing import AnyRequest
from horarium.api.runs import bounded_instant
from horarium.api.schemas import (
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    HeartbeatRequest,
    PulseView,
    Report,
    Reports,
    RunBatch,
    Settled,
)
from horarium.clock import Instant, to_datetime, to_wall
from horarium.errors import Forbidden, HorariumError, InvalidRequest
from horarium.model import (
    RESULT_BYTES_MAX,
    Cancelled,
    Deferred,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from horarium.model.identity import is_run_id
from horarium.model.logs import LogLine
from horarium.operations.facade import Operations
from horarium.operations.settling.settling import Settlement
from horarium.operations.writing.named import no_run
from horarium.ports import Claimed
from horarium.services.polling.claims import WAITERS_MAX, Claims
from horarium.wire.faults import Fault
from horarium.wire.views import RunView, claimed_view, run_view

STOPPING = "this server is about to stop; claim from another, or again when it is back"
PULLED = "pull/"
"""What the queues that workers claim from begin with."""


def claimed_queue(given: str) -> str:
    """The line that a worker means: `kind/NAME` as it is, a plain name as `pull/NAME`."""
    return given if "/" in given else f"pull/{given}"


def json_text(value: Any, field: str) -> bytes | None:
    """What a worker reports, as JSON text. Raises InvalidRequest where it is too large to be kept."""
    if value is None:
        return None
    text = msgspec.json.encode(value)
    if len(text) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"{field}: {len(text):,} bytes; at most {RESULT_BYTES_MAX:,} are kept", field=field)
    return text


def outcome_of(report: Report) -> Outcome:
    """The outcome that a report gives. Raises InvalidRequest for one that lacks what belongs to it."""
    match report.outcome:
        case "completed" | "succeeded":
            return Succeeded(json_text(report.result, "result"))
        case "failed":
            return Failed(
                report.error or "the worker gave no reason",
                report.retryable,
                report.retry_after_seconds,
                json_text(report.result, "result"),
            )
        case "cancelled":
            return Cancelled(report.reason or "stopped by its worker")
        case "released":
            return Released(report.reason or "given back by its worker")
        case "deferred":
            until = bounded_instant(report.until if report.until is not None else msgspec.UNSET, "until")
            if until is None:
                raise InvalidContent([Fault("until", "is missing; a deferred run needs the instant to go on at")])
            return Deferred(until, report.reason or "deferred by its worker")


class Work(Handlers):
    """Handlers; what they do is in `Operations` and `Claims`."""

    def __init__(self, operations: Operations, claims: Claims, waiters_max: int = WAITERS_MAX) -> None:
        super().__init__(operations)
        self._claims = claims
        self._waiters_max = waiters_max

    @Endpoint(
        "POST", "/runs/claim", "claimRuns", tag="work", scope=Scope.WORK,
        summary="Claim runs to work on",
        description="With `wait_seconds`, the answer comes as soon as a run is due (long poll). Each run comes "
    "with a `lease`: its token goes with every report, and before `expires_at` the worker must send a "
    "heartbeat or settle it. A worker that disconnects while it waits takes no run. When the server stops, "
    "those that wait are answered 503.",
        body=ClaimRequest, examples=examples.CLAIMS,
        answers={200: (RunBatch, "Runs, each with its lease"), 204: (None, "Nothing is due")},
        problems=("too_many_waiters", "stopping"),
    )  # fmt: skip
    async def claim(self, call: Call) -> Answer:
        asked: ClaimRequest = call.body
        queues = [claimed_queue(queue) for queue in asked.queues]
        require_queues(call.principal, [queue.removeprefix(PULLED) for queue in queues])
        if self._claims.closed:
            raise Stopping(STOPPING)
        if asked.wait_seconds <= 0:
            claimed = await self._claims.claim(queues, asked.limit, asked.worker)
        else:
            if self._claims.waiting >= self._waiters_max:
                raise TooManyWaiters(f"{self._waiters_max:,} workers wait already; try again, or ask without waiting")
            claiming = asyncio.ensure_future(self._claims.claim(queues, asked.limit, asked.worker, asked.wait_seconds))
            claimed = await self._while_connected(call.request, claiming)
        if claimed.runs and is_closed(call.request):
            await self._claims.give_back(claimed)
            return no_content()
        if not claimed.runs and self._claims.closed:
            raise Stopping(STOPPING)
        if not claimed.runs:
            return no_content()
        jobs, ahead = claimed.jobs, to_wall(self._operations.clock, 0)
        return answer(RunBatch([claimed_view(run, jobs.get(run.job_id or ""), ahead) for run in claimed.runs]))

    async def _while_connected(self, request: AnyRequest, claiming: asyncio.Future[Claimed]) -> Claimed:
        """The claim, unless its worker disconnects first: then nothing stays claimed."""
        leaving = asyncio.ensure_future(_hung_up(request))
        either: set[asyncio.Future[Any]] = {claiming, leaving}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                return await claiming
            if claiming.done():
                await self._claims.give_back(claiming.result())
            return Claimed()
        except asyncio.CancelledError:
            if claiming.done() and claiming.exception() is None:
                await self._claims.give_back(claiming.result())
            raise
        finally:
            leaving.cancel()
            if not claiming.done():
                claiming.cancel()
                await asyncio.wait({claiming})
                if not claiming.cancelled():
                    # An outage, after the client has left: read, so that asyncio does not complain of it.
                    claiming.exception()

    @Endpoint(
        "POST", "/runs/{id}/heartbeat", "heartbeatRun", tag="work", scope=Scope.WORK, body_bytes_max=REPORT_BYTES_MAX,
        summary="Renew the lease of a run",
        body=HeartbeatRequest, nul=True, examples=examples.HEARTBEATS,
        answers={200: (PulseView, "The lease is renewed")}, problems=("not_found", "lease_lost", "conflict"),
    )  # fmt: skip
    async def heartbeat(self, call: Call) -> Answer:
        beat: HeartbeatRequest = call.body
        progress = json_text(beat.progress, "progress")
        await self._refuse_others(call, run_id(call.request))
        pulse = await self._operations.runs.heartbeat(run_id(call.request), beat.token, progress)
        return answer(PulseView(pulse.cancel_requested, to_datetime(pulse.expires_at)))

    @Endpoint(
        "POST", "/runs/{id}/log", "logRun", tag="work", scope=Scope.WORK, body_bytes_max=LOG_BODY_BYTES_MAX,
        summary="Add lines to the log of a run",
        description="At most 1,000 lines, under the token of the claim; they are there to be read at once.",
        body=LogRequest, nul=True, examples=examples.LOGS,
        answers={200: (Kept, "They are kept")}, problems=("not_found", "lease_lost", "conflict"),
    )  # fmt: skip
    async def log(self, call: Call) -> Answer:
        report: LogRequest = call.body
        id, now = run_id(call.request), self._operations.clock.now()
        await self._refuse_others(call, id)
        lines = [_line(line, now) for line in report.lines]
        await self._operations.logs.report(id, report.token, lines)
        return answer(Kept(len(lines)))

    @Endpoint(
        "POST", "/runs/{id}/complete", "completeRun", tag="work", scope=Scope.WORK, body_bytes_max=REPORT_BYTES_MAX,
        summary="Report that a run is done",
        body=CompleteRequest, nul=True, examples=examples.COMPLETIONS,
        answers={200: (RunView, "The run as it now is")}, problems=("not_found", "lease_lost", "conflict"),
    )  # fmt: skip
    async def complete(self, call: Call) -> Answer:
        report: CompleteRequest = call.body
        return await self._settle_one(call, report.token, Succeeded(json_text(report.result, "result")))

    @Endpoint(
        "POST", "/runs/{id}/fail", "failRun", tag="work", scope=Scope.WORK, body_bytes_max=REPORT_BYTES_MAX,
        summary="Report that an attempt failed",
        description="The run is tried again if its retry policy says so and `retryable` is true. On a run that "
        "was asked to stop, this ends it as `cancelled`.",
        body=FailRequest, nul=True, examples=examples.FAILURES,
        answers={200: (RunView, "The run as it now is")}, problems=("not_found", "lease_lost", "conflict"),
    )  # fmt: skip
    async def fail(self, call: Call) -> Answer:
        report: FailRequest = call.body
        return await self._settle_one(
            call, report.token, Failed(report.error, report.retryable, report.retry_after_seconds)
        )

    async def _others(self, call: Call, ids: Sequence[str]) -> set[str]:
        """Those of these runs that a caller which is bound to queues may not touch. (Work is given by queue, not by
        label.)"""
        if not call.principal.bound:
            return set()
        runs = [run for run in await self._operations.store.get_runs(ids) if run is not None]
        return {run.id for run in runs if not call.principal.may_serve(run.queue.removeprefix(PULLED))}

    async def _refuse_others(self, call: Call, id: str) -> None:
        """Raises Forbidden."""
        if await self._others(call, [id]):
            raise _of_others(call)

    async def _settle_one(self, call: Call, token: int, outcome: Outcome) -> Answer:
        await self._refuse_others(call, run_id(call.request))
        run = await self._operations.settling.settle_one(Settlement(run_id(call.request), token, outcome))
        return answer(run_view(run))

    @Endpoint(
        "POST", "/runs/settle", "settleRuns", tag="work", scope=Scope.WORK,
        summary="Report how many runs ended, in one request",
        description="At most 1,000. Each report is judged by itself: the answers are in the order of the "
    "reports, each with the run's state or with the problem that kept it from being written.",
        body=Reports, nul=True, examples=examples.SETTLEMENTS,
        answers={200: (list[Settled], "One answer for each report")}, problems=("conflict",),
    )  # fmt: skip
    async def settle(self, call: Call) -> Answer:
        reports: Sequence[Report] = call.body
        others = await self._others(call, [report.id for report in reports])
        settled: list[Settled] = []
        asked: list[tuple[int, Settlement]] = []
        for index, report in enumerate(reports):
            settled.append(Settled(report.id))
            try:
                if report.id in others:
                    raise _of_others(call)
                asked.append((index, _settlement(report)))
            except HorariumError as error:
                settled[index].problem = problem_of(error)
        answers = await self._operations.settling.settle([settlement for _, settlement in asked]) if asked else []
        for (index, _), run in zip(asked, answers, strict=True):
            if isinstance(run, HorariumError):
                settled[index].problem = problem_of(run)
            else:
                settled[index].state = run.state
        return answer(settled)


def _line(given: str | LineRequest, now: Instant) -> LogLine:
    if isinstance(given, str):
        return LogLine(now, "stdout", given)
    at = now if given.at is None else bounded_instant(given.at, "at") or now
    return LogLine(at, given.stream, given.text)


def _of_others(call: Call) -> Forbidden:
    return Forbidden(f"{call.principal.name} is bound to queues, and this run is in none of them", [Scope.WORK])


def _settlement(report: Report) -> Settlement:
    if not is_run_id(report.id):
        raise no_run(report.id)
    return Settlement(report.id, report.token, outcome_of(report))


def is_closed(request: AnyRequest) -> bool:
    """Whether the client has hung up. Nothing is awaited from here to the answer, so that this is true until then."""
    return bool(request.scope.get(CLOSED, bool)())


async def _hung_up(request: AnyRequest) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
