"""The endpoints under /batches."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from horarium.access.roles import Scope
from horarium.api import examples
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer
from horarium.api.looking_schemas import WaitQuery
from horarium.api.reading import idempotency_key, path_id, read_cursor, write_cursor
from horarium.api.schemas import AddedRun, CancelRequest, Page, PageQuery, RunPage
from horarium.model import Run
from horarium.model.batches import Batch, BatchState
from horarium.model.identity import is_run_id
from horarium.wire.batches import BatchDefinition, BatchRuns, BatchView, batch_view, read_runs
from horarium.wire.views import run_view

DIGITS_MAX = 9


class BatchPage(Page[BatchView]):
    """One page of batches, newest first."""


class FilledBatch(BatchView, kw_only=True):
    """The batch, and what became of the runs, in their order. One whose unique key another run holds is not in it."""

    runs: list[AddedRun]


class BatchesQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which batches."""

    state: Annotated[BatchState | UnsetType, Meta(description="Only those in this state.")] = UNSET


ROW = {"target": {"type": "queue", "queue": "rows"}, "payload": {"row": 1}}
EXAMPLES = (
    Example(
        "import", {"name": "import", "open": True, "on": {"finished": [{"notify": "office"}, {"trigger": "report"}]}}
    ),
    Example("at once", {"runs": [ROW, {**ROW, "payload": {"row": 2}}], "on": {"failed": [{"notify": "office"}]}}),
)
MORE = (Example("rows", {"runs": [ROW, {**ROW, "payload": {"row": 2}}]}),)
_PATH = "/batches/{id}"


class BatchesApi(Handlers):
    @Endpoint(
        "POST", "/batches", "addBatch", tag="batches", scope=Scope.RUNS_DEFINE,
        summary="Make a batch: runs whose common end brings something about",
        description="`finished` follows once, when the last run of a closed batch has ended; `completed` then "
        "too, if all did; `failed` at the first failure. What follows gets the counts: `{batch, total, "
        "completed, failed, cancelled}`. A run that can't be is refused with all.",
        body=BatchDefinition, nul=True, headers=examples.IDEMPOTENCY, examples=EXAMPLES,
        answers={201: (FilledBatch, "The batch")}, problems=("invalid_job", "conflict"),
    )  # fmt: skip
    async def create(self, call: Call) -> Answer:
        asked: BatchDefinition = call.body
        runs = await self._runs(call, asked.runs)
        opened = not runs if asked.open is None else asked.open
        batch, added = await self._operations.batches.create(
            asked.name, asked.on, runs, open=opened, key=idempotency_key(call.request)
        )
        return answer(_filled(batch, runs, added), 201, [("location", f"/api/v1/batches/{batch.id}")])

    @Endpoint(
        "POST", f"{_PATH}/runs", "addBatchRuns", tag="batches", scope=Scope.RUNS_DEFINE,
        summary="Add runs to a batch, in one transaction",
        description="At most 1,000, while it is open. With an `Idempotency-Key`, sending the same request "
        "again adds no run twice.",
        body=BatchRuns, nul=True, headers=examples.IDEMPOTENCY, examples=MORE,
        answers={200: (FilledBatch, "The batch")}, problems=("not_found", "invalid_job", "state_conflict", "conflict"),
    )  # fmt: skip
    async def add(self, call: Call) -> Answer:
        asked: BatchRuns = call.body
        runs = await self._runs(call, asked.runs)
        batch, added = await self._operations.batches.add(path_id(call.request), runs)
        return answer(_filled(batch, runs, added))

    async def _runs(self, call: Call, given: list[dict[str, object]]) -> list[Run]:
        key, definitions = idempotency_key(call.request), read_runs(given)
        return await self._operations.one_offs.prepared(
            definitions, [key and f"{key}/{index}" for index in range(len(definitions))]
        )

    @Endpoint(
        "GET", _PATH, "getBatch", tag="batches", scope=Scope.RUNS_READ, query=WaitQuery, bound=True,
        summary="Show a batch, or wait for its end",
        description="With `wait_seconds`, the answer comes as soon as it has finished (long poll), or after "
        "that time.",
        answers={200: (BatchView, "The batch")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        return answer(batch_view(await self._operations.batches.get(path_id(call.request), call.query.wait_seconds)))

    @Endpoint(
        "GET", "/batches", "listBatches", tag="batches", scope=Scope.RUNS_READ, query=BatchesQuery, bound=True,
        summary="Batches, newest first",
        answers={200: (BatchPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: BatchesQuery = call.query
        state = None if query.state is UNSET else query.state
        after = read_cursor("batches", query.cursor, is_run_id)
        page = await self._operations.batches.page(state, after, query.limit)
        return answer(BatchPage([batch_view(each) for each in page.items], write_cursor("batches", page.next_after)))

    @Endpoint(
        "GET", f"{_PATH}/runs", "listBatchRuns", tag="batches", scope=Scope.RUNS_READ, query=PageQuery, bound=True,
        summary="The runs of a batch, in the order in which they were added",
        answers={200: (RunPage, "One page")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def runs(self, call: Call) -> Answer:
        query: PageQuery = call.query
        after = read_cursor("batch", query.cursor, lambda text: text.isdecimal() and len(text) <= DIGITS_MAX)
        page = await self._operations.batches.runs(path_id(call.request), after, query.limit)
        return answer(RunPage([run_view(run) for run in page.items], write_cursor("batch", page.next_after)))

    @Endpoint(
        "POST", f"{_PATH}/close", "closeBatch", tag="batches", scope=Scope.RUNS_DEFINE,
        summary="Close a batch: it finishes once all its runs have ended",
        answers={200: (BatchView, "The batch")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def close(self, call: Call) -> Answer:
        return answer(batch_view(await self._operations.batches.close(path_id(call.request))))

    @Endpoint(
        "POST", f"{_PATH}/cancel", "cancelBatch", tag="batches", scope=Scope.RUNS_DEFINE,
        summary="Close a batch, and cancel its runs that have not ended",
        body=CancelRequest, optional_body=True, examples=examples.REASONS,
        answers={200: (BatchView, "The batch")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def cancel(self, call: Call) -> Answer:
        reason = call.body.reason if call.body else None
        return answer(batch_view(await self._operations.batches.cancel(path_id(call.request), reason)))

    @Endpoint(
        "POST", f"{_PATH}/retry", "retryBatch", tag="batches", scope=Scope.RUNS_DEFINE,
        summary="Do the failed runs of a batch again",
        description="A new run in the place of each that failed. A batch that had finished is to finish again, "
        "and what follows from that follows again.",
        answers={200: (BatchView, "The batch")}, problems=("not_found", "conflict"),
    )  # fmt: skip
    async def retry(self, call: Call) -> Answer:
        return answer(batch_view(await self._operations.batches.retry(path_id(call.request))))


def _filled(batch: Batch, given: list[Run], added: list[Run]) -> FilledBatch:
    view = batch_view(batch)
    runs = [
        AddedRun(there.id, "created" if there.id == run.id else "exists")
        for run, there in zip(given, added, strict=True)
    ]
    return FilledBatch(**{name: getattr(view, name) for name in BatchView.__struct_fields__}, runs=runs)
