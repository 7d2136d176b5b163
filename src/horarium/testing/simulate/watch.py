"""What must always hold, checked at every single write.

`WatchedSpace` is the memory store's data with a witness at the three doors through which every write goes. It keeps its
own books (which fire times have a run, who holds what, the largest token ever seen), so that a wrong index or a wrong
query of the store is seen too. It never changes anything. The first violation is kept; the world stops at it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from horarium.clock import SECOND, Instant, to_micros
from horarium.model import (
    BUS_QUEUES,
    CLAIMED,
    TRANSITIONS,
    UNFINISHED,
    Cause,
    Disposition,
    Job,
    Run,
    RunChange,
    State,
    awaits_worker,
)
from horarium.stores.memory.space import Space
from horarium.testing.simulate.audited import AuditWitness, WatchedBeside
from horarium.testing.simulate.follow_ups import FollowUps

OWNED = (
    "trigger", "target", "enabled", "labels", "catch_up", "overlap", "retry", "timeouts", "priority", "concurrency",
    "jitter_seconds", "starts_at", "ends_at", "fires_max", "retention", "title", "buffer_max", "on",
    "deleted_at",
)  # fmt: skip
"""The fields of a job that only its owner changes."""
SKEW_MAX = 2 * SECOND
"""How much two nodes may disagree on the time, and how long an edit may take to be written."""
RECOVERY_SECONDS = 3.0
"""How long a node may still suffer from trouble that is over."""
PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)


class Books:
    """What the witness remembers, for as long as the world lasts: pruned runs too."""

    def __init__(
        self,
        fail: Callable[[str], None],
        note: Callable[[str], None],
        healthy_for: Callable[[str], float] = lambda node: 0.0,
    ) -> None:
        self.fail = fail
        self.note = note
        self._healthy_for = healthy_for
        self.writes = 0
        self.rescuing = False
        self.clock_stepped = False
        self.clock_went_back = False
        self.runs: dict[str, Run] = {}
        self.fires: dict[tuple[str, Instant], str] = {}
        self.tokens: dict[str, int] = defaultdict(int)
        self.pruned: set[str] = set()
        self.open: dict[str, dict[str, Run]] = defaultdict(dict)
        self.held: dict[str, int] = defaultdict(int)
        self.confirmed: dict[tuple[str, int], int] = {}
        self.versions: dict[str, list[Job]] = defaultdict(list)
        self.attempts_max: dict[str, int] = {}
        self.cancelled_at: dict[str, int] = {}
        self.paused_at: dict[str, tuple[Instant, int]] = {}
        self.unwanted: dict[tuple[str, int], str] = {}

    # ---- runs

    def added(self, run: Run) -> None:
        self.writes += 1
        self.note(f"+ {_said(run)}")
        if run.state not in TRANSITIONS[None]:
            self.fail(f"run {run.id} begins its life as {run.state}")
        if run.job_id is not None:
            key = (run.job_id, run.fire_at)
            if key in self.fires and not self._makes_way(run):
                self.fail(f"two runs for one fire time: {run.id} and {self.fires[key]}")
            self.fires[key] = run.id
        self._keep(run)

    def _makes_way(self, run: Run) -> bool:
        """Whether what was there for this fire time has been pruned, and a user asked for it again, or the
        clock went back."""
        old = self.runs[run.id]
        never_was = old.disposition is Disposition.WITHDRAWN or run.state is State.SKIPPED
        if run.id not in self.pruned or (run.cause in PLANNED and not never_was and not self.clock_stepped):
            return False
        self.pruned.discard(run.id)
        self.runs[f"{run.id} pruned at {self.writes}"] = old
        self.tokens[run.id] = 0
        self.cancelled_at.pop(run.id, None)
        return True

    def changed(self, old: Run, new: Run) -> None:
        self.writes += 1
        if new.state is not old.state:
            self.note(f"{old.state} -> {_said(new)}")
            if new.state not in TRANSITIONS[old.state]:
                self.fail(f"run {new.id} went from {old.state} to {new.state}")
            if new.state is State.RUNNING:
                self._claimed(old, new)
            elif old.state is State.RUNNING:
                self._let_go(old)
        elif old.state not in UNFINISHED and (new.result, new.error, new.token) != (old.result, old.error, old.token):
            self.fail(f"run {new.id} was {old.state} and was written again")
        if awaits_worker(new) and old.token == new.token and old.state is State.RUNNING and not awaits_worker(old):
            self.fail(f"run {new.id}: it was forgotten that its worker had begun")
        if new.token < self.tokens[new.id]:
            self.fail(f"run {new.id}: token {new.token} after token {self.tokens[new.id]}: a stale claim was obeyed")
        if new.state in CLAIMED:
            self.confirmed[new.id, new.token] = self.writes
        self._keep(new)

    def forgotten(self, run: Run) -> None:
        """Withdrawn (then it never was), or pruned (then it is history)."""
        self.writes += 1
        self.note(f"- {_said(run)}")
        withdrawn = run.state is State.PENDING or run.prune_at == 0
        if run.state in CLAIMED:
            self.fail(f"run {run.id} was forgotten while it was {run.state}")
        self._settle_books(run)
        if not withdrawn:
            self.pruned.add(run.id)
            return
        del self.runs[run.id]
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
            self.fail(f"run {new.id}: claimed under token {new.token}, which is not larger than any before")
        if new.attempt != old.attempt + 1:
            self.fail(f"run {new.id}: attempt {new.attempt} after attempt {old.attempt}")
        if new.job_id is not None and new.attempt > self.attempts_max.get(new.job_id, 100):
            self.fail(f"run {new.id}: attempt {new.attempt} of {self.attempts_max[new.job_id]}")
        if new.concurrency_key is not None and self.held[new.concurrency_key] >= new.concurrency_max:
            self.fail(f"run {new.id}: more than {new.concurrency_max} claimed under {new.concurrency_key}")
        if new.serial and new.job_id is not None:
            self._in_turn(new, self.open[new.job_id])
        if new.job_id is not None:
            self._wanted(new, self.versions[new.job_id][-1])

    def _wanted(self, run: Run, job: Job) -> None:
        """Note a claim that must not reach a worker: of a deleted job, or in a queue that its job has left."""
        if job.deleted_at is not None:
            self.unwanted[run.id, run.token] = "though its job had been deleted"
        elif run.queue != job.queue:
            self.unwanted[run.id, run.token] = f"from {run.queue}, though its job had moved to {job.queue}"

    def _let_go(self, old: Run) -> None:
        """A claimed run is always in the hands of the node that claimed it. Its lease runs out because that node died,
        was held up, or because the work took as long as it may; never because the node forgot that it has it."""
        if (
            self.rescuing
            and not old.queue.startswith(BUS_QUEUES)
            and not _at_limit(old)
            and self._healthy_for(old.worker or "") > old.lease_seconds + RECOVERY_SECONDS
        ):
            self.fail(f"run {old.id}: {old.worker} claimed it and let its lease run out, though nothing was wrong")

    def _in_turn(self, run: Run, unfinished: dict[str, Run]) -> None:
        for other in unfinished.values():
            if other.id == run.id:
                continue
            if other.state in CLAIMED or (other.fire_at, other.id) < (run.fire_at, run.id):
                self.fail(f"run {run.id} is serial, and was claimed while {other.id} is {other.state}")

    # ---- jobs

    def job_written(self, old: Job | None, new: Job) -> None:
        self.writes += 1
        versions = self.versions[new.id]
        self.attempts_max[new.id] = max(self.attempts_max.get(new.id, 0), new.retry.attempts_max)
        edited = old is None or any(getattr(old, field) != getattr(new, field) for field in OWNED)
        if edited:
            self.note(f"job {new.name} v{new.version} enabled={new.enabled} deleted={new.deleted_at}")
            versions.append(new)
        else:
            versions[-1] = new
        if old is None:
            return
        if new.version != old.version + 1:
            self.fail(f"job {new.name}: version {new.version} after {old.version}")
        if new.updated_at < old.updated_at - SKEW_MAX and not self.clock_stepped:
            self.fail(f"job {new.name}: version {new.version} undoes a change: a stale plan was carried out")
        planned = not edited and new.updated_at == old.updated_at
        if planned and new.planned_until < old.planned_until and not self.clock_stepped:
            self.fail(f"job {new.name}: its cursor went back from {old.planned_until} to {new.planned_until}")
        if old.deleted_at is not None and new.deleted_at is None:
            self.fail(f"job {new.name} came back from deletion")
        if new.enabled and not old.enabled:
            self.paused_at.pop(new.id, None)

    # ---- what the world tells

    def acknowledged_cancel(self, run: Run) -> None:
        """A user was answered that this run is cancelled."""
        if run.state is State.CANCELLED:
            self.cancelled_at[run.id] = self.writes

    def acknowledged_pause(self, job: Job) -> None:
        """A user was answered that this job is paused."""
        stored = self.versions[job.id][-1]
        if not stored.enabled and stored.deleted_at is None and stored.paused_at is not None:
            self.paused_at[job.id] = (stored.paused_at, self.writes)

    def handed_out(self, run_id: str, token: int) -> None:
        """A worker was given this claim."""
        if (run_id, token) in self.unwanted:
            self.fail(f"run {run_id} was claimed {self.unwanted[run_id, token]}, and handed out")

    def misplaced(self) -> list[Run]:
        """Pending runs that wait in a queue that their job has left, or whose job was deleted."""
        newest = {job_id: versions[-1] for job_id, versions in self.versions.items()}
        pending = (run for runs in self.open.values() for run in runs.values() if run.state is State.PENDING)
        return [
            run for run in pending if newest[run.job_id or ""].deleted_at or run.queue != newest[run.job_id or ""].queue
        ]

    def begun(self, run_id: str, token: int, attempt: int, now: Instant, due_at: Instant) -> None:
        """A delivery begins. It counts as of the last time at which the store confirmed its lease."""
        self.note(f"begin {run_id[-6:]} token={token} attempt={attempt}")
        self.handed_out(run_id, token)
        run = self.runs.get(run_id)
        if now < due_at and not self.clock_stepped:
            self.fail(f"run {run_id} begins {due_at - now} us before it is due")
        confirmed = self.confirmed.get((run_id, token))
        if run is None or confirmed is None:
            self.fail(f"run {run_id} begins under token {token}, which no claim has given")
            return
        if confirmed > self.cancelled_at.get(run_id, confirmed):
            self.fail(f"run {run_id} begins after it was reported as cancelled")
        if run.job_id in self.paused_at and run.cause in PLANNED and not self.clock_went_back:
            paused_at, acknowledged = self.paused_at[run.job_id]
            if confirmed > acknowledged and run.fire_at > paused_at:
                self.fail(f"run {run_id} for {run.fire_at} begins though its job was paused at {paused_at}")

    def rows_of(self, job_id: str) -> list[Run]:
        """Every run that the job ever had, those that were withdrawn left out."""
        return [run for run in self.runs.values() if run.job_id == job_id]


class WatchedSpace(Space):
    """The data of one namespace, with a witness."""

    def __init__(self, books: Books) -> None:
        super().__init__()
        self.books = books
        self.witness = AuditWitness()
        self.beside = WatchedBeside(self.witness)
        self.follow_ups = FollowUps(books.fail)

    def put_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        super().put_job(job)
        self.books.job_written(old, job)
        self.witness.job_written(old, job)

    def add_run(self, run: Run) -> bool:
        added = super().add_run(run)
        if added:
            self.books.added(run)
            self.witness.run_added(run)
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
        self.witness.run_changed(old, run)
        self.follow_ups.changed(old, run, self.jobs.get(run.job_id or ""))

    def forget_run(self, run: Run) -> None:
        super().forget_run(run)
        self.books.forgotten(run)


def _at_limit(run: Run) -> bool:
    """Whether its lease ends where the work has taken as long as it may."""
    limit = run.execution_seconds
    return limit is not None and run.lease_expires_at == (run.started_at or 0) + to_micros(limit)


def _said(run: Run) -> str:
    return f"{run.state} {run.job or run.queue} {run.id[-6:]} fire={run.fire_at} token={run.token} n={run.attempt}"
