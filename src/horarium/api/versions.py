"""The endpoints about what a job was: its versions, and the way back to one of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer
from horarium.api.reading import job_name, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.clock import to_datetime
from horarium.operations.jobs.versions import VERSION_MAX, Version
from horarium.rules.calendars import without_days
from horarium.wire.definitions import JobDefinition, without_defaults
from horarium.wire.masking import shown_target
from horarium.wire.views import JobView, job_view


class JobVersion(Struct, kw_only=True):
    """A job as it was from this version on (secrets masked). `actor` and `action`: who made it so, and how; empty where
    that is not known."""

    version: int
    at: datetime
    actor: str
    action: str
    definition: JobDefinition


class VersionPage(Page[JobVersion]):
    """One page of a job's versions, the newest first."""


class RevertRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which version to go back to: any number that the job had, also one between two that are listed."""

    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]


class JobVersions(Handlers):
    @Endpoint(
        "GET", "/jobs/{name}/versions", "listJobVersions", tag="jobs", scope=Scope.JOBS_READ, query=PageQuery,
        costly=True,
        summary="What a job was, and who changed it; the newest first",
        description="Those of a deleted job too, as long as the audit is kept.",
        answers={200: (VersionPage, "One page")}, problems=("not_found", "invalid_cursor"),
    )  # fmt: skip
    async def list_versions(self, call: Call) -> Answer:
        query: PageQuery = call.query
        name, versions = job_name(call.request), self._operations.versions
        after = read_cursor("versions", query.cursor, _is_key)
        (job,) = await self._operations.store.get_jobs([name])
        if job is None:
            page = await versions.of_deleted(name, after, query.limit)
        else:
            page = await versions.shown(job, after, query.limit)
        return answer(VersionPage([_view(each) for each in page.items], write_cursor("versions", page.next_after)))

    @Endpoint(
        "POST", "/jobs/{name}/revert", "revertJob", tag="jobs", scope=Scope.JOBS_WRITE,
        summary="Bring a job back to what it was at a version",
        description="Its content as a whole, secrets and whether it is paused included. Going back is a new "
        "version itself. A job that is that already stays as it is. One that was deleted is made again, as "
        "long as the audit is kept.",
        body=RevertRequest,
        answers={200: (JobView, "The job as it now is")},
        problems=("not_found", "conflict", "invalid_job", "invalid_trigger", "too_expensive"),
    )  # fmt: skip
    async def revert(self, call: Call) -> Answer:
        asked: RevertRequest = call.body
        job = await self._operations.jobs.revert_job(job_name(call.request), asked.version)
        return answer(job_view(job, *await self._operations.health([job])))


def _is_key(after: str) -> bool:
    return len(after) == 10 and after.isascii() and after.isdigit()


def _view(version: Version) -> JobVersion:
    definition = without_defaults(version.definition)
    return JobVersion(
        version=version.version,
        at=to_datetime(version.at),
        actor=version.actor,
        action=version.action,
        definition=replace(
            definition, trigger=without_days(definition.trigger), target=shown_target(definition.target)
        ),
    )
