"""Claims, as they are handed to workers: what a job no longer wants is taken out and put back, and follows its job.

A store claims by queue and instant, and knows no job. What a node that died left undone after a change of a job is
found here at the latest: a run of a deleted job ends, one in a queue that its job has left moves on. So is a run that a
hold covers: it waits, and costs no attempt. One that waited for want of a worker is caught up on as its job says.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.errors import StoreUnavailable
from horarium.model import Deferred, Job, Released, Run, RunChange, State
from horarium.model.holds import Hold
from horarium.operations.settling.absences import missed_by_absence
from horarium.operations.settling.holding import Holding
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.context import Context
from horarium.ports import Claimed
from horarium.rules.approving import expired, is_waiting
from horarium.rules.holds import OURS, drained_until, held_queues, hold_on, kept_back, skipped_at_claim
from horarium.rules.rates import Admitted, given_back
from horarium.rules.reconciling import belongs
from horarium.rules.settling import settle
from horarium.rules.silences import beside_others, put_off_until
from horarium.triggers.words import counted

log = logging.getLogger("horarium")

ROUNDS_MAX = 10
"""How often a claim is made again, of which all that came had to wait for rate limits, or was missed."""
APART = "tried apart from what fell silent with it"


class Claiming:
    """Claims runs for the workers of one node."""

    def __init__(self, context: Context, settling: Settling, holding: Holding) -> None:
        self._store, self._clock = context.store, context.clock
        self.holding = holding
        self._settling = settling
        self._astray = settling.astray
        self.rating = Rating(context)

    async def claim(self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant) -> Claimed:
        """As `Store.claim_runs`, without runs that must not be handed out: each check says what becomes of those that
        it finds. A queue that is held is not asked for."""
        try:
            claimed = await self._claim(queues, limit, worker, now, until)
        except StoreUnavailable:
            self._astray.append((worker, now))
            raise
        if claimed.runs and (worker, now) in self._astray:
            self._astray.remove((worker, now))  # it can't be told from this one, whose work begins
        return claimed

    async def _claim(self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant) -> Claimed:
        holds = await self.holding.look()
        free, held_until = held_queues(holds, queues, now) if holds else (queues, None)
        if holds and (drained := drained_until(holds, worker, now)) is not None:
            free, held_until = [queue for queue in free if queue in OURS], drained
        if not free:
            return Claimed(next_due_at=held_until)
        for _ in range(ROUNDS_MAX):
            claimed = await self._store.claim_runs(free, limit, worker, now, until, self._clock.steady())
            if not claimed.runs:
                break
            missed = await self._missed(claimed, now) if claimed.jobs else []
            claimed = await self._put_back(claimed, missed, now, "missed")
            claimed = await self._checked(claimed, await self.holding.look(), now)
            rated = [run for run in claimed.runs if run.rates]
            if rated:
                claimed = await self._not_held(await self._rated(claimed, rated, now, until))
            if claimed.runs or not (rated or missed):
                break
        return claimed if held_until is None else _looked_at(claimed, held_until)

    async def _missed(self, claimed: Claimed, now: Instant) -> list[RunChange]:
        try:
            return await missed_by_absence(self._store, claimed, now)
        except StoreUnavailable as error:
            log.warning("what waited for a worker runs, missed or not: %s", error)
            return []

    async def _checked(self, claimed: Claimed, holds: Sequence[Hold], now: Instant) -> Claimed:
        if together := beside_others(claimed.runs):
            apart = _tried_apart(claimed, together, now)
            claimed = await self._put_back(claimed, apart, now, "silent together")
        if asked := [run for run in claimed.runs if run.history and run.job_id in claimed.jobs and is_waiting(run)]:
            over = [RunChange(expired(run, claimed.jobs[run.job_id or ""], now), run.token, run.state) for run in asked]
            claimed = await self._put_back(claimed, over, now, "not approved")
        unwanted = _unwanted(claimed.runs, claimed.jobs) if claimed.jobs else []
        if unwanted:
            released = [_released(run, claimed.jobs, now) for run in unwanted]
            claimed = await self._put_back(claimed, released, now, "of a changed job")
        return await self._not_held(claimed) if holds else claimed

    async def _not_held(self, claimed: Claimed) -> Claimed:
        """Without those of these runs that are held by now: the store, and rate limits, may have taken their time."""
        now = self._clock.now()
        return await self._put_back(claimed, await self._held(claimed, now), now, "held")

    async def _held(self, claimed: Claimed, now: Instant) -> list[RunChange]:
        """Runs that a hold keeps from their begin, and those whose fire time it skips."""
        if not self.holding.known:
            return []
        changes = []
        places: Counter[str] = Counter()
        for run in claimed.runs:
            job = claimed.jobs.get(run.job_id or "")
            skipped = skipped_at_claim(run, job, self.holding.known, now)
            if skipped is not None:
                changes.append(RunChange(skipped, run.token, run.state))
                continue
            at = max(now, run.due_at)  # a run that is claimed ahead begins when it is due
            held = hold_on(self.holding.known, run, job, at)
            if held is not None and await self.holding.lets_through(held.hold, run, job, at):
                held = hold_on(self.holding.known, run, job, at)
            if held is not None:
                waiting = kept_back(run, held, at, places[held.hold.id])
                changes.append(RunChange(waiting, run.token, run.state))
                places[held.hold.id] += 1
        return changes

    async def _put_back(self, claimed: Claimed, afters: Sequence[RunChange], now: Instant, which: str) -> Claimed:
        """Write these runs of a claim as they are to be instead of handing them out. The others."""
        if not afters:
            return claimed
        try:
            await self._settling.write(afters, claimed.jobs, now)
        except StoreUnavailable as error:
            log.warning("%s (%s) left to the rescuer: %s", counted(len(afters), "run"), which, error)
            self._astray += [(change.run.id, change.token) for change in afters]
        left = {change.run.id for change in afters}
        return replace(claimed, runs=tuple(run for run in claimed.runs if run.id not in left), next_due_at=now)

    async def _rated(self, claimed: Claimed, rated: Sequence[Run], now: Instant, until: Instant) -> Claimed:
        """Without those of these runs that have to wait for a rate limit. An answer that took long is void: the place
        that it brought is past. So is one beyond `until`: the clock went back meanwhile, and who claims begins now."""
        try:
            admitted = await self.rating.admit(rated)
        except StoreUnavailable:
            admitted = Admitted({}, [given_back(run) for run in rated], {})
        claims = {run.id: run for run in rated}
        waiting = [RunChange(run, claims[run.id].token, claims[run.id].state) for run in admitted.waiting]
        claimed = await self._put_back(claimed, waiting, now, "beyond a rate limit")
        steady, turns = self._clock.steady(), admitted.turns
        void = [
            RunChange(given_back(run), run.token, run.state)
            for run in claimed.runs
            if run.id in turns and not turns[run.id][0] - (until - now) <= steady <= turns[run.id][1]
        ]
        claimed = await self._put_back(claimed, void, now, "whose place under a rate limit is another")
        return replace(claimed, turns=turns)

    async def release(self, claimed: Claimed, reason: str) -> None:
        """Give back runs that have not begun."""
        await self._settling.release(claimed.runs, claimed.jobs, reason)

    async def never_begun(self, claims: Sequence[Run], jobs: Mapping[str, Job]) -> None:
        """These claims are lost, and were not begun. In an outage they stay as they are."""
        try:
            await self._settling.never_begun(claims, jobs)
        except StoreUnavailable as error:
            log.warning("%s not begun in time; an attempt of each is lost: %s", counted(len(claims), "run"), error)


def _looked_at(claimed: Claimed, at: Instant) -> Claimed:
    """The claim, to be asked for again at this instant at the latest."""
    due_at = claimed.next_due_at
    return replace(claimed, next_due_at=at if due_at is None else min(due_at, at))


def _change(run: Run, after: Run) -> RunChange:
    return RunChange(after, run.token, run.state)


def _tried_apart(claimed: Claimed, together: Sequence[Run], now: Instant) -> list[RunChange]:
    """Runs that were lost together and claimed together again are put off (poison-message isolation)."""
    settled = [
        (run, settle(run, claimed.jobs.get(run.job_id or ""), Deferred(put_off_until(run, now), APART), now))
        for run in together
    ]
    return [_change(run, after) for run, after in settled if after.state is State.PENDING]


def _released(run: Run, jobs: Mapping[str, Job], now: Instant) -> RunChange:
    reason = Released("not handed out: its job was changed")
    return _change(run, settle(run, jobs.get(run.job_id or ""), reason, now))


def _goes_on(job: Job) -> bool:
    return job.enabled and job.deleted_at is None and job.approval is None


def _unwanted(runs: Sequence[Run], jobs: Mapping[str, Job]) -> list[Run]:
    """Those that their jobs no longer want. A job that goes on, without approvals, wants all that wait in its queue."""
    queues = {id: job.queue if _goes_on(job) else None for id, job in jobs.items()}
    doubtful = [run for run in runs if queues.get(run.job_id or "", run.queue) != run.queue]
    return [run for run in doubtful if not belongs(run, jobs[run.job_id or ""])]
