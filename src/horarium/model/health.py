"""How a job's runs have ended of late: its last run, its last success, its failures in a row.

A store keeps this beside each job, and counts an end in the transaction that writes it. The runs of one batch are
counted as one: of those the last is the one that finished last; of several in one instant a completed one, else that
with the greatest id. Of batches the last is the one that was written last: no clocks are compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from horarium.clock import Instant
from horarium.model.changes import RunChange
from horarium.model.runs import Run
from horarium.model.states import UNFINISHED, State


class LastRun(Struct, frozen=True):
    """The run of a job that completed or failed last."""

    id: str
    state: State
    finished_at: Instant
    error: str | None = None


class Health(Struct, frozen=True):
    """`failing_since`: when the first of the failures in a row ended. A cancelled run changes nothing."""

    last_run: LastRun | None = None
    last_success_at: Instant | None = None
    failures_in_a_row: int = 0
    failing_since: Instant | None = None


NO_HEALTH = Health()
_COMPLETED, _FAILED = State.COMPLETED, State.FAILED


def counts(change: RunChange) -> bool:
    """Whether this change, of a run of a job, completes it or lets it fail."""
    run = change.run
    return run.state in (_COMPLETED, _FAILED) and run.finished_at is not None and change.state in UNFINISHED


def health_after(changes: Iterable[RunChange]) -> dict[str, Health]:
    """The health of each job as far as these changes, which were written together, say it."""
    ended: dict[str, list[Run]] = {}
    for change in changes:
        job_id = change.run.job_id
        if job_id is not None and counts(change):
            ended.setdefault(job_id, []).append(change.run)
    return {job_id: _of(runs) for job_id, runs in ended.items()}


def _of(runs: list[Run]) -> Health:
    last = max(runs, key=_order) if len(runs) > 1 else runs[0]
    said = LastRun(last.id, last.state, last.finished_at or 0, last.error)
    if len(runs) == 1 and last.state is _COMPLETED:
        return Health(said, last.finished_at)
    successes = [run.finished_at or 0 for run in runs if run.state is _COMPLETED]
    success_at = max(successes, default=None)
    failures = [
        run.finished_at or 0
        for run in runs
        if run.state is _FAILED and (success_at is None or (run.finished_at or 0) > success_at)
    ]
    return Health(said, success_at, len(failures), min(failures, default=None))


def _order(run: Run) -> tuple[Instant, bool, str]:
    return run.finished_at or 0, run.state is _COMPLETED, run.id


def merged(before: Health, later: Health) -> Health:
    """The health after a batch of which `later` is what it says alone."""
    if later.last_success_at is not None:
        return later
    return Health(
        later.last_run,
        before.last_success_at,
        before.failures_in_a_row + later.failures_in_a_row,
        later.failing_since if before.failing_since is None else before.failing_since,
    )
