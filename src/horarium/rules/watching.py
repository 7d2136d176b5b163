"""Which jobs the watcher looks at: those that ask for lateness, which is told before a run has ended.

Such a job has a record `watched/JOB/VERSION`, written with the job in the same transaction. So the watcher's work is
proportional to these jobs, however many others there are. A record is of no use once the job no longer asks; it is
removed by the watcher that finds it so, under the version that it read: an edit that came meanwhile has its own record.
"""

from __future__ import annotations

from horarium.clock import Instant
from horarium.model import TIMED, Job, Plan
from horarium.model.records import Record

PREFIX = "watched/"


def is_watched(job: Job) -> bool:
    """Whether the job asks for what the watcher tells."""
    return bool(job.on) and job.deleted_at is None and any(job.on.get(occasion) for occasion in TIMED)


def watch_record(job: Job, version: int) -> Record:
    """The record that leads the watcher to a job that is stored under this version."""
    return Record(name=f"{PREFIX}{job.id}/{version:012d}", body=b"")


def watch_records(planned: Plan, now: Instant) -> tuple[Record, ...]:
    """The marker records for the watcher in a plan that edits its job."""
    job = planned.job
    return (watch_record(job, job.version + 1),) if job.updated_at == now and is_watched(job) else ()


def job_and_version(name: str) -> tuple[str, int]:
    """The parts of a record's name."""
    job_id, _, version = name.removeprefix(PREFIX).rpartition("/")
    return job_id, int(version)
