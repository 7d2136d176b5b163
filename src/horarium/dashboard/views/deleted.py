"""Jobs that were deleted, and the way back."""

from __future__ import annotations

from horarium.access.roles import Scope
from horarium.api.reading import is_name
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.errors import NotFound
from horarium.ports import PAGE_MAX
from horarium.triggers.words import counted


class DeletedJobs(Pages):
    """The page at `/deleted-jobs`."""

    @Page("GET", "/deleted-jobs", "deleted-jobs", place="jobs")
    async def show(self, visit: Visit) -> Answer:
        found = await self._operations.versions.deleted(PAGE_MAX)
        there = await self._operations.store.get_jobs([name for name, _ in found]) if found else []
        rows = [(name, at, job is not None) for (name, at), job in zip(found, there, strict=True)]
        return Shown("deleted-jobs.html", {"rows": rows, "heading": counted(len(rows), "deleted job")})

    @Page("POST", "/deleted-jobs/restore", "job-restore", scope=Scope.JOBS_WRITE)
    async def restore(self, visit: Visit) -> Answer:
        """Make it again, as it was last."""
        name = visit.text("name")
        last = (await self._operations.versions.of_deleted(name, None, 1)).items if is_name(name) else ()
        if not last:
            raise NotFound(f"no job {name[:200]!r} was deleted")
        if (await self._operations.store.get_jobs([name]))[0] is None:
            await self._operations.jobs.revert_job(name, last[0].version)
        return Went(f"/jobs/{name}", f"{name} is there again, as it was. Runs of before stay in the list of runs.")
