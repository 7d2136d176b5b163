"""What new jobs bring along for the watcher."""

from __future__ import annotations

from collections.abc import Sequence

from horarium.model import Job
from horarium.ports import Along
from horarium.rules.watching import is_watched, watch_record


def watched(jobs: Sequence[Job]) -> Along:
    """The records of those of these new jobs that are watched."""
    return {job.id: [watch_record(job, job.version)] for job in jobs if is_watched(job)}
