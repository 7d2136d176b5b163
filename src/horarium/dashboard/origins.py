"""The origin of an error: a version of its job, its first run, or unknown; and earlier occurrences."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from horarium.dashboard.differences import Difference, changes
from horarium.model import Job, Run, State
from horarium.operations.facade import Operations
from horarium.operations.jobs.versions import Version
from horarium.ports import RunFilter
from horarium.rules.error_lines import error_sort
from horarium.triggers.words import counted

VERSIONS_READ = 20
BACK = 10
"""Runs before the first failure that are looked at."""


class Origin(Struct, frozen=True):
    """`seen`: of how many runs before it failed with the same error, of how many looked at. `version`: the one that it
    began with, `older`: the one before that. `newer`: there is a later one by now."""

    seen: int = 0
    looked: int = 0
    version: Version | None = None
    older: Version | None = None
    newer: bool = False
    known: bool = False

    @property
    def words(self) -> str:
        """The origin in words, without the version, which a page writes itself."""
        if self.seen:
            return f"seen before: in {self.seen} of the {counted(self.looked, 'run')} before"
        if not self.known or self.version is not None:
            return ""
        return "no version changed then" if self.looked else "began with the first run that is kept"

    @property
    def differences(self) -> Sequence[Difference]:
        """What that version changed."""
        if self.version is None or self.older is None:
            return ()
        return changes([self.version, self.older])[0].differences


async def origin_of(operations: Operations, job: Job, first: Run) -> Origin:
    """How the error of this run began, the first one of the job that failed with it within a span."""
    before = (await operations.store.list_runs(RunFilter(job=job.name, until=first.fire_at), None, BACK)).items
    sort = error_sort(first.error)
    seen = sum(run.state is State.FAILED and error_sort(run.error) == sort for run in before)
    versions = (await operations.versions.shown(job, None, VERSIONS_READ)).items
    place = next((place for place, each in enumerate(versions) if each.at <= first.fire_at), None)
    if place is None or place + 1 >= len(versions):
        return Origin(seen, len(before), known=True)
    version, older = versions[place : place + 2]
    worked = any(run.state is State.COMPLETED and run.fire_at >= version.at for run in before)
    if seen or worked or not before:
        return Origin(seen, len(before), known=True)
    return Origin(0, len(before), version, older, newer=place > 0, known=True)
