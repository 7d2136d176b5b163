"""Claims, as they are handed to workers: what a job no longer wants is taken out and put back, and follows its job.

A store claims by queue and instant, and knows no job. What a node that died left undone after a change of a job is
found here at the latest: a run of a deleted job ends, one in a queue that its job has left moves on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Deferred, Job, Run, RunChange, State
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.context import Context
from horarium.ports import Claimed
from horarium.rules.reconciling import belongs
from horarium.rules.settling import settle
from horarium.rules.silences import beside_others, put_off_until

log = logging.getLogger("horarium")

APART = "tried apart from what fell silent with it"


class Claiming:
    """Claims runs for the workers of one node."""

    def __init__(self, context: Context, settling: Settling) -> None:
        self._store, self._clock = context.store, context.clock
        self._settling = settling

    async def claim(self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant) -> Claimed:
        """As `Store.claim_runs`, without runs that must not be handed out."""
        claimed = await self._store.claim_runs(queues, limit, worker, now, until, self._clock.steady())
        if together := beside_others(claimed.runs):
            claimed = await self._tried_apart(claimed, together, now)
        unwanted = _unwanted(claimed.runs, claimed.jobs) if claimed.jobs else []
        if not unwanted:
            return claimed
        try:
            await self._settling.release(unwanted, claimed.jobs, "not handed out: its job was changed")
        except StoreUnavailable as error:
            log.warning("%d runs whose job was changed are left to the rescuer: %s", len(unwanted), error)
        return _without(claimed, unwanted, now)

    async def _tried_apart(self, claimed: Claimed, together: Sequence[Run], now: Instant) -> Claimed:
        """Put off runs that were lost together and claimed together again (poison-message isolation)."""
        changes = []
        for run in together:
            outcome = Deferred(put_off_until(run, now), APART)
            after = settle(run, claimed.jobs.get(run.job_id or ""), outcome, now)
            if after.state is State.PENDING:
                changes.append(RunChange(after, run.token, run.state))
        try:
            await self._settling.write(changes, claimed.jobs, now)
        except StoreUnavailable as error:
            log.warning("%d runs that fell silent together are left to the rescuer: %s", len(changes), error)
        return _without(claimed, [change.run for change in changes], now)

    async def release(self, claimed: Claimed, reason: str) -> None:
        """Give back runs that have not begun."""
        await self._settling.release(claimed.runs, claimed.jobs, reason)

    async def never_begun(self, claims: Sequence[Run], jobs: Mapping[str, Job]) -> None:
        """These claims are lost, and were not begun. In an outage they stay as they are."""
        try:
            await self._settling.never_begun(claims, jobs)
        except StoreUnavailable as error:
            log.warning("%d runs that were not begun in time lose an attempt: %s", len(claims), error)


def _without(claimed: Claimed, runs: Sequence[Run], now: Instant) -> Claimed:
    left = {run.id for run in runs}
    return replace(claimed, runs=tuple(run for run in claimed.runs if run.id not in left), next_due_at=now)


def _unwanted(runs: Sequence[Run], jobs: Mapping[str, Job]) -> list[Run]:
    """Those that their jobs no longer want. A job that goes on wants all that wait in its queue."""
    queues = {id: job.queue if job.enabled and job.deleted_at is None else None for id, job in jobs.items()}
    doubtful = [run for run in runs if queues.get(run.job_id or "", run.queue) != run.queue]
    return [run for run in doubtful if not belongs(run, jobs[run.job_id or ""])]
