"""By what jobs and runs are found in memory. A value is added under what it says, and removed under the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from typing import TypeVar

from horarium.clock import Instant
from horarium.model import UNFINISHED, Job, Run, State
from horarium.stores.memory.ordered import Ordered

Timed = tuple[Instant, str]
"""An instant and the id of what happens then."""
LOOKED_AT = 2_000
"""Names of jobs that are looked at before other tasks have their turn."""

_PENDING = State.PENDING  # read from its class each time, it would take as long as five fields

K = TypeVar("K")
T = TypeVar("T")


class JobIndexes:
    """By what jobs are found. A deleted one has no name any longer, and is in `deleted` alone."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.names: Ordered[str] = Ordered()
        self.due: Ordered[Timed] = Ordered()
        self.by_cursor: Ordered[Timed] = Ordered()
        self.trimmed: Ordered[str] = Ordered()
        self.deleted: Ordered[str] = Ordered()

    def add(self, job: Job) -> None:
        if job.deleted_at is not None:
            self.deleted.add(job.id)
            return
        self.ids[job.name] = job.id
        self.names.add(job.name)
        self.by_cursor.add((job.planned_until, job.id))
        if job.retention.runs_max is not None:
            self.trimmed.add(job.name)
        if job.next_fire_at is not None:
            self.due.add((job.next_fire_at, job.id))

    def remove(self, job: Job) -> None:
        if job.deleted_at is not None:
            self.deleted.remove(job.id)
            return
        del self.ids[job.name]
        self.names.remove(job.name)
        self.by_cursor.remove((job.planned_until, job.id))
        if job.retention.runs_max is not None:
            self.trimmed.remove(job.name)
        if job.next_fire_at is not None:
            self.due.remove((job.next_fire_at, job.id))

    def named(self, prefix: str, after: str | None) -> Iterator[str]:
        """Names that begin so, beyond `after`, ascending."""
        names = self.names.since(prefix) if after is None or after < prefix else self.names.above(after)
        return takewhile(lambda name: name.startswith(prefix), names)


class Identities:
    """By what a run is found as long as it exists: its unique key, its fire time, the name of its job."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}
        self.by_fire: dict[tuple[str, Instant], str] = {}
        self.of_name: dict[str, Ordered[str]] = {}
        self.of_job: Counter[str] = Counter()

    def add(self, run: Run) -> bool:
        """Add the run unless its unique key or its (job, fire_at) is taken."""
        if run.unique_key in self.by_key:
            return False
        if run.job_id is not None:
            if (run.job_id, run.fire_at) in self.by_fire:
                return False
            self.by_fire[run.job_id, run.fire_at] = run.id
            self.of_job[run.job_id] += 1
        if run.unique_key is not None:
            self.by_key[run.unique_key] = run.id
        if run.job is not None:
            _within(self.of_name, run.job).add(run.id)
        return True

    def remove(self, run: Run) -> None:
        if run.job_id is not None:
            del self.by_fire[run.job_id, run.fire_at]
            _discount(self.of_job, run.job_id)
        if run.unique_key is not None:
            del self.by_key[run.unique_key]
        if run.job is not None:
            _without(self.of_name, run.job, run.id)


class Lanes:
    """Pending runs: for each queue and priority those that wait there, by when they are due."""

    def __init__(self) -> None:
        self.by_queue: dict[str, dict[int, Ordered[Timed]]] = {}

    def add(self, run: Run) -> None:
        _within(self.by_queue.setdefault(run.queue, {}), run.priority).add((run.due_at, run.id))

    def remove(self, run: Run) -> None:
        lanes = self.by_queue[run.queue]
        _without(lanes, run.priority, (run.due_at, run.id))
        if not lanes:
            del self.by_queue[run.queue]

    def of(self, queue: str) -> list[Ordered[Timed]]:
        return list(self.by_queue.get(queue, {}).values())

    def lane_by_lane(self, queues: list[str]) -> Iterator[list[Ordered[Timed]]]:
        """The lanes of these queues, those of the highest priority first, together where they share one."""
        lanes = [self.by_queue[queue] for queue in queues if queue in self.by_queue]
        for priority in sorted({priority for lane in lanes for priority in lane}, reverse=True):
            yield [lane[priority] for lane in lanes if priority in lane]


class ClaimedCounts:
    """How many runs are claimed: in a queue, of a job, under a concurrency key."""

    def __init__(self) -> None:
        self.in_queue: Counter[str] = Counter()
        self.of_job: Counter[str] = Counter()
        self.under: Counter[str] = Counter()

    def add(self, run: Run) -> None:
        self.in_queue[run.queue] += 1
        if run.concurrency_key is not None:
            self.under[run.concurrency_key] += 1
        if run.job_id is not None:
            self.of_job[run.job_id] += 1

    def remove(self, run: Run) -> None:
        _discount(self.in_queue, run.queue)
        if run.concurrency_key is not None:
            _discount(self.under, run.concurrency_key)
        if run.job_id is not None:
            _discount(self.of_job, run.job_id)


class RunIndexes:
    """By what a run is found in its present state."""

    def __init__(self) -> None:
        self.in_state: dict[State, Ordered[str]] = {state: Ordered() for state in State}
        self.unfinished: dict[str, Ordered[Timed]] = {}
        self.finished: dict[str, Ordered[str]] = {}
        self.leases: Ordered[Timed] = Ordered()
        self.start_limits: Ordered[Timed] = Ordered()
        self.prunable: Ordered[Timed] = Ordered()
        self.lanes = Lanes()
        self.claimed = ClaimedCounts()

    def replace(self, old: Run, new: Run) -> None:
        """The same run, changed. Its place among the unfinished ones of its job stays for as long as it is one."""
        stays = old.state in UNFINISHED and new.state in UNFINISHED
        self.remove(old, stays)
        self.add(new, stays)

    def add(self, run: Run, stays: bool = False) -> None:
        self.in_state[run.state].add(run.id)
        if run.state not in UNFINISHED:
            self._add_finished(run)
            return
        if run.job_id is not None and not stays:
            _within(self.unfinished, run.job_id).add((run.fire_at, run.id))
        if run.state is not _PENDING:
            self.claimed.add(run)
            if run.lease_expires_at is not None:
                self.leases.add((run.lease_expires_at, run.id))
            return
        self.lanes.add(run)
        if run.start_by is not None:
            self.start_limits.add((run.start_by, run.id))

    def remove(self, run: Run, stays: bool = False) -> None:
        self.in_state[run.state].remove(run.id)
        if run.state not in UNFINISHED:
            self._remove_finished(run)
            return
        if run.job_id is not None and not stays:
            _without(self.unfinished, run.job_id, (run.fire_at, run.id))
        if run.state is not _PENDING:
            self.claimed.remove(run)
            if run.lease_expires_at is not None:
                self.leases.remove((run.lease_expires_at, run.id))
            return
        self.lanes.remove(run)
        if run.start_by is not None:
            self.start_limits.remove((run.start_by, run.id))

    def _add_finished(self, run: Run) -> None:
        if run.job_id is not None:
            _within(self.finished, run.job_id).add(run.id)
        if run.prune_at is not None:
            self.prunable.add((run.prune_at, run.id))

    def _remove_finished(self, run: Run) -> None:
        if run.job_id is not None:
            _without(self.finished, run.job_id, run.id)
        if run.prune_at is not None:
            self.prunable.remove((run.prune_at, run.id))


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
