"""Deletions that are allowed by the true time, even if a wall clock shows another: finished runs, skipped ones among
them, jobs that can never fire again, logs, figures of minutes, and entries of the audit.

These books go by the time that has passed in this world. A clock that is off by less than `FAR` may be believed by a
node that starts, so that much too early is allowed. A world lasts for minutes, so a thing kept for an hour stays in it.
"""

from __future__ import annotations

import msgspec

from horarium.access.audit import PREFIX as AUDIT
from horarium.clock import SECOND, Instant, to_micros
from horarium.model import UNFINISHED, Job, Run
from horarium.model.batches import BATCH
from horarium.model.logs import LOG_SECONDS_DEFAULT
from horarium.model.records import Record
from horarium.operations.runs.logs import BOOKS
from horarium.policies import RETENTION_SECONDS_DEFAULT
from horarium.services.loop.believed import FAR, NOTED, Note
from horarium.services.metrics.tallies import KEPT as TALLIES_KEPT
from horarium.services.metrics.tallies import PREFIX as TALLIES
from horarium.testing.simulate.audited import AuditWitness
from horarium.testing.simulate.trace import Trace

AUDIT_SECONDS = 3_600.0
"""How long the audit of a simulated world is kept."""
KEPT_SECONDS = {
    AUDIT: AUDIT_SECONDS,
    BATCH: RETENTION_SECONDS_DEFAULT,
    BOOKS: LOG_SECONDS_DEFAULT,
    TALLIES: TALLIES_KEPT / SECOND,
}
"""How long records are kept, by the beginning of their names."""


class Keeping:
    """The books. They count from the first right time on that a node noted: before it, no node can know better."""

    def __init__(self, trace: Trace, witness: AuditWitness) -> None:
        self._trace = trace
        self._witness = witness
        self._noted = False
        self._ended: dict[str, tuple[int, Instant | None, Instant]] = {}
        self._finished: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._early: list[tuple[Job, str]] = []

    def run_written(self, run: Run) -> None:
        """A run was added, or changed."""
        if run.state in UNFINISHED:
            self._ended.pop(run.id, None)
            return
        finished_at = run.finished_at or 0
        if run.id not in self._ended or self._ended[run.id][2] > finished_at:
            # One that ended in a wrong future is brought back: it ends again, and is kept as its job now says.
            kept = None if run.prune_at is None else run.prune_at - finished_at
            self._ended[run.id] = self._trace.elapsed, kept, finished_at

    def run_forgotten(self, run: Run) -> None:
        """A run is gone."""
        ended_at, kept, _ = self._ended.pop(run.id, (0, 0, 0))
        if run.state in UNFINISHED or run.prune_at == 0:
            return  # withdrawn, or of a future that turned out to be wrong
        if kept is None:
            self._trace.fail(f"run {run.id} ({run.state}) was forgotten, and was to be kept for good")
        elif (early := self._early_by(ended_at, kept)) is not None:
            self._trace.fail(f"run {run.id} ({run.state}) was forgotten {early} before its time")

    def job_written(self, old: Job | None, new: Job) -> None:
        """A job was written. Whether a person deleted it the audit says, in the end."""
        if new.finished_at is None:
            self._finished.pop(new.id, None)
            return
        finished_at = self._finished.setdefault(new.id, self._trace.elapsed)
        if old is None or old.deleted_at is not None or new.deleted_at is None:
            return
        seconds = new.retention.finished_seconds
        early = "for good" if seconds is None else self._early_by(finished_at, to_micros(seconds))
        if early is not None:
            self._early.append((new, early))

    def record_put(self, record: Record) -> None:
        """A record was written."""
        if record.name == NOTED:
            note = msgspec.json.decode(record.body, type=Note)
            self._noted |= abs(note.at - self._trace.true) < FAR
        self._written.setdefault(record.name, self._trace.elapsed)

    def record_forgotten(self, name: str) -> None:
        """A record is gone."""
        written_at = self._written.pop(name, None)
        for prefix, seconds in KEPT_SECONDS.items():
            if written_at is not None and name.startswith(prefix):
                early = self._early_by(written_at, to_micros(seconds))
                if early is not None:
                    self._trace.fail(f"record {name} was forgotten {early} before its time")

    def check(self) -> None:
        """At the end."""
        for job, early in self._early:
            if ("job", job.id, job.version) not in self._witness.entries:
                self._trace.fail(f"job {job.name} was forgotten {early} before its time")

    def _early_by(self, since: int, kept: int) -> str | None:
        early = kept - (self._trace.elapsed - since)
        return f"{early / SECOND:.0f} s" if self._noted and early > FAR else None
