"""The witness's book of jobs: each version that an owner made, and the answers about pauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from horarium.clock import SECOND, Instant
from horarium.model import Job, Run
from horarium.model.jobs import OWNED
from horarium.testing.simulate.absent import Absences
from horarium.testing.simulate.batchbooks import BatchBooks
from horarium.testing.simulate.fair import Fair
from horarium.testing.simulate.held import Held
from horarium.testing.simulate.hosts import Hosts
from horarium.testing.simulate.trace import Trace

EDITED = (*OWNED, "deleted_at")
SKEW_MAX = 2 * SECOND
"""How much two nodes may disagree on the time, and how long an edit may take to be written."""


class JobBooks:
    """The books of jobs. `paused_at`: from when on a job is paused, and the write before which that was answered."""

    def __init__(self, trace: Trace, runs: Mapping[str, Run]) -> None:
        self.versions: dict[str, list[Job]] = defaultdict(list)
        self.attempts_max: dict[str, int] = {}
        self.paused_at: dict[str, tuple[Instant, int]] = {}
        self.gates = Held(trace, self.versions)
        self.absences = Absences(trace, runs, self.versions)
        self.hosts: Hosts | None = None
        self.fair = Fair(trace)
        self.batches = BatchBooks(trace, runs)
        self._trace = trace

    def run_changed(self, old: Run, new: Run) -> None:
        """A run was written."""
        self.absences.changed(old, new)
        self.fair.written(old, new)
        if self.hosts is not None and new.state is not old.state:
            self.hosts.changed(new, self.versions.get(new.job_id or "", [None])[-1])

    def written(self, old: Job | None, new: Job) -> None:
        """A job was written."""
        trace = self._trace
        trace.writes += 1
        self.gates.asked.job_written(old, new)
        self.attempts_max[new.id] = max(self.attempts_max.get(new.id, 0), new.retry.attempts_max)
        edited = old is None or any(getattr(old, field) != getattr(new, field) for field in EDITED)
        if edited:
            trace.note(f"job {new.name} v{new.version} enabled={new.enabled} deleted={new.deleted_at}")
            self.versions[new.id].append(new)
        else:
            self.versions[new.id][-1] = new
        if old is None:
            return
        if new.version <= old.version:
            trace.fail(f"job {new.name}: version {new.version} after {old.version}")
        if new.updated_at < old.updated_at - SKEW_MAX and not trace.clock_stepped:
            trace.fail(f"job {new.name}: version {new.version} undoes a change: a stale plan was carried out")
        planned = not edited and new.updated_at == old.updated_at
        # A hold takes back what was planned ahead of now, and the cursor with it.
        if planned and new.planned_until < min(old.planned_until, trace.wall - SKEW_MAX) and not trace.clock_stepped:
            trace.fail(f"job {new.name}: its cursor went back from {old.planned_until} to {new.planned_until}")
        if old.deleted_at is not None and new.deleted_at is None:
            trace.fail(f"job {new.name} came back from deletion")
        if new.enabled and not old.enabled:
            self.paused_at.pop(new.id, None)

    def acknowledged_pause(self, job: Job) -> None:
        """A user was answered that this job is paused."""
        stored = self.versions[job.id][-1]
        if not stored.enabled and stored.deleted_at is None and stored.paused_at is not None:
            self.paused_at[job.id] = (stored.paused_at, self._trace.writes)
