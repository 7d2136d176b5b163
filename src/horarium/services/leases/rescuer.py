"""The rescuer: takes back what no worker holds any more. A lease that expired loses its attempt; a run that was not
started in time fails; a cancel whose grace ran out is enforced. Every node may rescue: each change names token, state
and lease as they were read, so a run is rescued once, and never one whose worker has just sent a heartbeat."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import CLAIMED, CommandTarget, Job, Run, RunChange, State
from horarium.model.holds import Hold
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.settling.settling import Settling
from horarium.operations.writing.named import jobs_of
from horarium.ports import BATCH_MAX, Store
from horarium.rules.fairness import awaits_turn
from horarium.rules.following import OUTPUT_CHARS_MAX
from horarium.rules.holds import in_time_again
from horarium.rules.settling import rescue
from horarium.rules.unbegun import unbegun
from horarium.services.leases.leases import NOTHING, Own
from horarium.services.loop.quiet import QuietLog
from horarium.services.loop.service import Service, Wake
from horarium.services.loop.steady import SteadyScale
from horarium.services.metrics.telemetry import Telemetry

LEFT_SECONDS_MAX = 10.0
STILL_SECONDS = 2.0
"""A store that does not answer for longer than this stood still; so did a process that is called as much too late."""

Key = tuple[str, int, Instant | None]


class Grace:
    """Ended leases that one rescuer leaves to their holders for a while, since these could not renew them: the store or
    this process stood still, no node was there, or this node has just moved on the steady scale. Who holds a lease
    renews it within its time, so it is left for that long, and outcomes and heartbeats go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at: Instant | None = None
        self._asked_at: float | None = None
        self._left_until: dict[Key, float] = {}

    def ask(self) -> None:
        """The store is asked now, or again."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()

    def stood_still(self) -> bool:
        """Whether it took the store too long to answer now, or this process too long to ask."""
        asked_at, due_at = self._asked_at, self._due_at
        self._asked_at = self._due_at = None
        if due_at is not None and self._clock.steady() - due_at > STILL_SECONDS * SECOND:
            return True
        return asked_at is not None and self._clock.monotonic() - asked_at > STILL_SECONDS

    def asks_again(self, seconds: float) -> None:
        """So it will, at the latest."""
        self._due_at = self._clock.steady() + round(seconds * SECOND)

    def among(self, overdue: Sequence[Run], in_doubt: bool) -> dict[str, float]:
        """The ids of those that are left for now, and for how many seconds. What was seen to be overdue before there
        was any doubt waits no longer for it."""
        elapsed = self._clock.monotonic()
        left_until: dict[Key, float] = {}
        for run in overdue:
            key = (run.id, run.token, run.lease_expires_at)
            seconds = min(run.lease_seconds, LEFT_SECONDS_MAX) if in_doubt and run.state in CLAIMED else 0.0
            left_until[key] = self._left_until.get(key, elapsed + seconds)
        self._left_until = left_until
        return {run_id: until - elapsed for (run_id, _, _), until in left_until.items() if until > elapsed}


log = logging.getLogger("horarium")

EARLY = 2 * SECOND
"""So long before its lease ends a process gives back a claim that came to nothing, before others take it for lost."""


class Rescuer(Service):
    """Ends leases that expired. `own`: what this process holds itself; it is left to it."""

    name = "rescuer"

    def __init__(
        self,
        store: Store,
        settling: Settling,
        reconciler: Reconciler,
        telemetry: Telemetry,
        clock: Clock,
        scale: SteadyScale,
        own: Callable[[], Own] = lambda: NOTHING,
        ends_of_logs: Callable[[Sequence[Run], int], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self.wake = Wake()
        self._store = store
        self._settling = settling
        self._reconciler = reconciler
        self._telemetry = telemetry
        self._clock = clock
        self._scale = scale
        self._own = own
        self._ends_of_logs = ends_of_logs
        self._grace = Grace(clock)
        self._nothing_overdue = False
        self._log = QuietLog("runs rescued")

    def at_writes(self) -> bool:
        return self._nothing_overdue and not self._reconciler.behind and not self._log.waits

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        await self._reconciler.catch_up()
        self._grace.ask()
        steady, early = self._clock.steady(), EARLY if self._own().astray else 0
        runs, next_at = await self._store.overdue_runs(now, BATCH_MAX, steady + early)
        is_full, own = len(runs) == BATCH_MAX, self._own()
        if early:
            next_at = now + SECOND if runs else next_at
            runs = [run for run in runs if own.waits(run) or (run.lease_expires_at or 0) <= steady]
        in_doubt = self._grace.stood_still() or not self._scale.is_settled
        if next_at is not None:
            self._grace.asks_again((next_at - now) / SECOND)
        left = self._grace.among([run for run in runs if (run.id, run.token) not in own.timed_out], in_doubt)
        self._nothing_overdue = not runs
        if not runs:
            return next_at
        if left:
            ends_at = now + to_micros(min(left.values())) + 1
            next_at = ends_at if next_at is None else min(next_at, ends_at)
        runs = [run for run in runs if run.id not in left and not own.keeps(run)]
        jobs = await jobs_of(self._store, runs)
        said = await self._said(runs, jobs)
        if self._clock.now() < now:
            # The clock went back while we waited: those that were to start in time may still do so.
            return self._clock.now()
        holds = await self._reconciler.holding.look()
        held = {run.id: change for run in runs if (change := _held(run, jobs, now, holds)) is not None}
        waiting = {run.id: run for run in runs if awaits_turn(run) and run.id not in held}
        runs = [run for run in runs if run.id not in waiting]
        await self._settling.give_turns(list(waiting.values()), jobs, now)
        changes = [held.get(run.id) or _change(run, jobs, now, own, said.get(run.id, "")) for run in runs]
        written = await self._settling.write(changes, jobs, now)
        rescued = [change.run for change, done in zip(changes, written, strict=True) if done]
        self._telemetry.rescued(rescued)
        for run in rescued:
            self._log.write(
                now,
                "run %s of %s is %s: %s",
                run.id,
                run.job or run.queue,
                run.state,
                run.error or run.history[-1].message,
            )
        return now if is_full and (rescued or waiting) else next_at

    async def _said(self, runs: Sequence[Run], jobs: Mapping[str, Job]) -> Mapping[str, str]:
        """The ends of the outputs of programs that are over their time: their workers can't report these any more."""
        over = [run for run in runs if run.deadline is not None and _is_command(run, jobs.get(run.job_id or ""))]
        if self._ends_of_logs is None or not over:
            return {}
        said = await self._ends_of_logs(over, OUTPUT_CHARS_MAX)
        return {run.id: text for run, text in zip(over, said, strict=True)}


def _is_command(run: Run, job: Job | None) -> bool:
    target = job.target if job is not None else run.policy.target if run.policy is not None else None
    return isinstance(target, CommandTarget)


def _held(run: Run, jobs: dict[str, Job], now: Instant, holds: Sequence[Hold]) -> RunChange | None:
    """A run that was not started in time since a hold lay over it has time for that when it ends."""
    if run.state is not State.PENDING or not holds:
        return None
    again = in_time_again(run, jobs.get(run.job_id or ""), holds, now)
    return None if again is None else RunChange(again, run.token, run.state)


def _change(run: Run, jobs: dict[str, Job], now: Instant, own: Own, said: str) -> RunChange:
    job = jobs.get(run.job_id or "")
    after = unbegun(run, run.token, job, now) if own.waits(run) else None
    after = after or rescue(run, job, now, said)
    return RunChange(after, run.token, run.state, False if run.state in CLAIMED else None)
