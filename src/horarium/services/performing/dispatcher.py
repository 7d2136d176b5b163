"""The dispatcher: claims runs for what this process delivers to, in claim lines, as far as there is room.

Claims come in batches: as many as there are free places, and what these perform in the next few hundredths of a second.
A line is a set of queues that is claimed for together: all queues without a limit of their own, or one with a limit.
Runs beyond a limit stay in the store, where others can take them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from msgspec.structs import replace

from horarium.clock import Clock, Instant, to_micros, to_wall
from horarium.errors import Outage
from horarium.model import Job, Run
from horarium.operations.settling.claiming import Claiming
from horarium.ports import BATCH_MAX, Topic, queue_topic
from horarium.services.leases.leases import Leases
from horarium.services.loop.service import Service
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.performing import Performing
from horarium.services.performing.waiting import Lease, Ready, lease_of, patience_ends

END_SECONDS = 2.0
"""How long a drain waits for what it has ended."""

Turns = Mapping[str, tuple[Instant, Instant]]

NO_TURNS: Turns = MappingProxyType({})

Line = tuple[str, ...]
"""Queues that are claimed for together."""


class Dispatcher(Service):
    """Claims runs of `queues` for `performing`. `limits`: how many places one queue may take."""

    def __init__(
        self,
        name: str,
        claiming: Claiming,
        clock: Clock,
        leases: Leases,
        telemetry: Telemetry,
        performing: Performing,
        queues: Sequence[str],
        worker: str,
        *,
        window_seconds: float = 0.0,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.topics: tuple[Topic, ...] = tuple(queue_topic(queue) for queue in queues)
        self.wake = performing.room
        self._claiming = claiming
        self._clock = clock
        self._leases = leases
        self._telemetry = telemetry
        self._performing = performing
        self._limits = dict(limits or {})
        self._lines = deque(_lines(queues, self._limits))
        self._worker = worker
        self._window = to_micros(window_seconds)
        self._accepting = True
        self._hurried = asyncio.Event()

    @property
    def claiming_since(self) -> Instant | None:
        """When the claim began that has no answer yet."""
        return self._performing.waiting.claiming_since

    # ---- claiming

    def at_writes(self) -> bool:
        return self._performing.unoccupied

    async def step(self, now: Instant) -> Instant | None:
        """Claim due runs, as far as there is headroom. When the next run falls due."""
        if not self._accepting:
            return None
        if not self._performing.unoccupied:
            await self._claiming.holding.look()
        for ready in self._performing.waiting.take_impatient(self._clock.steady()):
            self._performing.release(ready.run, ready.job, "released: no place became free in time")
        for ready in self._performing.waiting.take_early(now + self._window):
            self._performing.release(ready.run, ready.job, "released: the clock went back, and it is not due")
        await self._ask_about_held(now)
        unstoppable = self._performing.unstoppable
        if unstoppable.everywhere:
            places = self._performing.places
            raise Outage(f"every place ({places}) is taken by work that does not stop: {unstoppable.names()}")
        self._performing.pace.look()
        self._lines.rotate(-1)
        rooms = self._rooms()
        wakes = [await self._claim(line, rooms.get(line[0], BATCH_MAX)) for line in self._lines]
        patience_ends_at = self._performing.waiting.patience_ends_at()
        wakes.append(None if patience_ends_at is None else to_wall(self._clock, patience_ends_at))
        wakes.append(self._performing.waiting.next_due_at())
        return min((wake for wake in wakes if wake is not None), default=None)

    async def _claim(self, line: Line, room: int) -> Instant | None:
        """Claim for one line. When its next run falls due; None: when a place becomes free, if it has to wait for
        that."""
        free = self._performing.free
        limit = min(free, room, BATCH_MAX)
        if limit <= 0 or not self._accepting or self._performing.has_plenty(free):
            return None
        now, cancels = self._clock.now(), self._performing.waiting.cancels
        self._performing.waiting.claiming_since = now
        try:
            claimed = await self._claiming.claim(line, limit, self._worker, now, now + self._window)
            if claimed.runs:
                doubted = cancels != self._performing.waiting.cancels
                self.take(claimed.runs, claimed.jobs, self._clock.now(), claimed.turns, doubted)
        finally:
            self._performing.waiting.claiming_since = None
        return claimed.next_due_at if len(claimed.runs) < limit else None

    def _rooms(self) -> dict[str, int]:
        """How many more runs of each queue with a limit could begin."""
        if not self._limits:
            return {}
        taken = self._performing.taken()
        return {queue: limit - taken[queue] for queue, limit in self._limits.items()}

    def take(
        self,
        runs: Sequence[Run],
        jobs: Mapping[str, Job],
        now: Instant,
        turns: Turns = NO_TURNS,
        doubted: bool = False,
    ) -> None:
        """Take over claimed runs: every one is performed, held, or given back."""
        runs = self._performing.not_done(runs)
        self._telemetry.claimed(runs, self.name)
        claimed = [Ready(run, jobs.get(run.job_id) if jobs and run.job_id is not None else None) for run in runs]
        if turns or doubted:
            claimed = [replace(each, turn=turns.get(each.run.id), doubted=doubted) for each in claimed]
        if not self._accepting:
            for each in claimed:
                self._performing.release(each.run, each.job, "released: the node stops")
            return
        steady = self._clock.steady()
        # Of some the answer was so late (an outage) that a third of the lease is gone: it might end before it can be
        # renewed, so that is done before the run begins.
        late = {lease for lease in set(map(lease_of, runs)) if patience_ends(lease) <= steady}
        if late or max(map(_due_at_of, runs), default=now) > now:
            claimed = self._without_held(claimed, late, now)
        self._performing.waiting.add(*claimed)
        self._performing.begin()

    def _without_held(self, claimed: Sequence[Ready], late: Collection[Lease], now: Instant) -> list[Ready]:
        """Hold those that are not due yet, or have one of the leases that came late. The others."""
        ready = []
        for each in claimed:
            if each.run.due_at > now or lease_of(each.run) in late:
                self._performing.waiting.hold(each)
            else:
                ready.append(each)
        return ready

    # ---- held runs

    async def _ask_about_held(self, now: Instant) -> None:
        """Let the runs begin that were claimed ahead, came late, or may have been cancelled, if they are due and their
        leases are still valid. Each stays held while the store is asked."""
        waiting = self._performing.waiting
        due = waiting.due(now)
        if not due:
            return
        cancels = waiting.cancels
        pulses = await self._leases.ask([ready.run for ready in due])
        await self._claiming.holding.look()  # that may have taken long
        shut = await self._claiming.rating.shut_for([ready.run for ready in due if ready.turn is not None])
        doubted = cancels != waiting.cancels
        lost: list[Ready] = []
        for ready, pulse in zip(due, pulses, strict=True):
            if not waiting.release(ready.claim):
                continue
            if pulse is None:
                self._telemetry.lease_lost()
                lost.append(ready)
            elif ready.run.id in shut:
                self._performing.release(ready.run, ready.job, "released: its rate limit was shut")
            elif pulse.cancel_requested:
                self._performing.release(ready.run, ready.job, "not begun: a cancel was asked")
            else:
                run = replace(ready.run, lease_expires_at=pulse.expires_at)
                waiting.add(replace(ready, run=run, doubted=doubted))
        self._performing.begin()
        if lost:
            jobs = {each.job.id: each.job for each in lost if each.job is not None}
            await self._claiming.never_begun([each.run for each in lost], jobs)

    # ---- stopping

    async def drain(self, grace_seconds: float) -> None:
        """Claim nothing more, give back runs that have not begun, let the rest finish; interrupt them after the
        grace."""
        self._accepting = False
        self._performing.give_back("released: the node stops")
        idle = asyncio.ensure_future(self._performing.idle())
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait([idle, hurried], timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurried.cancel()
        await self._performing.end(END_SECONDS)

    def hurry(self) -> None:
        """Let a drain wait no longer for runs under way."""
        self._hurried.set()


_due_at_of = attrgetter("due_at")


def _lines(queues: Sequence[str], limits: Mapping[str, int]) -> list[Line]:
    unlimited = tuple(queue for queue in queues if queue not in limits)
    return [line for line in (unlimited, *((queue,) for queue in limits)) if line]
