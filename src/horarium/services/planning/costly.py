"""Jobs whose rule costs more than the event loop may spend on one job: planned one at a time, in a thread that rests.

The planner hands such a job over and goes on with the others, so a rule delays no job but its own. One that is too
expensive even here, or that fails, is tried ever more rarely and reported each time. A job that was edited is looked at
as a new one. The number set aside is bounded; beyond that the job that was set aside first is tried again by the
planner.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from horarium.clock import Instant, to_micros
from horarium.errors import StoreUnavailable, TooExpensive
from horarium.model import Job, Plan, Run
from horarium.operations.bounds.evaluating import Evaluator
from horarium.operations.jobs.changes import last_runs
from horarium.operations.jobs.passed import in_the_way
from horarium.operations.settling.holding import PLANNED_SECONDS, Holding
from horarium.ports import Store
from horarium.rules.holds import job_hold
from horarium.rules.planning import needs_unfinished
from horarium.rules.reconciling import plan_bounded
from horarium.services.loop.service import Service, Wake
from horarium.triggers.budget import PLAN_STEPS, PLAN_STEPS_MAX, limited

ASIDE_MAX = 10_000
"""Jobs that are remembered as costly."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 60.0, 3_600.0
"""When a job that could not be planned is tried again; the pause doubles."""

_evaluate = Evaluator()
"""Not the one of requests: however many there are, no plan waits for them."""

Commit = Callable[[Plan, Instant], Awaitable[None]]

log = logging.getLogger("horarium")


class Aside(Struct):
    """A job that is planned here: as it was edited last, and not before `retry_at`."""

    updated_at: Instant
    retry_at: Instant = 0
    pause_seconds: float = RETRY_SECONDS_MIN


class CostlyJobs(Service):
    """Plans what the planner set aside."""

    name = "costly"

    def __init__(self, store: Store, commit: Commit, ahead: int, holding: Holding) -> None:
        self.wake = Wake()
        self._store = store
        self._commit = commit
        self._ahead = ahead
        self._holding = holding
        self._aside: dict[str, Aside] = {}
        self._waiting: dict[str, None] = {}

    def set_aside(self, job: Job) -> None:
        """Plan this job here from now on."""
        if len(self._aside) >= ASIDE_MAX:
            first = next(iter(self._aside))
            del self._aside[first]
            self._waiting.pop(first, None)
        self._aside[job.id] = Aside(job.updated_at)
        self._enqueue(job)

    def holds(self, job: Job, now: Instant) -> bool:
        """Whether this due job is planned here, and not by the planner."""
        aside = self._aside.get(job.id)
        if aside is None or aside.updated_at != job.updated_at:
            self._aside.pop(job.id, None)
            return False
        if not now < aside.retry_at <= now + to_micros(RETRY_SECONDS_MAX):  # else a clock was ahead
            self._enqueue(job)
        return True

    def put_off(self, job: Job, now: Instant, why: str) -> None:
        """This job can't be planned. It is tried again, each time after a longer pause."""
        aside = self._aside.setdefault(job.id, Aside(job.updated_at))
        log.error("job %s can't be planned; it is tried again in %d s: %s", job.name, aside.pause_seconds, why)
        aside.retry_at = now + to_micros(aside.pause_seconds)
        aside.pause_seconds = min(2 * aside.pause_seconds, RETRY_SECONDS_MAX)

    def _enqueue(self, job: Job) -> None:
        self._waiting[job.id] = None
        self.wake.set()

    def looks(self) -> bool:
        return False

    async def step(self, now: Instant) -> Instant | None:
        if not self._waiting:
            return None
        job_id = next(iter(self._waiting))
        (job,) = await self._store.get_jobs_by_id([job_id])
        self._waiting.pop(job_id, None)
        if job is not None and job.next_fire_at is not None and job.next_fire_at <= now + self._ahead:
            await self._plan(job, now)
        return now if self._waiting else None

    async def _plan(self, job: Job, now: Instant) -> None:
        await self._holding.look(PLANNED_SECONDS)
        unfinished = (await self._store.unfinished_runs([job.id]))[job.id] if needs_unfinished(job) else []
        last = (await last_runs(self._store, [job])).get(job.id)
        try:
            asked = partial(self._planned, job, unfinished, now, last)
            planned, spent = await _evaluate(asked, PLAN_STEPS_MAX)
            if found := await in_the_way(self._store, [job], [planned], now):
                planned, _ = await _evaluate(partial(asked, found[job.id]), PLAN_STEPS_MAX)
        except TooExpensive as error:
            self.put_off(job, now, error.message)
            return
        except StoreUnavailable:
            raise
        except Exception as error:
            log.exception("job %s can't be planned", job.name)
            self.put_off(job, now, f"{type(error).__name__}: {error}")
            return
        await self._commit(planned, now)
        if spent <= PLAN_STEPS // 2:
            # It was dear this once, as after an absence.
            self._aside.pop(job.id, None)
        elif (aside := self._aside.get(job.id)) is not None:
            aside.retry_at, aside.pause_seconds = 0, RETRY_SECONDS_MIN

    def _planned(
        self, job: Job, unfinished: list[Run], now: Instant, last: Run | None, ran: Sequence[Instant] = ()
    ) -> tuple[Plan, int]:
        """The plan, and what it cost."""
        with limited(PLAN_STEPS_MAX) as budget:
            held = job_hold(self._holding.known, job, now)
            planned = plan_bounded(
                job, unfinished, now, self._ahead, steps=PLAN_STEPS_MAX, last=last, ran=ran, held=held
            )
            return planned, budget.spent
