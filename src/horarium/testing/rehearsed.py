"""What came of each fire time in a rehearsal: noted as it is written, counted for each job, and then forgotten.

A day of a thousand jobs is more than a million runs. So the space of the store keeps none that has ended, but the last
one of a job that counts from its end, and of those that are told one by one no more than `TOLD_MAX`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from horarium.clock import SECOND, Instant, to_text
from horarium.model import UNFINISHED, Cause, Disposition, EventKind, Run, State
from horarium.model.targets import NOTIFY_QUEUE
from horarium.stores.memory.ordered import Ordered
from horarium.stores.memory.space import Space

LATE = SECOND
"""A run that begins later than this after it was due is late."""
TOLD_MAX = 100_000


class Counts(Struct):
    """Fire times by what became of them. `runs`: those that began, of which `late` and `caught_up` are the ones that
    did so late; `held`: those that a hold delayed or skipped; `skipped`: by disposition; `failed`: begun, and ended by
    their time limit; `running` and `waiting`: at the end."""

    runs: int = 0
    late: int = 0
    late_max_seconds: float = 0.0
    caught_up: int = 0
    held: int = 0
    skipped: dict[str, int] = {}
    failed: int = 0
    running: int = 0
    waiting: int = 0

    @property
    def uneventful(self) -> bool:
        """Whether every run began in time."""
        return not (self.late or self.caught_up or self.held or self.skipped or self.failed or self.waiting)


class Rehearsed(Struct):
    """What would happen in [since, until). `runs`: each run and each skipped fire time, in the order of their ends, the
    first 100,000 (`truncated`: there are more)."""

    since: str
    until: str
    seed: int
    totals: Counts
    jobs: dict[str, Counts]
    runs: list[dict[str, Any]]
    truncated: bool = False


class _Unindexed(Ordered[Any]):
    """An index that nothing asks in a rehearsal."""

    def add(self, item: Any) -> None:
        """It is not kept."""

    def remove(self, item: Any) -> None:
        """It was not kept."""


class Witness(Space):
    """The data of a rehearsal. Leases are kept for as long as their runs go on, since its workers do not die."""

    def __init__(self, until: Instant) -> None:
        super().__init__()
        self._until = until
        self._due: dict[str, Instant] = {}
        self._began: dict[str, Instant] = {}
        self._last: dict[str, Run] = {}
        self.totals, self.of_job = Counts(), dict[str, Counts]()
        self.told: list[dict[str, Any]] = []
        self.truncated = False
        self.cancelling: list[str] = []
        self.from_end: set[str] = set()
        """The ids of jobs that count from the ends of their runs."""
        self.found_runs.leases = self.found_runs.prunable = _Unindexed()
        self.found_runs.in_state = dict.fromkeys(State, self.found_runs.leases)

    def add_run(self, run: Run) -> bool:
        if run.queue == NOTIFY_QUEUE:
            return True
        if run.state not in UNFINISHED:
            self._note(run)
            return True
        added = super().add_run(run)
        if added:
            self._due[run.id] = run.fire_at if run.cause is Cause.CATCH_UP else run.due_at
        return added

    def put_run(self, run: Run) -> None:
        if run.state in UNFINISHED:
            super().put_run(run)
            if run.state is State.RUNNING and run.started_at is not None:
                self._began.setdefault(run.id, run.started_at)
            elif run.state is State.PENDING and not run.attempt:
                self._began.pop(run.id, None)  # claimed, and put back: a hold or a limit keeps it from its begin
            elif run.state is State.CANCELLING:
                self.cancelling.append(run.id)
            return
        super().delete_run(self.runs[run.id])
        self._note(run)
        if run.job_id is not None and run.job_id in self.from_end:
            if (before := self._last.get(run.job_id)) is not None:
                super().delete_run(before)
            super().add_run(run)
            self._last[run.job_id] = run

    def delete_run(self, run: Run) -> None:
        super().delete_run(run)
        self._due.pop(run.id, None)
        self._began.pop(run.id, None)

    def note_rest(self) -> None:
        """What has not ended at the end of the rehearsal."""
        for run in sorted(self.runs.values(), key=lambda run: (run.fire_at, run.id)):
            if run.state in UNFINISHED:
                self._note(run)

    def _note(self, run: Run) -> None:
        due = self._due.pop(run.id, run.due_at)
        began = self._began.pop(run.id, None)
        if run.job is None or run.fire_at >= self._until or (began is None and due >= self._until):
            return
        counts = self.of_job.get(run.job)
        if counts is None:
            counts = self.of_job[run.job] = Counts(skipped={})
        late = 0 if began is None else max(0, began - due)
        held = bool(run.history) and any(event.kind is EventKind.HELD for event in run.history)
        for each in (counts, self.totals):
            _count(each, run, began is not None, late, held)
        if len(self.told) < TOLD_MAX:
            self.told.append(_told(run, due, began, late, held))
        else:
            self.truncated = True


def _count(counts: Counts, run: Run, began: bool, late: Instant, held: bool) -> None:
    counts.held += run.fires if run.disposition is Disposition.HELD else held
    if began:
        counts.runs += 1
        if run.cause is Cause.CATCH_UP:
            counts.caught_up += 1
        elif late > LATE:
            counts.late += 1
        if late > LATE:
            counts.late_max_seconds = max(counts.late_max_seconds, late / SECOND)
        counts.failed += run.state is State.FAILED
        counts.running += run.state in UNFINISHED
    elif run.state in UNFINISHED:
        counts.waiting += 1
    else:
        why = str(run.disposition or run.state)
        counts.skipped[why] = counts.skipped.get(why, 0) + run.fires


def _told(run: Run, due: Instant, began: Instant | None, late: Instant, held: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "job": run.job,
        "queue": run.queue,
        "fire_at": to_text(run.fire_at),
        "due_at": to_text(due),
        "began_at": None if began is None else to_text(began),
        "finished_at": None if run.finished_at is None else to_text(run.finished_at),
        "state": str(run.state),
        "cause": str(run.cause),
        "late_seconds": late / SECOND,
    }
    if run.disposition is not None:
        told["disposition"] = str(run.disposition)
    if run.fires > 1:
        told["fires"] = run.fires
    if held:
        told["held"] = True
    return told
