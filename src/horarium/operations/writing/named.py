"""Jobs and runs by name or id, or the error that there is none."""

from __future__ import annotations

from collections.abc import Iterable

from horarium.errors import NotFound
from horarium.model import Job, Run
from horarium.ports import Store


async def job_named(store: Store, name: str) -> Job:
    """The job of that name. Raises NotFound."""
    (job,) = await store.get_jobs([name])
    if job is None:
        raise no_job(name)
    return job


def no_job(name: str) -> NotFound:
    return NotFound(f"there is no job named {name!r}")


def no_run(id: str) -> NotFound:
    return NotFound(f"there is no run {id[:200]!r}")


async def jobs_by_id(store: Store, ids: Iterable[str | None]) -> dict[str, Job]:
    """Those of these jobs that there are."""
    asked = [id for id in dict.fromkeys(ids) if id is not None]
    return {job.id: job for job in await store.get_jobs_by_id(asked) if job is not None} if asked else {}


async def jobs_of(store: Store, runs: Iterable[Run]) -> dict[str, Job]:
    """The jobs of these runs, by id."""
    return await jobs_by_id(store, [run.job_id for run in runs])


async def run_of_id(store: Store, run_id: str) -> Run:
    """The run of that id. Raises NotFound."""
    (run,) = await store.get_runs([run_id])
    if run is None:
        raise no_run(run_id)
    return run
