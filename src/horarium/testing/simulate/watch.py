"""Invariants, checked at every single write.

`WatchedSpace` is the memory store's data with a witness at the three doors through which every write goes. It keeps its
own books (which fire times have a run, who holds what, the largest token ever seen), so that a wrong index or a wrong
query of the store is seen too. It never changes anything. The first violation is kept; the world stops at it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar

from horarium.clock import SECOND, Instant
from horarium.model import (
    BUS_QUEUES,
    CLAIMED,
    EXTERNAL,
    TRANSITIONS,
    UNFINISHED,
    Cause,
    Disposition,
    EventKind,
    Job,
    Run,
    RunChange,
    State,
    awaits_worker,
)
from horarium.stores.memory.space import Space
from horarium.testing.simulate.answers import Answers
from horarium.testing.simulate.audited import AuditWitness, WatchedBeside
from horarium.testing.simulate.batchbooks import BatchBooks
from horarium.testing.simulate.beside import Beside, Calm
from horarium.testing.simulate.follow_ups import FollowUps
from horarium.testing.simulate.held import Held
from horarium.testing.simulate.jobbooks import JobBooks
from horarium.testing.simulate.keeping import Keeping
from horarium.testing.simulate.overlaps import Overlaps, move_of
from horarium.testing.simulate.said import Said, kept_lines
from horarium.testing.simulate.trace import Trace

RECOVERY_SECONDS = 3.0
"""How long a node may still suffer from trouble that is over."""
SEEN: ContextVar[list[tuple[Run, Run]] | None] = ContextVar("seen", default=None)
"""Where changes of runs are noted that are made for one caller, before and after."""
RETRY = "retry/"
PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)


class Books:
    """What the witness remembers, for as long as the world lasts: pruned runs too."""

    def __init__(
        self,
        trace: Trace,
        healthy_for: Callable[[str], float] = lambda node: 0.0,
        calm: Calm = lambda: (0, 0.0),
    ) -> None:
        self.trace = trace
        self.runs: dict[str, Run] = {}
        self.jobs = JobBooks(trace, self.runs)
        self.answers = Answers(trace)
        self.said = Said(trace)
        self._healthy_for = healthy_for
        self.rescuing = False
        self._renewed: dict[str, tuple[Instant | None, int]] = {}
        self.fires: dict[tuple[str, Instant], str] = {}
        self.tokens: dict[str, int] = defaultdict(int)
        self.pruned: set[str] = set()
        self.open: dict[str, dict[str, Run]] = defaultdict(dict)
        self.held: dict[str, int] = defaultdict(int)
        self.overlaps = overlaps = Overlaps(trace, self.runs, self.open)
        self.beside = Beside(trace, calm, overlaps.jobs, self.open, overlaps.order, overlaps.owed)

    @property
    def gates(self) -> Held:
        """What may not begin."""
        return self.jobs.gates

    @property
    def batches(self) -> BatchBooks:
        """Those of batches."""
        return self.jobs.batches

    # ---- runs

    def added(self, run: Run) -> None:
        self.trace.writes += 1
        self.trace.note(f"+ {_said(run)}")
        if run.state not in TRANSITIONS[None]:
            self.trace.fail(f"run {run.id} begins its life as {run.state}")
        if run.state is State.CANCELLED and not (run.error or "").endswith("the next fire time came"):
            self.trace.fail(f"run {run.id} is cancelled from the start: {run.error}")
        if run.job_id is not None:
            key = (run.job_id, run.fire_at)
            if key in self.fires and not self._makes_way(run):
                self.trace.fail(f"two runs for one fire time: {run.id} and {self.fires[key]}")
            self.fires[key] = run.id
        # One that has moved to another queue is not new: what it repeats may have come again since.
        if run.unique_key is not None and run.unique_key.startswith(RETRY) and not move_of(run):
            again = self.runs.get(run.unique_key.removeprefix(RETRY))
            if again is not None and again.state in (*UNFINISHED, State.COMPLETED):
                self.trace.fail(f"run {run.id} repeats {again.id}, which is {again.state}")
        self.jobs.fair.written(None, run)
        self._keep(run)

    def _makes_way(self, run: Run) -> bool:
        """Whether the run of this fire time has been pruned, and a user asked for it again, or the clock went back."""
        old = self.runs[run.id]
        never_was = old.disposition is Disposition.WITHDRAWN or run.state is State.SKIPPED
        if run.id not in self.pruned or (run.cause in PLANNED and not never_was and not self.trace.clock_stepped):
            return False
        self.pruned.discard(run.id)
        self.runs[f"{run.id} pruned at {self.trace.writes}"] = old
        self.tokens[run.id] = 0
        self.answers.cancelled_at.pop(run.id, None)
        return True

    def changed(self, old: Run, new: Run) -> None:
        self.trace.writes += 1
        if new.state is not old.state:
            self.trace.note(f"{old.state} -> {_said(new)}")
            if new.state not in TRANSITIONS[old.state]:
                self.trace.fail(f"run {new.id} went from {old.state} to {new.state}")
            if new.state is State.RUNNING:
                self._claimed(old, new)
            elif old.state is State.RUNNING:
                self._let_go(old)
        elif old.state not in UNFINISHED and (new.result, new.error, new.token) != (old.result, old.error, old.token):
            self.trace.fail(f"run {new.id} was {old.state} and was written again")
        self.gates.changed(new)
        self.jobs.run_changed(old, new)
        if new.disposition is Disposition.NOT_STARTED and old.disposition is None and _had_begun(old):
            self.trace.fail(f"run {new.id}: ends as never started, though work on this attempt had begun")
        if new.disposition is Disposition.NOT_STARTED and old.state is State.PENDING:
            self.gates.given_up(new)
        if awaits_worker(new) and old.token == new.token and old.state is State.RUNNING and not awaits_worker(old):
            self.trace.fail(f"run {new.id}: it was forgotten that its worker had begun")
        if new.token < self.tokens[new.id]:
            self.trace.fail(
                f"run {new.id}: token {new.token} after token {self.tokens[new.id]}: a stale claim was obeyed"
            )
        if new.state in CLAIMED:
            if self._renewed.get(new.id, (None, 0))[0] != new.lease_expires_at:
                self._renewed[new.id] = new.lease_expires_at, self.trace.elapsed
            self.answers.confirmed[new.id, new.token] = self.trace.writes
        self._keep(new)

    def forgotten(self, run: Run) -> None:
        """Withdrawn (then it never was), or pruned (then it is history)."""
        self.trace.writes += 1
        self.trace.note(f"- {_said(run)}")
        withdrawn = run.state is State.PENDING or run.prune_at == 0
        self.jobs.fair.forgotten(run)
        if run.state in CLAIMED:
            self.trace.fail(f"run {run.id} was forgotten while it was {run.state}")
        self._settle_books(run)
        if not withdrawn:
            self.pruned.add(run.id)
            self.gates.as_its_rule_has_it(run.job_id or "", run.fire_at)
            return
        del self.runs[run.id]
        if run.state is State.SKIPPED:  # its claim, in a future that was wrong, reached no worker
            self.tokens[run.id] = 0
        if run.job_id is not None:
            del self.fires[run.job_id, run.fire_at]

    def _keep(self, run: Run) -> None:
        self._settle_books(self.runs.get(run.id))
        self.runs[run.id] = run
        self.tokens[run.id] = max(self.tokens[run.id], run.token)
        if run.state in UNFINISHED and run.job_id is not None:
            self.open[run.job_id][run.id] = run
        if run.state in CLAIMED and run.concurrency_key is not None:
            self.held[run.concurrency_key] += 1

    def _settle_books(self, run: Run | None) -> None:
        if run is None:
            return
        if run.job_id is not None:
            self.open[run.job_id].pop(run.id, None)
        if run.state in CLAIMED and run.concurrency_key is not None:
            self.held[run.concurrency_key] -= 1

    def _claimed(self, old: Run, new: Run) -> None:
        if new.token <= self.tokens[new.id]:
            self.trace.fail(f"run {new.id}: claimed under token {new.token}, which is not larger than any before")
        if new.attempt != old.attempt + 1:
            self.trace.fail(f"run {new.id}: attempt {new.attempt} after attempt {old.attempt}")
        if new.job_id is not None and new.attempt > self.jobs.attempts_max.get(new.job_id, 100):
            self.trace.fail(f"run {new.id}: attempt {new.attempt} of {self.jobs.attempts_max[new.job_id]}")
        if new.concurrency_key is not None and self.held[new.concurrency_key] >= new.concurrency_max:
            self.trace.fail(f"run {new.id}: more than {new.concurrency_max} claimed under {new.concurrency_key}")
        if new.serial and new.job_id is not None and new.queue != EXTERNAL:  # pings say in which order that was done
            self._in_turn(new, self.open[new.job_id])
        if new.job_id is not None:
            self.answers.claimed(new, self.jobs.versions[new.job_id][-1])

    def _let_go(self, old: Run) -> None:
        """A claimed run is always in the hands of the node that claimed it. Its lease runs out because that node died,
        was held up, or because the work took as long as it may; never because the node forgot that it has it. (It is
        looked at from the last renewal on: a node whose claim was never answered does not renew it.)"""
        _, renewed_at = self._renewed.get(old.id, (old.lease_expires_at, self.trace.elapsed))
        seconds = (self.trace.elapsed - renewed_at) / SECOND
        if (
            self.rescuing
            and not old.queue.startswith(BUS_QUEUES)
            and not _at_limit(old)
            and self._healthy_for(old.worker or "") > seconds + RECOVERY_SECONDS
        ):
            self.trace.fail(
                f"run {old.id}: {old.worker} claimed it and let its lease run out, though nothing was wrong"
            )

    def is_well(self, run: Run) -> bool:
        """Whether nothing has happened lately to the node that holds this run."""
        return run.worker is not None and self._healthy_for(run.worker) > RECOVERY_SECONDS

    def _in_turn(self, run: Run, unfinished: dict[str, Run]) -> None:
        for other in unfinished.values():
            if other.id == run.id:
                continue
            if other.state in CLAIMED or (other.fire_at, other.id) < (run.fire_at, run.id):
                self.trace.fail(f"run {run.id} is serial, and was claimed while {other.id} is {other.state}")

    def begun(self, run_id: str, token: int, attempt: int, now: Instant, due_at: Instant) -> None:
        """A delivery begins."""
        self.overlaps.begins(run_id, token)
        confirmed = self.answers.begun(run_id, token, attempt, now, due_at)
        run = self.runs.get(run_id)
        if run is not None and run.token == token:
            self.gates.begins(run)
        if run is None or confirmed is None or run.cause not in PLANNED or self.trace.clock_went_back:
            return
        paused_at, acknowledged = self.jobs.paused_at.get(run.job_id or "", (run.fire_at, confirmed))
        # One that was moved to an earlier instant was planned, and due, before the pause.
        if confirmed > acknowledged and min(run.fire_at, due_at) > paused_at:
            self.trace.fail(f"run {run_id} for {run.fire_at} begins though its job was paused at {paused_at}")

    def misplaced(self) -> list[Run]:
        """Pending runs that wait in a queue that their job has left, or whose job was deleted."""
        newest = {job_id: versions[-1] for job_id, versions in self.jobs.versions.items()}
        pending = (run for runs in self.open.values() for run in runs.values() if run.state is State.PENDING)
        return [
            run for run in pending if newest[run.job_id or ""].deleted_at or run.queue != newest[run.job_id or ""].queue
        ]

    def rows_of(self, job_id: str) -> list[Run]:
        """Every run that the job ever had, those that were withdrawn left out."""
        return [run for run in self.runs.values() if run.job_id == job_id]


class WatchedSpace(Space):
    """The data of one namespace, with a witness."""

    def __init__(self, books: Books) -> None:
        super().__init__()
        self.books = books
        self.witness = AuditWitness()
        self.keeping = Keeping(books.trace, self.witness)
        self.beside = WatchedBeside(self.witness, self.keeping, books.overlaps.owed, books.gates, books.batches)
        self.follow_ups = FollowUps(books.trace, lambda job_id: books.jobs.versions[job_id])

    def put_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        super().put_job(job)
        self.books.jobs.written(old, job)
        self.books.overlaps.job_written(old, job)
        self.books.beside.job_written(old, job)
        self.witness.job_written(old, job)
        self.keeping.job_written(old, job)

    def add_run(self, run: Run) -> bool:
        added = super().add_run(run)
        if added:
            self.books.added(run)
            self.books.batches.run_added(run)
            self.books.overlaps.added(run)
            self.books.beside.look()
            self.witness.run_added(run)
            self.keeping.run_written(run)
            self.follow_ups.added(run, self.jobs.get(run.job_id or ""))
        return added

    def apply(self, change: RunChange, now: Instant) -> bool:
        self.books.rescuing = change.held is False
        try:
            return super().apply(change, now)
        finally:
            self.books.rescuing = False

    def put_run(self, run: Run) -> None:
        old = self.runs[run.id]
        super().put_run(run)
        self.books.changed(old, run)
        self.books.batches.run_written(run)
        self.books.overlaps.changed(old, run)
        self.books.beside.look()
        if (seen := SEEN.get()) is not None:
            seen.append((old, run))
        self.witness.run_changed(old, run)
        self.keeping.run_written(run)
        self.follow_ups.changed(old, run, self.jobs.get(run.job_id or ""))
        if run.state is State.COMPLETED and self.books.is_well(old):
            self.books.said.completed(run, kept_lines(run, self.beside))

    def delete_run(self, run: Run) -> None:
        super().delete_run(run)
        self.books.forgotten(run)
        self.books.batches.run_forgotten(run)
        self.follow_ups.forgotten(run)
        self.keeping.run_forgotten(run)


def _had_begun(run: Run) -> bool:
    """Whether a worker reported in the present attempt: one of ours has once it has claimed, one behind a broker when
    it says so."""
    if not run.queue.startswith(BUS_QUEUES):
        return run.state in CLAIMED
    said = [event.kind for event in run.history if event.state is State.PENDING or event.kind is EventKind.BEGUN]
    return said[-1:] == [EventKind.BEGUN]


def _at_limit(run: Run) -> bool:
    """Whether its lease ends where the work has taken as long as it may."""
    return run.deadline is not None and run.lease_expires_at == run.deadline


def _said(run: Run) -> str:
    return f"{run.state} {run.job or run.queue} {run.id[-6:]} fire={run.fire_at} token={run.token} n={run.attempt}"
