"""The dispatcher: claims runs for the targets of this process, performs each attempt, hands the outcome on.

Claims come in batches: as many as there are free places, and what these perform in the next few hundredths of a second.
Each place is a task that takes the next ready run as soon as it has done with one; another place is opened only when
the present ones wait for something, so that runs that never wait cost no task at all.

The hard part is to stop in time. An attempt ends early for one of four reasons: its time limit, a lost lease, a cancel
whose grace ran out, or the end of this process. The reason is noted before the task is cancelled, so that one is
never mistaken for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.errors import LeaseLost, Outage
from horarium.model import Failed, Job, Outcome, Released, Run
from horarium.ports import BATCH_MAX, Beat, Delivery, Pulse, Signal, Store, Target
from horarium.services.collector import Collector
from horarium.telemetry import Telemetry

PLACES_MAX = 10_000
AHEAD_SECONDS = 0.03
"""Runs are claimed ahead of free places as far as they begin within this, by the present pace: short runs come in large
batches, and long ones wait in the store, where others can take them."""
FAIR_RUNS = 200
"""Runs that one place performs without giving way, where none of them waits for anything."""

log = logging.getLogger("horarium")


class Stop(Enum):
    """Why an attempt is ended before its time."""

    TIMEOUT = "timeout"
    LOST = "lost"
    NODE = "node"


class Ready(NamedTuple):
    """A claimed run, ready to be performed."""

    run: Run
    job: Job | None


class Attempt:
    """An attempt under way: what its target may ask and tell (`ports.Control`), and what we know of it."""

    __slots__ = ("_asked", "_dispatcher", "deadline", "job", "lease_expires_at", "renew_at", "run", "stop", "task")

    def __init__(self, dispatcher: Dispatcher, run: Run, job: Job | None, task: asyncio.Task[None] | None) -> None:
        self._dispatcher = dispatcher
        self._asked: asyncio.Event | bool = False
        self.run = run
        self.job = job
        self.task = task
        self.stop: Stop | None = None
        lease = run.lease_expires_at or 0
        self.lease_expires_at = lease
        self.renew_at = lease - to_micros(run.lease_seconds) * 2 // 3
        limit = run.execution_seconds
        self.deadline = None if limit is None or run.started_at is None else run.started_at + to_micros(limit)

    @property
    def cancelled(self) -> bool:
        return self._asked if isinstance(self._asked, bool) else self._asked.is_set()

    async def wait_cancelled(self) -> None:
        if isinstance(self._asked, bool):
            asked, self._asked = self._asked, asyncio.Event()
            if asked:
                self._asked.set()
        await self._asked.wait()

    async def heartbeat(self, progress: bytes | None = None) -> None:
        await self._dispatcher.beat([self], progress)
        if self.stop is Stop.LOST:
            raise LeaseLost(f"the lease on run {self.run.id} is lost; stop working on it")

    def wants_beat(self, now: Instant) -> bool:
        """Whether a third of the lease is gone, or the wall clock went back, so that nobody can tell."""
        return self.renew_at <= now or self.renew_at > now + to_micros(self.run.lease_seconds)

    def ask_to_stop(self) -> None:
        """A cancel was asked: let the target see it."""
        if isinstance(self._asked, bool):
            self._asked = True
        else:
            self._asked.set()

    def end(self, reason: Stop) -> None:
        """End it now, for this reason."""
        if self.stop is None:
            self.stop = reason
            self.ask_to_stop()
            if self.task is not None:
                self.task.cancel()


class Dispatcher:
    """Claims and performs runs of the queues that `targets` names. `places`: attempts at one time."""

    name = "dispatcher"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        collector: Collector,
        telemetry: Telemetry,
        targets: Mapping[str, Target],
        worker: str,
        *,
        places: int = 100,
        window_seconds: float = 0.0,
        name: str = "dispatcher",
    ) -> None:
        self.name = name
        self.topics = tuple(f"queue:{queue}" for queue in targets)
        self.wake: Callable[[], None] = lambda: None
        self.keeper_wake: Callable[[], None] = lambda: None
        self._store = store
        self._clock = clock
        self._signal = signal
        self._collector = collector
        self._telemetry = telemetry
        self._targets = dict(targets)
        self._queues = tuple(targets)
        self._worker = worker
        self._places_max = min(places, PLACES_MAX)
        self._window = to_micros(window_seconds)
        self._ready: deque[Ready] = deque()
        self._held: list[Ready] = []
        self._places: set[asyncio.Task[None]] = set()
        self._opening = False
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._accepting = True
        self._performed = 0
        self._paced_at = 0.0
        self._ahead = 0

    @property
    def attempts(self) -> Mapping[tuple[str, int], Attempt]:
        """What is under way, by run id and token: an attempt whose lease was lost may still be ending here while the
        next one of the same run begins."""
        return self._attempts

    @property
    def free(self) -> int:
        """How many runs could be begun at once, or very soon."""
        return self._places_max + self._ahead - len(self._attempts) - len(self._ready) - len(self._held)

    def _pace(self) -> None:
        """See how many runs were performed since the last claim, and how many shall be claimed ahead."""
        now = self._clock.monotonic()
        seconds, self._paced_at = now - self._paced_at, now
        begun = self._performed / seconds * AHEAD_SECONDS if seconds > 0 else 0.0
        self._ahead = min((self._ahead + int(begun)) // 2, BATCH_MAX)
        self._performed = 0

    # ---- claiming

    async def step(self, now: Instant) -> Instant | None:
        """Claim what is due, as far as there is room. When the next run falls due."""
        if not self._accepting or not self._queues:
            return None
        wakes = [await self._release_held(now)] if self._held else []
        self._pace()
        limit = min(self.free, BATCH_MAX)
        if limit <= 0:
            return min((wake for wake in wakes if wake is not None), default=None)
        claimed = await self._store.claim_runs(self._queues, limit, self._worker, now, now + self._window)
        if claimed.runs:
            self._take(claimed.runs, claimed.jobs, now)
        if len(claimed.runs) < limit:
            wakes.append(claimed.next_due_at)
        wakes += [ready.run.due_at for ready in self._held]
        return min((wake for wake in wakes if wake is not None), default=None)

    def _take(self, runs: tuple[Run, ...], jobs: Mapping[str, Job], now: Instant) -> None:
        self._telemetry.claimed(runs, self.name)
        if not self._accepting:
            for run in runs:
                self._collector.add(run, jobs.get(run.job_id or ""), Released("released: the node stops"))
            return
        for run in runs:
            ready = Ready(run, jobs.get(run.job_id) if run.job_id is not None else None)
            if run.due_at > now:
                self._held.append(ready)
            else:
                self._ready.append(ready)
        self._open_place()

    async def _release_held(self, now: Instant) -> Instant | None:
        """Begin the runs that were claimed ahead and are due now, if their leases still stand: one that was cancelled
        or paused meanwhile must not begin."""
        due = [ready for ready in self._held if ready.run.due_at <= now]
        if due:
            pulses = await self._store.heartbeat_runs([Beat(run.id, run.token) for run, _ in due], now)
            held, self._held = self._held, [ready for ready in self._held if ready.run.due_at > now]
            for ready, pulse in zip(due, pulses, strict=True):
                if ready not in held:
                    continue
                if pulse is not None and not pulse.cancel_requested:
                    self._ready.append(ready)
                elif pulse is not None:
                    self._collector.add(ready.run, ready.job, Released("not begun: a cancel was asked"))
            self._open_place()
        return min((ready.run.due_at for ready in self._held), default=None)

    def ask_again(self) -> None:
        """A cancel was asked, perhaps for a run that was claimed and has not begun: none of these begins before the
        store has been asked about it."""
        self._held.extend(self._ready)
        self._ready.clear()
        if self._held:
            self.wake()

    def cancel_asked(self, run: Run) -> None:
        """A cancel was asked for this claimed run, in this process: its target sees it at once."""
        attempt = self._attempts.get((run.id, run.token))
        if attempt is not None:
            attempt.ask_to_stop()

    # ---- performing

    def _open_place(self) -> None:
        """One more place, if there is a run for it."""
        self._opening = False
        if self._ready and len(self._places) < self._places_max:
            place = asyncio.get_running_loop().create_task(self._work())
            self._places.add(place)
            place.add_done_callback(self._close_place)

    def _close_place(self, place: asyncio.Task[None]) -> None:
        """A place found nothing more to do. What came in since, while it still counted as one, needs another."""
        self._places.discard(place)
        self._open_place()

    async def _work(self) -> None:
        """One place: perform runs until there are none."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        performed = 0
        while self._ready:
            run, job = self._ready.popleft()
            if self._ready and not self._opening:
                self._opening = True
                loop.call_soon(self._open_place)
            if (run.lease_expires_at or 0) <= self._clock.now():
                self._telemetry.lease_lost()
                continue
            outcome = await self._perform(run, job, task)
            if outcome is not None:
                self._collector.add(run, job, outcome)
            performed += 1
            if performed % FAIR_RUNS == 0:
                await asyncio.sleep(0)
        self.wake()

    async def _perform(self, run: Run, job: Job | None, task: asyncio.Task[None]) -> Outcome | None:
        """One attempt. None: it is not ours to settle."""
        attempt = Attempt(self, run, job, task)
        self._attempts[run.id, run.token] = attempt
        if attempt.deadline is not None:
            self.keeper_wake()
        try:
            return await self._targets[run.queue].deliver(Delivery(run, job), attempt)
        except asyncio.CancelledError:
            if attempt.stop is not None:
                task.uncancel()
                return _ended_early(attempt)
            if task.cancelling():
                raise
            return Failed("cancelled by its own doing")
        except Exception as error:
            log.exception("run %s: its target failed", run.id)
            return Failed(f"{type(error).__name__}: {error}")
        finally:
            del self._attempts[run.id, run.token]
            self._performed += 1
            if len(self._ready) <= self._ahead // 2:
                self.wake()

    # ---- leases

    async def keep(self, now: Instant) -> Instant | None:
        """Renew leases that are a third gone, end attempts that are over time. When to look again."""
        for attempt in self._lively():
            if attempt.deadline is not None and attempt.deadline <= now:
                attempt.end(Stop.TIMEOUT)
            elif attempt.lease_expires_at <= now:
                attempt.end(Stop.LOST)
        await self.beat([attempt for attempt in self._lively() if attempt.wants_beat(now)])
        wakes = [min(a.renew_at, a.deadline or a.renew_at, a.lease_expires_at) for a in self._lively()]
        return min(wakes, default=None)

    def _lively(self) -> list[Attempt]:
        """The attempts that were not told to end. One that was may ignore it for ever: it is not looked at again."""
        return [attempt for attempt in self._attempts.values() if attempt.stop is None]

    async def beat_all(self) -> None:
        """Ask after every attempt at once: a cancel may have been asked."""
        await self.beat(self._lively())

    async def beat(self, attempts: list[Attempt], progress: bytes | None = None) -> None:
        """Renew these leases; note which are lost and which shall stop."""
        for start in range(0, len(attempts), BATCH_MAX):
            batch = attempts[start : start + BATCH_MAX]
            beats = [Beat(attempt.run.id, attempt.run.token, progress) for attempt in batch]
            pulses = await self._store.heartbeat_runs(beats, self._clock.now())
            for attempt, pulse in zip(batch, pulses, strict=True):
                self._note(attempt, pulse)

    def _note(self, attempt: Attempt, pulse: Pulse | None) -> None:
        if (attempt.run.id, attempt.run.token) not in self._attempts:
            return
        if pulse is None:
            attempt.end(Stop.LOST)
            return
        attempt.lease_expires_at = pulse.expires_at
        third = to_micros(attempt.run.lease_seconds) // 3
        attempt.renew_at = max(pulse.expires_at - 2 * third, self._clock.now() + min(third, SECOND))
        if pulse.cancel_requested:
            attempt.ask_to_stop()

    # ---- stopping

    async def drain(self, grace_seconds: float) -> None:
        """Claim nothing more, give back what was not begun, let the rest finish; end what has not after the grace."""
        self._accepting = False
        for run, job in (*self._ready, *self._held):
            self._collector.add(run, job, Released("released: the node stops"))
        self._ready.clear()
        self._held.clear()
        if self._places:
            await asyncio.wait(self._places, timeout=grace_seconds)
        for attempt in list(self._attempts.values()):
            attempt.end(Stop.NODE)
        if self._places:
            await asyncio.wait(self._places, timeout=1.0)


def _ended_early(attempt: Attempt) -> Outcome | None:
    """What to report of it. A time limit ends the lease too: there, as for a lost one, the rescuer has the word."""
    return Released("interrupted: the node stopped") if attempt.stop is Stop.NODE else None


class Keeper:
    """The service that keeps the leases of a dispatcher's attempts."""

    name = "keeper"
    topics: tuple[str, ...] = ("cancel",)

    def __init__(self, dispatchers: tuple[Dispatcher, ...], signal: Signal) -> None:
        self._dispatchers = dispatchers
        self._asked = False
        signal.subscribe("cancel", self._ask)

    def _ask(self) -> None:
        self._asked = True
        for dispatcher in self._dispatchers:
            dispatcher.ask_again()

    async def step(self, now: Instant) -> Instant | None:
        if self._asked:
            self._asked = False
            try:
                for dispatcher in self._dispatchers:
                    await dispatcher.beat_all()
            except Outage:
                self._asked = True
                raise
        wakes = [await dispatcher.keep(now) for dispatcher in self._dispatchers]
        return min((wake for wake in wakes if wake is not None), default=None)
