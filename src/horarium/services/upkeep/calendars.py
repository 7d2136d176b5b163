"""Carries a change of a calendar to the holds and jobs that use it: page by page, once the change is written.

The work is in a marker record, as that of the applier is. Each job is brought to its own definition with the days of
now, as though its owner had sent it again. A job that was being written with the old days while the change was made is
found by another look at all jobs, some seconds later; only then is the marker removed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from horarium.clock import SECOND, Clock, to_text
from horarium.model import Job
from horarium.operations.calendars import CHANGED
from horarium.operations.holds import HoldOperations
from horarium.operations.jobs.importing import Importing
from horarium.operations.settling.reconciling import Reconciler
from horarium.ports import JobFilter, Store
from horarium.rules.applying import owed_of
from horarium.rules.calendars import calendars_in
from horarium.rules.overridden import said
from horarium.services.upkeep.applier import Applier, Work

PAGE = 100
WRITTEN = 10 * SECOND
"""How long a job may take to be written."""

log = logging.getLogger("horarium")


class CalendarApplier(Applier):
    """Brings holds and jobs up to date with their calendars."""

    name = "calendars"
    prefix = CHANGED

    def __init__(
        self, store: Store, clock: Clock, reconciler: Reconciler, node: str, importing: Importing, holds: HoldOperations
    ) -> None:
        super().__init__(store, clock, reconciler, node)
        self._importing, self._holds = importing, holds

    async def _page(self, work: Work) -> None:
        owed = owed_of(work.record)
        if work.after is None:
            await self._holds.renew(owed.job_id)
        page = await self._store.list_jobs(JobFilter(), work.after, PAGE)
        users = [job for job in page.items if owed.job_id in calendars_in(job.trigger)]
        for name, error in (await self._importing.renew(users)).items() if users else ():
            log.warning("job %s does not follow its calendar %s: %s", name, owed.job_id, error)
        await self._say_dropped([job for job in users if job.overrides], owed.job_id)
        work.after = page.next_after
        if work.after is None:
            await self._finish(work, WRITTEN)

    async def _say_dropped(self, overridden: Sequence[Job], calendar: str) -> None:
        """A person skipped or moved a fire time that there no longer is, and was told that it would be so."""
        if not overridden:
            return
        stored = await self._store.get_jobs_by_id([job.id for job in overridden])
        for before, after in zip(overridden, stored, strict=True):
            for each in before.overrides:
                if after is not None and each.fire_at in after.overrides_dropped:
                    log.warning(
                        "job %s: with its calendar %s, %s is no fire time any more; dropped: %s",
                        before.name, calendar, to_text(each.fire_at), said(each),
                    )  # fmt: skip
