"""The job of a name, or the error that there is none."""

from __future__ import annotations

from horarium.errors import NotFound
from horarium.model import Job
from horarium.ports import Store


async def job_named(store: Store, name: str) -> Job:
    """The job of that name. Raises NotFound."""
    (job,) = await store.get_jobs([name])
    if job is None:
        raise no_job(name)
    return job


def no_job(name: str) -> NotFound:
    """The error of a request for a job that is not there."""
    return NotFound(f"there is no job named {name!r}")
