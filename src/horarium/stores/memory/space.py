"""The data of one namespace, and every index over it.

Rows are the frozen values themselves. A change takes the old row out of the indexes and puts the new one in, so that an
index can't disagree with its rows. Finished runs stand in no index that claiming, planning or rescuing walks through:
these don't slow down as history grows. Nothing here decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import CLAIMED, UNFINISHED, Job, Node, Run, RunChange, State
from horarium.stores.memory.ordered import Ordered

Timed = tuple[Instant, str]
"""An instant and the id of what happens then."""

K = TypeVar("K")
T = TypeVar("T")


class Space:
    """Jobs, runs and nodes of one namespace."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.job_ids: dict[str, str] = {}
        self.job_names: Ordered[str] = Ordered()
        self.jobs_due: Ordered[Timed] = Ordered()
        self.jobs_deleted: Ordered[str] = Ordered()
        self.runs: dict[str, Run] = {}
        self.runs_by_key: dict[str, str] = {}
        self.runs_by_fire: dict[tuple[str, Instant], str] = {}
        self.runs_of_name: dict[str, Ordered[str]] = {}
        self.runs_in_state: dict[State, Ordered[str]] = {state: Ordered() for state in State}
        self.runs_of_job: Counter[str] = Counter()
        self.unfinished: dict[str, Ordered[Timed]] = {}
        self.finished: dict[str, Ordered[str]] = {}
        self.lanes: dict[str, dict[int, Ordered[Timed]]] = {}
        self.deadlines: Ordered[Timed] = Ordered()
        self.prunable: Ordered[Timed] = Ordered()
        self.claimed_under: Counter[str] = Counter()
        self.claimed_of_job: Counter[str] = Counter()
        self.claimed_in: Counter[str] = Counter()
        self.nodes: dict[str, Node] = {}

    # -- jobs

    def put_job(self, job: Job) -> None:
        """Insert a job, or write it over the one of its id."""
        if (old := self.jobs.get(job.id)) is not None:
            self._unindex_job(old)
        self.jobs[job.id] = job
        if job.deleted_at is not None:
            self.jobs_deleted.add(job.id)
            return
        self.job_ids[job.name] = job.id
        self.job_names.add(job.name)
        if job.next_fire_at is not None:
            self.jobs_due.add((job.next_fire_at, job.id))

    def forget_job(self, job: Job) -> None:
        self._unindex_job(job)
        del self.jobs[job.id]

    def _unindex_job(self, job: Job) -> None:
        if job.deleted_at is not None:
            self.jobs_deleted.remove(job.id)
            return
        del self.job_ids[job.name]
        self.job_names.remove(job.name)
        if job.next_fire_at is not None:
            self.jobs_due.remove((job.next_fire_at, job.id))

    # -- runs

    def add_run(self, run: Run) -> bool:
        """Insert a run unless its id, its unique key or its (job, fire_at) is taken."""
        if run.id in self.runs or run.unique_key in self.runs_by_key:
            return False
        if run.job_id is not None:
            if (run.job_id, run.fire_at) in self.runs_by_fire:
                return False
            self.runs_by_fire[run.job_id, run.fire_at] = run.id
            self.runs_of_job[run.job_id] += 1
        if run.unique_key is not None:
            self.runs_by_key[run.unique_key] = run.id
        if run.job is not None:
            _within(self.runs_of_name, run.job).add(run.id)
        self.runs[run.id] = run
        self._index(run)
        return True

    def put_run(self, run: Run) -> None:
        """Write a run over the one of its id."""
        self._unindex(self.runs[run.id])
        self.runs[run.id] = run
        self._index(run)

    def forget_run(self, run: Run) -> None:
        self._unindex(run)
        del self.runs[run.id]
        if run.job_id is not None:
            del self.runs_by_fire[run.job_id, run.fire_at]
            _discount(self.runs_of_job, run.job_id)
        if run.unique_key is not None:
            del self.runs_by_key[run.unique_key]
        if run.job is not None:
            _without(self.runs_of_name, run.job, run.id)

    def apply(self, change: RunChange, now: Instant) -> bool:
        """Write a change if the stored run is still as it says."""
        stored = self.runs.get(change.run.id)
        if stored is None or not _unmoved(stored, change, now):
            return False
        new = change.run
        self.put_run(
            replace(
                stored,
                state=new.state,
                due_at=new.due_at,
                attempt=new.attempt,
                worker=new.worker,
                lease_expires_at=new.lease_expires_at,
                started_at=new.started_at,
                finished_at=new.finished_at,
                progress=new.progress,
                error=new.error,
                result=new.result,
                disposition=new.disposition,
                prune_at=new.prune_at,
                history=new.history,
                start_by=new.start_by,
                token=new.token,
            )
        )
        return True

    def _index(self, run: Run) -> None:
        self.runs_in_state[run.state].add(run.id)
        if run.state not in UNFINISHED:
            self._index_finished(run)
            return
        if run.job_id is not None:
            _within(self.unfinished, run.job_id).add((run.fire_at, run.id))
        if (deadline := deadline_of(run)) is not None:
            self.deadlines.add((deadline, run.id))
        if run.state is State.PENDING:
            _within(self.lanes.setdefault(run.queue, {}), run.priority).add((run.due_at, run.id))
            return
        self.claimed_in[run.queue] += 1
        if run.concurrency_key is not None:
            self.claimed_under[run.concurrency_key] += 1
        if run.job_id is not None:
            self.claimed_of_job[run.job_id] += 1

    def _unindex(self, run: Run) -> None:
        self.runs_in_state[run.state].remove(run.id)
        if run.state not in UNFINISHED:
            self._unindex_finished(run)
            return
        if run.job_id is not None:
            _without(self.unfinished, run.job_id, (run.fire_at, run.id))
        if (deadline := deadline_of(run)) is not None:
            self.deadlines.remove((deadline, run.id))
        if run.state is State.PENDING:
            self._leave_lane(run)
            return
        _discount(self.claimed_in, run.queue)
        if run.concurrency_key is not None:
            _discount(self.claimed_under, run.concurrency_key)
        if run.job_id is not None:
            _discount(self.claimed_of_job, run.job_id)

    def _leave_lane(self, run: Run) -> None:
        lanes = self.lanes[run.queue]
        _without(lanes, run.priority, (run.due_at, run.id))
        if not lanes:
            del self.lanes[run.queue]

    def _index_finished(self, run: Run) -> None:
        if run.job_id is not None:
            _within(self.finished, run.job_id).add(run.id)
        if run.prune_at is not None:
            self.prunable.add((run.prune_at, run.id))

    def _unindex_finished(self, run: Run) -> None:
        if run.job_id is not None:
            _without(self.finished, run.job_id, run.id)
        if run.prune_at is not None:
            self.prunable.remove((run.prune_at, run.id))

    def lane_by_lane(self, queues: list[str]) -> Iterator[list[Ordered[Timed]]]:
        """The lanes of these queues, those of the highest priority first, together where they share one."""
        lanes = [self.lanes[queue] for queue in queues if queue in self.lanes]
        for priority in sorted({priority for lane in lanes for priority in lane}, reverse=True):
            yield [lane[priority] for lane in lanes if priority in lane]


def deadline_of(run: Run) -> Instant | None:
    """When an unfinished run is overdue: its lease ends, or it should have been started."""
    return run.lease_expires_at if run.state in CLAIMED else run.start_by


def _unmoved(stored: Run, change: RunChange, now: Instant) -> bool:
    if stored.token != change.token or stored.state is not change.state:
        return False
    if change.held is None:
        return True
    return stored.lease_expires_at is not None and (stored.lease_expires_at > now) is change.held


def _within(groups: dict[K, Ordered[T]], key: K) -> Ordered[T]:
    group = groups.get(key)
    if group is None:
        group = groups[key] = Ordered()
    return group


def _without(groups: dict[K, Ordered[T]], key: K, item: T) -> None:
    group = groups[key]
    group.remove(item)
    if not group:
        del groups[key]


def _discount(counter: Counter[K], key: K) -> None:
    if counter[key] == 1:
        del counter[key]
    else:
        counter[key] -= 1
