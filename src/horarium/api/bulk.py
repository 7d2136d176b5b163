"""The endpoints that add one-off runs and runs of the past, and that retry or cancel many runs at once."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from msgspec import UNSET

from horarium.access.roles import Scope
from horarium.api import examples
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer
from horarium.api.problems import InvalidContent, problem_of
from horarium.api.reading import idempotency_key, job_name, read_cursor, write_cursor
from horarium.api.runs import CANCEL_REASON, bounded_instant, shown_queue
from horarium.api.schemas import (
    AddedRun,
    BulkAnswer,
    BulkRequest,
    CancelManyRequest,
    HistoryAnswer,
    HistoryRequest,
    RunsRequest,
)
from horarium.clock import INSTANT_MAX, SECOND, Instant
from horarium.errors import CallerError, Forbidden, HorariumError
from horarium.model import State
from horarium.model.identity import is_run_id
from horarium.operations.runs.bulk import CANCELLED, FORBIDDEN, Batch, Selection
from horarium.operations.runs.one_offs import Added
from horarium.operations.runs.runs import RETRIED
from horarium.ports import RunFilter
from horarium.wire.faults import Fault
from horarium.wire.numbers import whole_numbers
from horarium.wire.one_offs import RunDefinition
from horarium.wire.one_offs import read_run as read_fields
from horarium.wire.views import AddedRunView, run_view

PACE_WAIT_SECONDS_MAX = 2.0
"""How long a request waits for the instant from which its cursor holds. One that came earlier still does nothing."""
HOW = (
    "Give `ids`, or at least one field of the filter. One request works through at most 1,000 runs; where `cursor` is "
    "in the answer, send the same request with it to go on. `dry_run`: only count. "
)
"""The beginning of both descriptions."""
FILTERS = ("job", "state", "queue", "since", "until", "error_contains")


class Place(NamedTuple):
    """Where a batch begins: below this id, and not before that instant."""

    after: str | None
    at: Instant


class BulkRuns(Handlers):
    # ---- one-off runs

    @Endpoint(
        "POST", "/runs", "addRun", tag="runs", scope=Scope.RUNS_DEFINE,
        summary="Add a run that belongs to no job",
        description="Due now, `at` an instant, or after `delay_seconds`. `payload` replaces that of the "
        "target. Where another run holds the `unique_key` (or was made under the same `Idempotency-Key`), "
        "that run is the answer (200). `unique` and `debounce` say for how long a key is held, and change the "
        "run that waits. On a bus, such runs are under the job name `one-off`.",
        body=RunDefinition, nul=True, headers=examples.IDEMPOTENCY, examples=examples.RUNS,
        answers={201: (AddedRunView, "The run"), 200: (AddedRunView, "The run that holds the key")},
        problems=("invalid_job", "conflict"),
    )  # fmt: skip
    async def add(self, call: Call) -> Answer:
        added = await self._operations.one_offs.add_run(call.body, idempotency_key(call.request))
        location = [("location", f"/api/v1/runs/{added.run.id}")]
        view = run_view(added.run, AddedRunView, outcome=added.outcome)
        return answer(view, 201 if added.new else 200, location)

    @Endpoint(
        "POST", "/runs/batch", "addRuns", tag="runs", scope=Scope.RUNS_DEFINE,
        summary="Add many runs that belong to no job, in one transaction",
        description="At most 1,000. Each is judged by itself: the answers are in the order of the runs. With "
        "an `Idempotency-Key`, sending the same request again makes no run twice.",
        body=RunsRequest, nul=True, headers=examples.IDEMPOTENCY, examples=examples.RUN_BATCHES,
        answers={200: (list[AddedRun], "One answer for each run")},
    )  # fmt: skip
    async def add_many(self, call: Call) -> Answer:
        asked: RunsRequest = call.body
        key = idempotency_key(call.request)
        answers: list[AddedRun | None] = []
        definitions: list[RunDefinition] = []
        keys: list[str | None] = []
        for index, fields in enumerate(asked.runs):
            try:
                definition = read_fields(whole_numbers(fields, RunDefinition))
                definitions.append(definition)
                keys.append(key and f"{key}/{index}")
                answers.append(None)
            except CallerError as error:
                answers.append(_not_added(error))
        added = await self._operations.one_offs.add_runs(definitions, keys) if definitions else []
        refused = [(each, None) for each in added if isinstance(each, Forbidden)]
        call.refuse(refused[:1], len(refused))
        each_added = iter(added)
        return answer([_added(next(each_added)) if each is None else each for each in answers])

    @Endpoint(
        "POST", "/jobs/{name}/history", "addHistory", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Add runs that another system performed",
        description="At most 1,000, all of them over. They are history, and nothing follows from them. What "
        "the job has a run for, at the same fire time, stays as it is, so the request may be sent again. What "
        "is older than the job keeps its runs is left out.",
        body=HistoryRequest, examples=examples.HISTORIES,
        answers={200: (HistoryAnswer, "What became of them")}, problems=("not_found",),
    )  # fmt: skip
    async def remember(self, call: Call) -> Answer:
        asked: HistoryRequest = call.body
        done = await self._operations.history.add(job_name(call.request), asked.system, asked.runs)
        return answer(HistoryAnswer(done.added, done.known, done.too_old))

    # ---- many at once

    @Endpoint(
        "POST", "/runs/retry", "retryRuns", tag="runs", scope=Scope.RUNS_WRITE,
        summary="Do the work of many runs again",
        description=HOW + "A new run for each one that matches (`state`: failed, unless said otherwise), but "
        "once only for as long as its retry is kept, so the request may be sent again. `per_second`: the new "
        "runs fall due at this pace. `left` says why some were left: `retried_before`, `overlap` (the job's "
        "policy does not let them run now), `job_deleted`, `key_missing` (their payload lacks part of a key "
        "of the job).",
        body=BulkRequest, examples=examples.RETRIES,
        answers={200: (BulkAnswer, "What this request did")}, problems=("not_found", "invalid_cursor", "conflict"),
    )  # fmt: skip
    async def retry(self, call: Call) -> Answer:
        asked: BulkRequest = call.body
        selection = _selection(asked, RETRIED, frozenset({State.FAILED}), "retried")
        place, states = _place(asked, "retry"), selection.where.states
        bulk = self._operations.bulk
        if asked.dry_run:
            return _answer(await bulk.count_retries(selection, states, place.after), "retry")
        batch = await bulk.retry(selection, states, place.after, asked.per_second, place.at)
        if left := batch.left.get(FORBIDDEN):
            why = Forbidden(f"{call.principal.name} is bound to queues, and these jobs are in none of them")
            call.refuse([(why, None)], left)
        return _answer(batch, "retry")

    @Endpoint(
        "POST", "/runs/cancel", "cancelRuns", tag="runs", scope=Scope.RUNS_WRITE,
        summary="Cancel many runs",
        description=HOW + "Pending runs are cancelled at once, running ones asked to stop (`state`: pending "
        "and running, unless said otherwise). `per_second`: one request takes what may be cancelled in a "
        "second, and the next one waits for its turn.",
        body=CancelManyRequest, examples=examples.CANCELS,
        answers={200: (BulkAnswer, "What this request did")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def cancel(self, call: Call) -> Answer:
        asked: CancelManyRequest = call.body
        selection = _selection(asked, CANCELLED, CANCELLED, "cancelled")
        place, states = _place(asked, "cancel"), selection.where.states
        bulk = self._operations.bulk
        if asked.dry_run:
            return _answer(await bulk.count(selection, states, place.after), "cancel")
        early = place.at - self._clock.now()
        if early > 0:
            await asyncio.sleep(min(early / SECOND, PACE_WAIT_SECONDS_MAX))
            if early > PACE_WAIT_SECONDS_MAX * SECOND:
                return _answer(Batch(after=place.after or "", next_at=place.at), "cancel")
        reason = asked.reason or CANCEL_REASON
        return _answer(await bulk.cancel(selection, states, place.after, asked.per_second, reason), "cancel")


def _added(added: Added | HorariumError) -> AddedRun:
    if isinstance(added, HorariumError):
        return _not_added(added)
    return AddedRun(added.run.id, added.outcome)


def _not_added(error: HorariumError) -> AddedRun:
    return AddedRun(None, "failed", problem_of(error))


def _selection(asked: BulkRequest, possible: frozenset[State], usual: frozenset[State], done: str) -> Selection:
    """Which runs are meant. Raises InvalidContent for none, and for states in which nothing can be done."""
    given = [name for name in FILTERS if getattr(asked, name) is not None]
    if asked.ids is not None and given:
        raise InvalidContent([Fault("ids", f"give ids or a filter ({given[0]}), not both")])
    if asked.ids is None and not given:
        raise InvalidContent([Fault("", f"give ids, or at least one of {', '.join(FILTERS)}: not every run is meant")])
    states = usual if asked.ids is None else possible
    if asked.state is not None:
        states = frozenset([asked.state] if isinstance(asked.state, State) else asked.state)
    if impossible := sorted(states - possible):
        names = ", ".join(sorted(possible))
        raise InvalidContent([Fault("state", f"a {impossible[0]} run can't be {done}; only {names} ones can")])
    where = RunFilter(
        job=asked.job,
        states=states,
        queue=None if asked.queue is None else shown_queue(asked.queue),
        since=bounded_instant(UNSET if asked.since is None else asked.since, "since"),
        until=bounded_instant(UNSET if asked.until is None else asked.until, "until"),
    )
    ids = None if asked.ids is None else tuple(asked.ids)
    return Selection(ids=ids, where=where, error_contains=asked.error_contains)


def _place(asked: BulkRequest, what: str) -> Place:
    text = read_cursor(what, UNSET if asked.cursor is None else asked.cursor, _is_place)
    if text is None:
        return Place(None, 0)
    at, _, after = text.partition("/")
    return Place(after or None, int(at))


def _is_place(text: str) -> bool:
    at, separator, after = text.partition("/")
    fits = at.isascii() and at.isdigit() and len(at) < 19 and int(at) <= INSTANT_MAX
    return fits and separator == "/" and (not after or is_run_id(after))


def _answer(batch: Batch, what: str) -> Answer:
    place = None if batch.after is None else f"{min(batch.next_at, INSTANT_MAX)}/{batch.after}"
    return answer(BulkAnswer(batch.matched, batch.done, dict(batch.left), write_cursor(what, place) or UNSET))
