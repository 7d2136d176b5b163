"""The versions of jobs: what a job was, who made it so, and what to bring it back to.

Each change of what its owner wrote is kept as a record, in the transaction of the change; secrets are kept with it, as
the job keeps them, and masked where a version is shown. A version's number is the job's own, which also grows when it
is planned: so of any number that a job ever had, the version is the last one kept up to it.

A job that was made by no known caller, or that is older than this, is kept from its first change on: then as it was
before, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.access.acting import bound_caller, who_acts
from horarium.clock import Instant
from horarium.errors import InvalidRequest, NotFound
from horarium.model import Job, Plan
from horarium.model.records import Record, RecordFilter, instant_key, key_instant
from horarium.operations.bounds.reaching import may_reach_definition
from horarium.operations.writing.auditing import told_job
from horarium.operations.writing.keeping import page_under
from horarium.ports import Along, Page, Store
from horarium.rules.joins import defined_records, is_join
from horarium.rules.watching import is_watched, watch_record
from horarium.wire.definitions import JobDefinition, kept_definition

PREFIX = "version/"
ENDED = "ended-job/"
"""A record for each deleted job whose versions are still kept, by the instant of its end; its body is the next one's
name."""
DELETED = "deleted-job/"
"""The same by the name of the job, and then by the instant."""
KEPT = 100
"""Versions of one job that are kept at least."""
SLACK = 10
"""How many more there may be until the oldest are deleted, all at once."""
VERSION_MAX = 10**10 - 1
ABOVE_ALL = ":"
"""Lies above every digit."""


class Version(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as it was from `version` on. `number` counts its versions; `actor`: who made it so ("": not known)."""

    version: int
    number: int
    at: Instant
    definition: JobDefinition
    actor: str = ""
    action: str = ""
    paused_until: Instant | None = None


_decode = msgspec.json.Decoder(Version).decode


class LastKept(Struct):
    """The last version of one job, as far as it was read; for changes that are written together. `is_trimmed`: stored
    ones that are too old are deleted already."""

    is_read: bool = False
    version: Version | None = None
    is_trimmed: bool = False


def along_created(jobs: Sequence[Job], now: Instant) -> Along:
    """Records written with new jobs: markers for the watcher, and their audit entries and first versions, if a caller
    acts."""
    along = {job.id: [watch_record(job, job.version)] for job in jobs if is_watched(job)}
    for job in filter(is_join, jobs):
        along.setdefault(job.id, []).extend(defined_records(job, job.version, now))
    if who_acts() is None:
        return along
    return {job.id: _created(job, along, now) for job in jobs}


def _created(job: Job, along: Along, now: Instant) -> tuple[Record, ...]:
    told = told_job("job.create", None, job, now)
    version = _record(job.id, _version(job, job.version, 1, now, "job.create"))
    return (*along.get(job.id, ()), *told, version)


class Versions:
    """The versions of the jobs of one namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def kept_with(
        self,
        planned: Plan,
        job: Job,
        action: str,
        now: Instant,
        known: LastKept | None = None,
        written: Job | None = None,
    ) -> Plan:
        """The plan of a change of a job, with its audit entry and what it makes of the job's versions. `known`: what
        changes that are written with it know of them; `written`: the job with its next version."""
        told = told_job(action, job, written or planned.job, now)
        if planned.job.deleted_at is not None:
            records = await self._ended(job, now)
        elif kept_definition(planned.job) != (before := kept_definition(job)):
            records = await self._changed(planned.job, before, job, action, now, known or LastKept())
        else:
            records = []
        return replace(planned, records=(*planned.records, *told, *records))

    async def _changed(
        self, changed: Job, before: JobDefinition, job: Job, action: str, now: Instant, known: LastKept
    ) -> list[Record]:
        if not known.is_read:
            known.is_read, known.version = True, await self._last(job.id)
        last = known.version
        records: list[Record] = []
        number = 0 if last is None else last.number
        if last is None or last.definition != before:
            number += 1
            unknown = Version(
                version=job.version, number=number, at=job.updated_at or job.created_at, definition=before
            )
            records.append(_record(job.id, unknown))
        number += 1
        if number > KEPT and number % SLACK == 0 and not known.is_trimmed:
            known.is_trimmed = True
            await self._trim(job.id)
        known.version = _version(changed, job.version + 1, number, now, action)
        return [*records, _record(job.id, known.version)]

    async def _ended(self, job: Job, now: Instant) -> list[Record]:
        """The job as it was, where that is not kept yet, and how it is found: by its name, and once it is too old."""
        last, key = await self._last(job.id), instant_key(now, job.id)
        if last is None and who_acts() is None:
            return []
        named = f"{DELETED}{job.name}/{key}"
        records = [Record(name=ENDED + key, body=named.encode()), Record(name=named, body=b"")]
        if last is None or last.definition != kept_definition(job):
            number = 1 if last is None else last.number + 1
            at = job.updated_at or job.created_at
            records.append(_record(job.id, _version(job, job.version, number, at, "", actor="")))
        return records

    async def _last(self, job_id: str) -> Version | None:
        return next(iter((await self._newest(f"{PREFIX}{job_id}/", None, 1)).items), None)

    async def _newest(self, prefix: str, after: str | None, limit: int) -> Page[Version]:
        page = await page_under(self._store, RecordFilter(prefix, descending=True), prefix, after, limit)
        return Page(tuple(_decode(record.body) for _, record in page.items), page.next_after)

    async def _first(self, where: RecordFilter) -> Version | None:
        found = (await self._store.list_records(where, None, 1)).items
        return _decode(found[0].body) if found else None

    async def _trim(self, job_id: str) -> None:
        """Delete the oldest, beyond those that are kept."""
        prefix = f"{PREFIX}{job_id}/"
        newest = await self._store.list_records(RecordFilter(prefix, descending=True), None, KEPT)
        if newest.items:
            await self._store.prune_records(prefix, newest.items[-1].name.removeprefix(prefix), KEPT)

    # ---- looked at

    async def page(self, job: Job, after: str | None, limit: int) -> Page[Version]:
        """The versions of a job, the newest first, beginning below the version `after`."""
        prefix = f"{PREFIX}{job.id}/"
        page = await self._newest(prefix, after, limit)
        if after is None and (not page.items or page.items[0].definition != kept_definition(job)):
            number = page.items[0].number + 1 if page.items else 1
            present = _version(job, job.version, number, job.updated_at or job.created_at, "", actor="")
            return Page((present, *page.items), page.next_after)
        return page

    async def shown(self, job: Job, after: str | None, limit: int) -> Page[Version]:
        """The same for a reader: who is bound sees none of the versions in which the job was another team's."""
        page, caller = await self.page(job, after, limit), bound_caller()
        if caller is None:
            return page
        return Page(
            tuple(each for each in page.items if may_reach_definition(caller, each.definition)), page.next_after
        )

    async def of_deleted(self, name: str, after: str | None, limit: int) -> Page[Version]:
        """The versions of the job of that name that was deleted last, the newest first. Raises NotFound."""
        found = await self._store.list_records(RecordFilter(f"{DELETED}{name}/", descending=True), None, 1)
        if not found.items:
            raise never_was(name)
        prefix = f"{PREFIX}{found.items[0].name.rpartition('/')[2].partition('-')[2]}/"
        page, caller = await self._newest(prefix, after, limit), bound_caller()
        if caller is not None and not all(may_reach_definition(caller, each.definition) for each in page.items):
            raise never_was(name)
        return page

    async def deleted(self, limit: int) -> list[tuple[str, Instant]]:
        """Names of jobs that were deleted and can be made again, and when that was; the newest first."""
        found: dict[str, Instant] = {}
        page = await self._store.list_records(RecordFilter(ENDED, descending=True), None, limit)
        for record in page.items:
            name, _, key = record.body.decode().removeprefix(DELETED).rpartition("/")
            found.setdefault(name, key_instant(key))
        caller = bound_caller()
        return [(name, at) for name, at in found.items() if caller is None or await self._may_reach_deleted(name)]

    async def _may_reach_deleted(self, name: str) -> bool:
        try:
            return bool((await self.of_deleted(name, None, 1)).items)
        except NotFound:
            return False

    async def get_deleted(self, name: str, version: int) -> JobDefinition:
        """The definition at this version of the job that was deleted last. Raises NotFound, InvalidRequest."""
        page = await self.of_deleted(name, _key(min(version, VERSION_MAX - 1) + 1), 1)
        if not page.items and (await self.of_deleted(name, None, 1)):
            message = f"version: job {name!r} had no version {version}, or it is kept no longer"
            raise InvalidRequest(message, field="version")
        return page.items[0].definition

    async def get(self, job: Job, version: int) -> JobDefinition:
        """The definition at this version. Raises InvalidRequest for one that it never had, or that is not kept."""
        prefix = f"{PREFIX}{job.id}/"
        if 0 < version <= min(job.version, VERSION_MAX):
            if found := await self._first(RecordFilter(prefix, until=_key(version + 1), descending=True)):
                return found.definition
            if (first := await self._first(RecordFilter(prefix))) is None:
                return kept_definition(job)
            if first.number == 1:
                return first.definition
        message = f"version: job {job.name!r} has no version {version}, or it is kept no longer"
        raise InvalidRequest(message, field="version")

    # ---- retention

    async def prune(self, until: Instant, limit: int) -> int:
        """Delete the versions of jobs that ended before this instant. How many records went."""
        ended = await self._store.list_records(RecordFilter(ENDED, until=instant_key(until)), None, limit)
        gone = 0
        for record in ended.items:
            job_id = record.name.removeprefix(ENDED).partition("-")[2]
            gone += (pruned := await self._store.prune_records(f"{PREFIX}{job_id}/", ABOVE_ALL, limit))
            if pruned < limit:
                (named,) = await self._store.get_records([record.body.decode()])
                both = [each for each in (named, record) if each is not None]
                await self._store.put_records([each.removal() for each in both])
                gone += len(both)
        return gone


def never_was(name: str) -> NotFound:
    return NotFound(f"there is no job {name!r}, and none of that name was deleted within the retention of the audit")


def _key(version: int) -> str:
    return f"{version:010d}"


def _record(job_id: str, version: Version) -> Record:
    return Record(name=f"{PREFIX}{job_id}/{_key(version.version)}", body=msgspec.json.encode(version))


def _version(job: Job, version: int, number: int, at: Instant, action: str, actor: str | None = None) -> Version:
    origin = who_acts()
    return Version(
        version=version,
        number=number,
        at=at,
        definition=kept_definition(job),
        actor=(origin.principal.subject if origin is not None else "") if actor is None else actor,
        action=action,
        paused_until=job.paused_until,
    )
