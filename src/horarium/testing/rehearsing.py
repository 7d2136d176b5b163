"""A rehearsal: definitions carried out in virtual time, so that what would happen is known before anything is changed.

The planner, claims, holds, rate limits and ends of runs are those of every node (`node.runtime`), on a store in memory
and on the event loop that the simulator of faults runs on (`simulate.loop`). Only the work is not done: everybody who
would perform a run takes it when it is due, where a slot is free, and reports after as long as it is said to take.
While the service is down (`downs`), nothing is planned and nothing begins; work that was under way ends.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros, to_text
from horarium.delivery.handler import Handler
from horarium.errors import BrokenInvariant, CallerError, InvalidRequest
from horarium.model import Cancelled, Failed, Job, Outcome, Run, Succeeded
from horarium.model.overrides import Override
from horarium.node.runtime import Options, Runtime
from horarium.operations.bounds.reaching import PULLED
from horarium.operations.jobs.versions import along_created
from horarium.operations.plans.making import Documents
from horarium.operations.settling.settling import Settlement
from horarium.ports import BATCH_MAX, CANCEL, queue_topic
from horarium.rules.compiled import after_end
from horarium.rules.planning import timed
from horarium.stores.memory import MemoryDatabase, MemoryStore
from horarium.stores.wakeups import LocalSignal
from horarium.testing.rehearsed import Rehearsed, Witness
from horarium.testing.simulate.loop import NodeClock, Time, VirtualLoop
from horarium.testing.travelling import LEFT_OUT
from horarium.wire.holds import HoldDefinition

ROLES = ("planner", "rescuer")
WORKER = "rehearsed"
FOLLOWS = "rehearsed"
AHEAD_SECONDS = 900.0
"""The look-ahead where the service is never down: the plan is the same, at less cost. More runs
that wait make each write slower, fewer of them make more plans."""
GARBAGE_AFTER = 200_000
"""New objects between two looks for unreachable cycles, of which there are few."""


class Known(Struct, kw_only=True):
    """What is known of a job that exists already, and a definition does not say."""

    anchor_at: Instant | None = None
    fires_count: int = 0
    paused_until: Instant | None = None
    overrides: tuple[Override, ...] = ()


class Scene(Struct, kw_only=True):
    """What is rehearsed. `holds` may have begun already. `known`: by the names of jobs. `seconds`: how long the runs of
    a job took, by its name, of which one is drawn for each run; `usual`: of all others. `slots`: how many runs of a
    queue go on at a time (left out: any number). `downs`: when the service is down. `seed` decides what is drawn."""

    documents: Documents
    since: Instant
    until: Instant
    holds: Sequence[HoldDefinition] = ()
    known: Mapping[str, Known] = {}
    seconds: Mapping[str, Sequence[float]] = {}
    usual: Sequence[float] = (1.0,)
    slots: Mapping[str, int] = {}
    downs: Sequence[tuple[Instant, Instant]] = ()
    seed: int = 0

    def stretches(self) -> list[tuple[Instant, Instant]]:
        """When the service is up."""
        found, at = [], self.since
        for begins, ends in sorted(self.downs):
            if begins > at:
                found.append((at, min(begins, self.until)))
            at = max(at, ends)
        return [*found, (at, self.until)] if at < self.until else found


def rehearse(scene: Scene) -> Rehearsed:
    """Carry it out; not on an event loop. Raises the error of a definition that is invalid, and InvalidRequest."""
    if scene.until <= scene.since:
        raise InvalidRequest("until: must be later than since", field="until")
    time = Time(scene.since)
    loop = VirtualLoop(time, lambda task, context: None, _stuck, early=0.5)
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_AFTER, *before[1:])
    try:
        return loop.run_until_complete(_Rehearsal(scene, NodeClock(time)).carry_out())
    finally:
        gc.set_threshold(*before)
        loop.close()


def _stuck(what: str) -> None:
    raise BrokenInvariant(what)


async def _followed(run: Any) -> None:
    """Never called: a handler makes the node let runs follow from others."""


class _Rehearsal:
    def __init__(self, scene: Scene, clock: NodeClock) -> None:
        self._scene, self._clock = scene, clock
        self._witness = Witness(scene.until)
        database = MemoryDatabase()
        database._spaces["default"] = self._witness
        self._store = MemoryStore(database=database)
        self._signal = LocalSignal()
        options = Options(
            roles=ROLES,
            node_name=WORKER,
            plan_ahead_seconds=Options.plan_ahead_seconds if scene.downs else AHEAD_SECONDS,
            metrics_jobs_max=0,
        )
        entropy = Random(scene.seed).randbytes
        self._runtime = Runtime(self._store, options, clock=clock, signal=self._signal, entropy=entropy)
        for meter in ("planned", "settled"):
            setattr(self._runtime.telemetry, meter, lambda *runs: None)  # they are not scraped
        self._operations = self._runtime.operations
        self._operations.jobs._check_target = lambda target: None  # nothing is delivered
        self._work = _Work(scene, self._witness)
        self._wake = asyncio.Event()

    async def carry_out(self) -> Rehearsed:
        scene, witness = self._scene, self._witness
        await self._runtime.open()
        jobs = await self._define()
        self._queues = sorted({job.queue for job in jobs})
        plain = {queue.removeprefix(PULLED): queue for queue in self._queues}
        self._work.slots = {plain.get(queue, queue): places for queue, places in scene.slots.items()}
        if unknown := sorted(self._work.slots.keys() - set(self._queues)):
            known = ", ".join(queue.removeprefix(PULLED) for queue in self._queues)
            raise InvalidRequest(f"slots: no job has the queue {', '.join(unknown)}; there are {known}", field="slots")
        if any(job.on for job in jobs):
            self._runtime.handlers[FOLLOWS] = Handler(FOLLOWS, _followed)
        for topic in (CANCEL, *map(queue_topic, self._queues)):
            self._signal.subscribe(topic, self._wake.set)
        for begins, ends in scene.stretches():
            await self._go_on(begins, up=False)
            await self._runtime.start()
            loops = self._runtime._loops
            assert loops is not None
            loops.stop_looking()
            await loops.end(*LEFT_OUT)
            await self._go_on(ends, up=True)
            await self._runtime.stop(0)
        await self._go_on(scene.until, up=False)
        await self._runtime.close()
        witness.note_rest()
        since, until = to_text(scene.since), to_text(scene.until)
        names = [job.name for job in jobs if job.name in witness.of_job]
        of_job = {name: witness.of_job[name] for name in names}
        return Rehearsed(since, until, scene.seed, witness.totals, of_job, witness.told, witness.truncated)

    # ---- what there is

    async def _define(self) -> list[Job]:
        given = self._scene.documents
        for name, calendar in given.calendars:
            if isinstance(calendar, CallerError):
                raise calendar
            await self._operations.calendars.put(name, calendar)
        jobs = []
        for _, definition in given.jobs:
            if isinstance(definition, CallerError):
                raise definition
            jobs.append(self._as_known(await self._operations.jobs.job_from(definition, self._scene.since)))
        if twice := [name for name, count in Counter(job.name for job in jobs).items() if count > 1]:
            raise InvalidRequest(f"jobs: {twice[0]!r} is here twice", field="jobs")
        for start in range(0, len(jobs), BATCH_MAX):
            some = jobs[start : start + BATCH_MAX]
            await self._store.add_jobs(some, along_created(some, self._scene.since))
        self._witness.from_end = {job.id for job in jobs if after_end(job) is not None}
        for hold in self._scene.holds:
            await self._operations.holds.add(hold)
        return jobs

    def _as_known(self, job: Job) -> Job:
        """The job at the beginning: a fire time at that very instant is still to come."""
        known = self._scene.known.get(job.name, Known())
        paused_until = None if job.enabled else known.paused_until
        return timed(
            replace(
                job,
                planned_until=self._scene.since - 1,
                anchor_at=job.anchor_at if known.anchor_at is None else known.anchor_at,
                fires_count=known.fires_count,
                paused_until=paused_until,
                overrides=tuple(each for each in known.overrides if each.fire_at >= self._scene.since),
            )
        )

    # ---- time

    async def _go_on(self, until: Instant, *, up: bool) -> None:
        """Let time pass, and let everybody work. `up`: whether the service is."""
        loop, work = asyncio.get_running_loop(), self._work
        while (now := self._clock.now()) < until:
            self._wake.clear()
            ended = work.ended(now)
            if ended:
                await self._operations.settling.settle(ended)
            wakes = [until, *([await self._claim(now), self._give_up_late(now)] if up else ()), work.next_end()]
            at = min(wake for wake in wakes if wake is not None)
            if at <= now:
                await asyncio.sleep(0)
                continue
            alarm = loop.call_at(loop.time() + (at - now) / SECOND, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    async def _claim(self, now: Instant) -> Instant | None:
        """Take what is due, and when to look again."""
        wakes = []
        for queues, room in self._work.rooms(self._queues):
            limit = min(room, BATCH_MAX)
            claimed = await self._operations.claiming.claim(queues, limit, WORKER, now, now)
            for run in claimed.runs:
                self._work.begin(run)
            if len(claimed.runs) < room and claimed.next_due_at is not None:
                wakes.append(claimed.next_due_at)
        return min(wakes, default=None)

    def _give_up_late(self, now: Instant) -> Instant | None:
        """Runs that did not begin in time are found by the rescuer."""
        first = self._witness.found_runs.start_limits.first()
        if first is None:
            return None
        if first[0] > now:
            return int(first[0])
        loops = self._runtime._loops
        assert loops is not None
        loops.look("rescuer")
        return now + SECOND


class _Work:
    """Runs under way: each ends when its time is over, or at once when it is asked to."""

    def __init__(self, scene: Scene, witness: Witness) -> None:
        self._scene, self._witness = scene, witness
        self.slots: dict[str, int] = {}
        self._ends: list[tuple[Instant, str, int]] = []
        self._under_way: dict[str, tuple[int, str, Outcome]] = {}
        self._in_queue: Counter[str] = Counter()
        self._done: Outcome = Succeeded()

    def rooms(self, queues: Iterable[str]) -> list[tuple[list[str], int]]:
        """Queues that have room, and how many more runs may go on there: one by one where that is limited."""
        slots = self.slots
        limited = [([queue], slots[queue] - self._in_queue[queue]) for queue in queues if queue in slots]
        free = [queue for queue in queues if queue not in slots]
        return [(some, room) for some, room in [(free, 2 * BATCH_MAX), *limited] if some and room > 0]

    def begin(self, run: Run) -> None:
        """It goes on for as long as it takes, or as it may."""
        seconds, outcome = self._seconds(run), self._done
        if run.execution_seconds is not None and seconds > run.execution_seconds:
            seconds = run.execution_seconds
            outcome = Failed(f"timed out: not done within {seconds:g} s")
        assert run.started_at is not None
        heappush(self._ends, (run.started_at + to_micros(seconds), run.id, run.token))
        self._under_way[run.id] = run.token, run.queue, outcome
        self._in_queue[run.queue] += 1

    def _seconds(self, run: Run) -> float:
        known = self._scene.seconds.get(run.job or "", self._scene.usual)
        if len(known) == 1:
            return known[0]
        return known[crc32(f"{self._scene.seed} {run.job} {run.fire_at} {run.attempt}".encode()) % len(known)]

    def next_end(self) -> Instant | None:
        """When the next run ends."""
        return self._ends[0][0] if self._ends else None

    def ended(self, now: Instant) -> list[Settlement]:
        """What ends by now."""
        found = []
        while self._witness.cancelling:
            run_id = self._witness.cancelling.pop()
            if run_id in self._under_way:
                found.append(self._end(run_id, Cancelled()))
        while self._ends and self._ends[0][0] <= now:
            _, run_id, token = heappop(self._ends)
            if run_id in self._under_way and self._under_way[run_id][0] == token:
                found.append(self._end(run_id, self._under_way[run_id][2]))
        return found

    def _end(self, run_id: str, outcome: Outcome) -> Settlement:
        token, queue, _ = self._under_way.pop(run_id)
        self._in_queue[queue] -= 1
        return Settlement(run_id, token, outcome)
