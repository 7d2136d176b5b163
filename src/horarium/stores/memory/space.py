"""The data of one namespace, and every index over it.

Rows are the frozen values themselves. A change takes the old row out of the indexes and puts the new one in, so that an
index can't disagree with its rows. Finished runs are in no index that claiming, planning or rescuing walks through:
these don't slow down as history grows. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import NO_HEALTH, Health, Job, Node, Run, RunChange, leased
from horarium.model.health import health_after, merged
from horarium.model.records import Record
from horarium.stores.encoding import is_unmoved
from horarium.stores.memory.indexes import Identities, JobIndexes, RunIndexes
from horarium.stores.memory.ordered import Ordered


class Beside:
    """Nodes by name; records by name, and these in their order."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.records: dict[str, Record] = {}
        self.names: Ordered[str] = Ordered()

    def add(self, records: Iterable[Record]) -> None:
        """Insert records, except those whose names are taken."""
        for record in records:
            if record.name not in self.records:
                self.put(record)

    def put(self, record: Record) -> None:
        """Insert a record, or write it over the one of its name."""
        if record.name not in self.records:
            self.names.add(record.name)
        self.records[record.name] = record

    def forget(self, name: str) -> None:
        """Remove a record, if there is one of this name."""
        if self.records.pop(name, None) is not None:
            self.names.remove(name)


class Space:
    """Jobs and runs of one namespace, and its nodes and records."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.health: dict[str, Health] = {}
        self.found_jobs = JobIndexes()
        self.runs: dict[str, Run] = {}
        self.identities = Identities()
        self.found_runs = RunIndexes()
        self.beside = Beside()

    # -- jobs

    def put_job(self, job: Job) -> None:
        """Insert a job, or write it over the one of its id."""
        if (old := self.jobs.get(job.id)) is not None:
            self.found_jobs.remove(old)
        self.jobs[job.id] = job
        self.found_jobs.add(job)

    def jobs_named(self, names: Sequence[str]) -> Iterator[Job]:
        """The jobs of these names, which there are."""
        return (self.jobs[self.found_jobs.ids[name]] for name in names)

    def delete_job(self, job: Job) -> None:
        self.found_jobs.remove(job)
        del self.jobs[job.id]
        self.health.pop(job.id, None)

    # -- runs

    def add_run(self, run: Run) -> bool:
        """Insert a run unless its id, its unique key or its (job, fire_at) is taken."""
        if run.id in self.runs or not self.identities.add(run):
            return False
        self.runs[run.id] = run
        self.found_runs.add(run)
        return True

    def put_run(self, run: Run) -> None:
        """Write a run over the one of its id."""
        self.found_runs.replace(self.runs[run.id], run)
        self.runs[run.id] = run

    def delete_run(self, run: Run) -> None:
        self.found_runs.remove(run)
        self.identities.remove(run)
        del self.runs[run.id]

    def apply_all(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        """Write each change if it can be, and count what ends by them."""
        answers = [self.apply(change, steady) for change in changes]
        for job_id, health in health_after(compress(changes, answers)).items() if changes else ():
            self.health[job_id] = merged(self.health.get(job_id, NO_HEALTH), health)
        return answers

    def apply(self, change: RunChange, steady: Instant) -> bool:
        """Write a change, and what it brings along, if the stored run is still as it says."""
        stored = self.runs.get(change.run.id)
        if stored is None or not is_unmoved(stored, change, steady):
            return False
        if change.replaces:
            self.delete_run(stored)
            self.add_run(change.run)
            self.beside.add(change.records)
            return True
        new = change.run
        if new.lease_expires_at is not None:
            new = leased(new, steady)
        self.put_run(
            replace(
                stored,
                state=new.state,
                due_at=new.due_at,
                attempt=new.attempt,
                worker=new.worker,
                lease_expires_at=new.lease_expires_at,
                deadline=new.deadline,
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
        for run in change.follow_ups:
            self.add_run(run)
        if change.records:
            self.beside.add(change.records)
        return True
