"""The endpoints under /runs that people use: list, show, cancel, retry."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import UNSET, UnsetType

from horarium.access.roles import Scope
from horarium.api import examples
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer
from horarium.api.looking_schemas import LineView, LogQuery, LogView, WaitQuery
from horarium.api.problems import InvalidContent
from horarium.api.reading import idempotency_key, read_cursor, run_id, write_cursor
from horarium.api.schemas import CancelRequest, RetryRequest, RunPage, RunQuery
from horarium.clock import INSTANT_MAX, INSTANT_MIN, Instant, to_datetime, to_instant
from horarium.model import encode_payload
from horarium.model.identity import is_run_id
from horarium.model.targets import PLAIN_QUEUES
from horarium.operations.bounds.reaching import require_asked
from horarium.ports import RunFilter
from horarium.wire.faults import Fault
from horarium.wire.views import RunView, run_view

CANCEL_REASON = "cancelled by request"
LINE_DIGITS_MAX = 16


def shown_queue(given: str) -> str:
    """The queue that a reader means: `http`, `notify` and their kin and `kind/NAME` as they are, another plain name as
    `pull/NAME`."""
    return given if "/" in given or given in PLAIN_QUEUES else f"pull/{given}"


def bounded_instant(moment: datetime | UnsetType, field: str) -> Instant | None:
    """An instant from 1970 to 2200. Raises InvalidContent for one outside."""
    if moment is UNSET:
        return None
    instant = to_instant(moment)
    if not 0 <= instant <= INSTANT_MAX:
        raise InvalidContent([Fault(field, f"{moment.isoformat()} lies outside of the years 1970 to 2200")])
    return instant


def _bound(moment: datetime | UnsetType) -> Instant | None:
    """An end of the interval that is asked for; no fire time lies outside of the years 1970 to 2200 anyway."""
    return None if moment is UNSET else min(max(to_instant(moment), INSTANT_MIN), INSTANT_MAX)


def _beyond(prefix: str) -> str:
    """The id right after those that begin with these hexadecimal digits. Runs are listed by id, descending."""
    value = min((int(prefix, 16) + 1) << 4 * (32 - len(prefix)), (1 << 128) - 1)
    return str(UUID(int=value))


class Runs(Handlers):
    @Endpoint(
        "GET", "/runs", "listRuns", tag="runs", scope=Scope.RUNS_READ, query=RunQuery, bound=True, costly=True,
        summary="List runs, newest fire time first",
        answers={200: (RunPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_runs(self, call: Call) -> Answer:
        query: RunQuery = call.query
        where = RunFilter(
            job=None if query.job is UNSET else query.job,
            states=frozenset(query.state),
            queue=None if query.queue is UNSET else shown_queue(query.queue),
            since=_bound(query.since),
            until=_bound(query.until),
        )
        prefix = "" if query.id is UNSET else query.id.replace("-", "")[:32]
        after = read_cursor("runs", query.cursor, is_run_id) or (_beyond(prefix) if prefix else None)
        page = await self._operations.runs.list_runs(where, after, query.limit)
        found = [run for run in page.items if run.id.replace("-", "").startswith(prefix)]
        runs = [run_view(run) for run in found]
        more = page.next_after if len(found) == len(page.items) else None
        return answer(RunPage(runs, write_cursor("runs", more)))

    @Endpoint(
        "GET", "/runs/{id}", "getRun", tag="runs", scope=Scope.RUNS_READ, query=WaitQuery,
        summary="Show a run, or wait for its end",
        description="With `wait_seconds`, the answer comes as soon as the run is over (long poll), or after "
        "that time with the run as it then is.",
        answers={200: (RunView, "The run")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        run = await self._operations.waiting.until_over(run_id(call.request), call.query.wait_seconds)
        return answer(run_view(run))

    @Endpoint(
        "GET", "/runs/{id}/log", "getRunLog", tag="runs", scope=Scope.RUNS_READ, query=LogQuery,
        summary="What a run has said, while it says it",
        description="Give `next_cursor` back as `after` to go on, with `wait_seconds` to follow a run that "
        "goes on. 256 KiB of a run are kept: the beginning and the end.",
        answers={200: (LogView, "Lines")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def log(self, call: Call) -> Answer:
        query: LogQuery = call.query
        after = read_cursor("log", query.after, lambda text: len(text) < LINE_DIGITS_MAX and text.isdecimal())
        id = run_id(call.request)
        page = await self._operations.logs.read(id, int(after or 0), query.limit, query.wait_seconds)
        lines = [LineView(to_datetime(line.at), line.stream, line.text) for line in page.lines]
        more = None if page.next_line is None else str(page.next_line)
        return answer(LogView(lines, write_cursor("log", more)))

    @Endpoint(
        "POST", "/runs/{id}/cancel", "cancelRun", tag="runs", scope=Scope.RUNS_WRITE,
        summary="Cancel a run",
        description="A pending run is cancelled at once. A running one becomes `cancelling`: its worker is "
        "informed at its next heartbeat, and has a grace period to stop.",
        body=CancelRequest, optional_body=True, examples=examples.REASONS,
        answers={200: (RunView, "The run as it now is")}, problems=("not_found", "state_conflict", "conflict"),
    )  # fmt: skip
    async def cancel(self, call: Call) -> Answer:
        reason = (call.body.reason if call.body else None) or CANCEL_REASON
        return answer(run_view(await self._operations.runs.cancel_run(run_id(call.request), reason)))

    @Endpoint(
        "POST", "/runs/{id}/retry", "retryRun", tag="runs", scope=Scope.RUNS_WRITE,
        summary="Do the work of a run again",
        description="A new run, for one that failed, was cancelled or was skipped. The old one stays as it is. "
        "A `payload` takes the place of the old one's; that needs the scope `runs:define` too. "
        "With an `Idempotency-Key`, the same request again answers with the same new run.",
        body=RetryRequest, optional_body=True, headers=examples.IDEMPOTENCY, examples=examples.PAYLOADS,
        answers={201: (RunView, "The new run")}, problems=("not_found", "state_conflict", "conflict"),
    )  # fmt: skip
    async def retry(self, call: Call) -> Answer:
        payload = encode_payload(call.body.payload) if call.body else None
        if payload is not None:
            call.principal.require(Scope.RUNS_DEFINE)
        key, id = idempotency_key(call.request), run_id(call.request)
        run = await self._operations.runs.retry_run(id, payload, key)
        if key is not None:
            require_asked(run, payload or (await self._operations.runs.get_run(id)).payload)
        return answer(run_view(run), 201, [("location", f"/api/v1/runs/{run.id}")])
