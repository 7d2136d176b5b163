"""What workers and users were answered: under which claims work may begin, and which runs are cancelled for sure."""

from __future__ import annotations

from horarium.clock import Instant
from horarium.model import Job, Run, State
from horarium.testing.simulate.trace import Trace

Claim = tuple[str, int]


class Answers:
    """The books of claims and answers. `confirmed`: the last write at which a claim held; `cancelled_at`: the last
    write before a caller had the answer that the run is cancelled."""

    def __init__(self, trace: Trace) -> None:
        self.confirmed: dict[Claim, int] = {}
        self.cancelled_at: dict[str, int] = {}
        self._unwanted: dict[Claim, str] = {}
        self._trace = trace

    def claimed(self, run: Run, job: Job) -> None:
        """Note a claim that must not reach a worker: of a deleted job, or in a queue that its job has left."""
        if job.deleted_at is not None:
            self._unwanted[run.id, run.token] = "though its job had been deleted"
        elif run.queue != job.queue:
            self._unwanted[run.id, run.token] = f"from {run.queue}, though its job had moved to {job.queue}"

    def acknowledged_cancel(self, run: Run) -> None:
        """A user was answered that this run is cancelled."""
        if run.state is State.CANCELLED:
            self.cancelled_at[run.id] = self._trace.writes

    def handed_out(self, run_id: str, token: int) -> None:
        """A worker was given this claim."""
        if (run_id, token) in self._unwanted:
            self._trace.fail(f"run {run_id} was claimed {self._unwanted[run_id, token]}, and handed out")

    def begun(self, run_id: str, token: int, attempt: int, now: Instant, due_at: Instant) -> int | None:
        """A delivery begins. The write at which the store confirmed its lease for the last time, which is what counts;
        None: it never did."""
        self._trace.note(f"begin {run_id[-6:]} token={token} attempt={attempt}")
        self.handed_out(run_id, token)
        if now < due_at:
            self._trace.fail(f"run {run_id} begins {due_at - now} us before it is due")
        confirmed = self.confirmed.get((run_id, token))
        if confirmed is None:
            self._trace.fail(f"run {run_id} begins under token {token}, which no claim has given")
        elif confirmed > self.cancelled_at.get(run_id, confirmed):
            self._trace.fail(f"run {run_id} begins after it was reported as cancelled")
        return confirmed
