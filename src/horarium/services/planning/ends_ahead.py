"""Runs that ended in a future which turned out to be wrong are brought back with the clock.

Their end, their history and their expiry lie where the clock was. Without this they would be kept for that much longer,
and would count as the newest runs of their jobs. Each write goes under the version of the job that was read: where
another node was quicker, all are looked at once more.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from horarium.clock import SECOND, Clock, Instant
from horarium.model import UNFINISHED, Plan, Run, RunChange, State
from horarium.operations.writing.named import jobs_of
from horarium.ports import PAGE_MAX, RunFilter, Store
from horarium.rules.settling import brought_back
from horarium.triggers.words import counted

AHEAD = SECOND
"""An end further ahead than this was written by a clock that was wrong."""
FINISHED = frozenset(State) - UNFINISHED

log = logging.getLogger("horarium")


class EndsAhead:
    """Looks, a page at a time, at the finished runs of fire times since some instant."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._since: Instant | None = None
        self._after: str | None = None
        self._again = False

    def begin(self, since: Instant) -> None:
        """Look at the runs of fire times from there on."""
        self._since = since if self._since is None else min(since, self._since)
        self._after = None

    async def step(self) -> bool:
        """Look at the next page. Whether there is another one."""
        if self._since is None:
            return False
        page = await self._store.list_runs(RunFilter(states=FINISHED, since=self._since), self._after, PAGE_MAX)
        now = self._clock.now()
        await self._bring_back([run for run in page.items if (run.finished_at or 0) > now + AHEAD])
        self._after = page.next_after
        if self._after is None and not self._again:
            self._since = None
        self._again &= self._after is not None
        return self._since is not None

    async def _bring_back(self, runs: Sequence[Run]) -> None:
        if not runs:
            return
        jobs = await jobs_of(self._store, runs)
        changes: dict[str, list[RunChange]] = defaultdict(list)
        stored = await self._store.get_runs([run.id for run in runs])
        now = self._clock.now()
        for run in _still_ahead(stored, now):
            job_id = run.job_id if run.job_id in jobs else None
            change = RunChange(brought_back(run, jobs.get(job_id or ""), now), run.token, run.state)
            changes[job_id or ""].append(change)
        done = sum(await self._store.settle_runs(changes.pop("", []), now))
        plans = [Plan(jobs[job_id], changes=tuple(of_job)) for job_id, of_job in changes.items()]
        written = await self._store.commit_plans(plans, now) if plans else []
        self._again |= not all(written)
        done += sum(len(each.changes) for each, did in zip(plans, written, strict=True) if did)
        log.warning("%s ended by a clock that was ahead; now counts as the end", counted(done, "run"))


def _still_ahead(stored: Sequence[Run | None], now: Instant) -> list[Run]:
    """As they are once their jobs were read. Where one of these was deleted in between, and another one made in its
    place, that raised the version of its job: a write under the version that was read does not hit it."""
    return [run for run in stored if run is not None and run.finished and (run.finished_at or 0) > now + AHEAD]
