"""A batch as its owner writes it, and as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from horarium.clock import moment, to_datetime
from horarium.errors import CallerError, InvalidRequest
from horarium.model.batches import Batch, BatchFollow, BatchOccasion, BatchOn, BatchState
from horarium.model.limits import TITLE_CHARS_MAX
from horarium.ports import BATCH_MAX
from horarium.rules.batches import told_of
from horarium.wire.numbers import whole_numbers
from horarium.wire.one_offs import RunDefinition, read_run

BatchName = Annotated[str, Meta(min_length=1, max_length=TITLE_CHARS_MAX)]
Runs = Annotated[list[dict[str, Any]], Meta(max_length=BATCH_MAX)]


class BatchDefinition(Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch: its first runs, each read as a `RunDefinition`; whether more are to come (`open`; left out: if no runs
    are given); and what is to follow, by occasion."""

    name: BatchName | None = None
    runs: Runs = []
    open: bool | None = None
    on: BatchOn = {}


class BatchRuns(Struct, forbid_unknown_fields=True):
    """Runs for a batch, each read as a `RunDefinition`."""

    runs: Runs


class BatchView(Struct, kw_only=True):
    """A batch. `total`: its runs; of these `unfinished` have not ended."""

    id: str
    name: str | None
    state: BatchState
    total: int
    completed: int
    failed: int
    cancelled: int
    unfinished: int
    on: dict[BatchOccasion, tuple[BatchFollow, ...]]
    created_at: datetime
    created_by: str | None
    closed_at: datetime | None
    finished_at: datetime | None


def batch_view(batch: Batch) -> BatchView:
    told = told_of(batch)
    return BatchView(
        id=batch.id,
        name=batch.name,
        state=batch.state,
        total=told.total,
        completed=told.completed,
        failed=told.failed,
        cancelled=told.cancelled,
        unfinished=max(0, told.total - told.completed - told.failed - told.cancelled),
        on=batch.on,
        created_at=to_datetime(batch.created_at),
        created_by=batch.by,
        closed_at=moment(batch.closed_at),
        finished_at=moment(batch.finished_at),
    )


def read_runs(given: Sequence[dict[str, Any]]) -> list[RunDefinition]:
    """The definitions. Raises InvalidRequest that names the run and its field."""
    found: list[RunDefinition] = []
    for index, fields in enumerate(given):
        try:
            found.append(read_run(whole_numbers(fields, RunDefinition)))
        except CallerError as error:
            field = f"runs[{index}].{error.field}" if error.field else f"runs[{index}]"
            raise InvalidRequest(f"runs[{index}]: {error.message}", field=field) from None
    return found
