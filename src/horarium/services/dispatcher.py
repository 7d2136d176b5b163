"""The dispatcher: claims runs for the targets of this process, performs each attempt, hands the outcome on.

Claims come in batches: as many as there are free places, and what these perform in the next few hundredths of a second.
Each place is a task that takes the next ready run as soon as it has done with one; another place is opened only when
the present ones wait for something, so that runs that never wait cost no task at all.

The hard part is to stop in time. An attempt ends early for one of three reasons: its time limit, a lost lease (also
that of a cancel whose grace ran out), or the end of this process. The reason is noted before the task is cancelled, so
that one is never mistaken for another. Work that does not end all the same (`strays`: threads, which nobody can stop)
has lost its lease, and keeps its place, so that there is never more of it than there are places.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.errors import Outage
from horarium.model import Deferred, Failed, Job, Outcome, Released, Run, Succeeded
from horarium.ports import BATCH_MAX, Beat, Delivery, Pulse, Signal, Store, Target
from horarium.services.attempt import CANCEL_AGAIN_SECONDS, Attempt, Stop
from horarium.services.collector import Collector
from horarium.services.quiet import QuietLog
from horarium.telemetry import Telemetry

PLACES_MAX = 10_000
AHEAD_SECONDS = 0.03
"""Runs are claimed ahead of free places as far as they begin within this, by the present pace: short runs come in large
batches, and long ones wait in the store, where others can take them."""
FAIR_RUNS = 200
"""Runs that one place performs without giving way, where none of them waits for anything."""
END_SECONDS = 2.0
"""How long a drain waits for what it has ended."""

log = logging.getLogger("horarium")


INTERRUPTED = Released("interrupted: the node stopped")


class Ready(NamedTuple):
    """A claimed run, ready to be performed."""

    run: Run
    job: Job | None


class Dispatcher:
    """Claims and performs runs of the queues that `targets` names. `places`: attempts at one time. `limits`: attempts
    of one queue at one time; what is beyond them stays in the store, where others can take it."""

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
        limits: Mapping[str, int] | None = None,
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
        self._limits = dict(limits or {})
        unlimited = tuple(queue for queue in targets if queue not in self._limits)
        self._lines = deque([queues for queues in (unlimited, *((queue,) for queue in self._limits)) if queues])
        self._worker = worker
        self._places_max = min(places, PLACES_MAX)
        self._window = to_micros(window_seconds)
        self._ready: deque[Ready] = deque()
        self._held: list[Ready] = []
        self._places: set[asyncio.Task[None]] = set()
        self._opening = False
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._strays: dict[Attempt, asyncio.Future[Any]] = {}
        self._void = QuietLog("work that did not stop in time")
        self._patience: asyncio.Timeout | None = None
        self._hurried = False
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
        taken = len(self._attempts) + len(self._ready) + len(self._held) + len(self._strays)
        return self._places_max + self._ahead - taken

    @property
    def strays(self) -> int:
        """How many places are taken by work whose attempt is over, but which can't be stopped."""
        return len(self._strays)

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
        if not self._accepting:
            return None
        wakes = [await self._release_held(now)] if self._held else []
        if len(self._strays) >= self._places_max:
            raise Outage(f"every place ({self._places_max}) is taken by work that does not stop: {self._stray_names()}")
        self._pace()
        self._lines.rotate(-1)
        rooms = self._rooms() if self._limits else {}
        wakes += [await self._claim(queues, rooms.get(queues[0], BATCH_MAX), now) for queues in self._lines]
        wakes += [ready.run.due_at for ready in self._held]
        return min((wake for wake in wakes if wake is not None), default=None)

    async def _claim(self, queues: tuple[str, ...], room: int, now: Instant) -> Instant | None:
        """Claim for one line: all queues without a limit together, or one with a limit. When its next run falls due;
        None: when a place becomes free, if it has to wait for that."""
        limit = min(self.free, room, BATCH_MAX)
        if limit <= 0 or not self._accepting:
            return None
        claimed = await self._store.claim_runs(queues, limit, self._worker, now, now + self._window)
        if claimed.runs:
            self._take(claimed.runs, claimed.jobs, now)
        return claimed.next_due_at if len(claimed.runs) < limit else None

    def _rooms(self) -> dict[str, int]:
        """How many more runs of each queue with a limit could be begun."""
        taken = Counter(attempt.run.queue for attempt in (*self._attempts.values(), *self._strays))
        taken.update(ready.run.queue for ready in (*self._ready, *self._held))
        return {queue: limit - taken[queue] for queue, limit in self._limits.items()}

    def _take(self, runs: tuple[Run, ...], jobs: Mapping[str, Job], now: Instant) -> None:
        self._telemetry.claimed(runs, self.name)
        if not self._accepting:
            for run in runs:
                self._collector.add(run, jobs.get(run.job_id or ""), Released("released: the node stops"))
            return
        queues = {job.id: job.queue for job in jobs.values()}
        for run in runs:
            ready = Ready(run, jobs.get(run.job_id) if run.job_id is not None else None)
            if ready.job is not None and queues[ready.job.id] != run.queue and ready.job.deleted_at is None:
                self._collector.add(run, ready.job, Deferred(now, "the job's target was changed"))
            elif run.due_at > now or self._came_late(run):
                self._held.append(ready)
            else:
                self._ready.append(ready)
        self._open_place()

    def _came_late(self, run: Run) -> bool:
        """Whether the answer to the claim took so long (an outage) that a third of the lease is gone: it might end
        before it can be renewed, so that is done before the run begins."""
        began, ends = run.started_at or 0, run.lease_expires_at or 0
        return self._clock.now() - began > (ends - began) // 3

    async def _release_held(self, now: Instant) -> Instant | None:
        """Begin the runs that were claimed ahead, or late, and are due now, if their leases still stand: one that was
        cancelled or paused meanwhile must not begin."""
        due = [ready for ready in self._held if ready.run.due_at <= now]
        if due:
            pulses = await self._store.heartbeat_runs([Beat(run.id, run.token) for run, _ in due], now)
            held, self._held = self._held, [ready for ready in self._held if ready.run.due_at > now]
            for ready, pulse in zip(due, pulses, strict=True):
                if ready not in held:
                    continue
                if pulse is not None and not pulse.cancel_requested:
                    self._ready.append(Ready(replace(ready.run, lease_expires_at=pulse.expires_at), ready.job))
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
        if self._ready and len(self._places) < self._places_max - len(self._strays):
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
        while self._ready and len(self._places) <= self._places_max - len(self._strays):
            run, job = self._ready.popleft()
            if self._ready and not self._opening:
                self._opening = True
                loop.call_soon(self._open_place)
            if (run.lease_expires_at or 0) <= self._clock.now():
                self._telemetry.lease_lost()
                continue
            attempt = Attempt(self, run, job, task)
            outcome = await self._perform(attempt, task)
            if outcome is not None:
                self._collector.add(attempt.run, job, outcome)
            performed += 1
            if performed % FAIR_RUNS == 0:
                await asyncio.sleep(0)
        self.wake()

    async def _perform(self, attempt: Attempt, task: asyncio.Task[None]) -> Outcome | None:
        """One attempt. None: it is not ours to settle."""
        run, job = attempt.run, attempt.job
        self._attempts[run.id, run.token] = attempt
        if attempt.deadline is not None:
            self.keeper_wake()
        try:
            outcome = await self._targets[run.queue].deliver(Delivery(run, job), attempt)
            return outcome if attempt.stop is None else _ended_early(attempt, outcome)
        except asyncio.CancelledError:
            if attempt.stop is not None:
                return _ended_early(attempt, INTERRUPTED)
            if task.cancelling():
                raise
            return Failed("cancelled by its own doing")
        except Exception as error:
            log.exception("run %s: its target failed", run.id)
            return Failed(f"{type(error).__name__}: {error}")
        finally:
            if attempt.stop is not None:
                attempt.over()
            del self._attempts[run.id, run.token]
            self._performed += 1
            if len(self._ready) <= self._ahead // 2:
                self.wake()

    # ---- work that can't be stopped

    def keep_stray(self, attempt: Attempt, over: asyncio.Future[Any]) -> None:
        """This work goes on, though its attempt is over: it keeps its place until then."""
        self._strays[attempt] = over
        over.add_done_callback(lambda over: self._forget_stray(attempt, over))
        self._void.warning(
            self._clock.now(), "run %s of %s: it does not stop (%s); its lease is given up, its outcome is void, "
            "and it keeps its place until it ends (%d of %d are so taken)",
            attempt.run.id, attempt.run.queue, attempt.stop and attempt.stop.value, len(self._strays), self._places_max,
        )  # fmt: skip
        if len(self._strays) >= self._places_max:
            self._give_back("released: every place is taken by work that does not stop")

    def _forget_stray(self, attempt: Attempt, over: asyncio.Future[Any]) -> None:
        del self._strays[attempt]
        if not over.cancelled():
            over.exception()
        self._void.warning(
            self._clock.now(), "run %s of %s: it has ended; its outcome is void", attempt.run.id, attempt.run.queue
        )
        self._open_place()
        self.wake()

    def _stray_names(self) -> str:
        queues = Counter(attempt.run.queue for attempt in self._strays)
        return ", ".join(f"{queue} ({count})" for queue, count in queues.most_common(5))

    def _give_back(self, reason: str) -> None:
        """Release what was claimed and has not begun."""
        for run, job in (*self._ready, *self._held):
            self._collector.add(run, job, Released(reason))
        self._ready.clear()
        self._held.clear()

    # ---- leases

    async def keep(self, now: Instant) -> Instant | None:
        """Renew leases that are a third gone, end attempts that are over time. When to look again."""
        self._void.tell_rest(now)
        for attempt in self._lively():
            if attempt.deadline is not None and attempt.deadline <= now:
                attempt.end(Stop.TIMEOUT, now)
            elif attempt.lease_expires_at <= now:
                attempt.end(Stop.LOST, now)
        await self.beat([attempt for attempt in self._lively() if attempt.wants_beat(now)])
        wakes = [min(a.renew_at, a.deadline or a.renew_at, a.lease_expires_at) for a in self._lively()]
        wakes += self._cancel_again(now)
        return min(wakes, default=None)

    def _lively(self) -> list[Attempt]:
        """The attempts that were not told to end."""
        return [attempt for attempt in self._attempts.values() if attempt.stop is None]

    def _cancel_again(self, now: Instant) -> list[Instant]:
        """Cancel those again that go on though they were told to end. When to do so the next time."""
        told = [attempt for attempt in self._attempts.values() if attempt.stop is not None]
        for attempt in told:
            if attempt.cancel_again_at <= now:
                self._void.warning(
                    now, "run %s of %s: it was cancelled %d s ago (%s), its lease is given up, and it goes on; "
                    "it is cancelled again, and keeps its place until it ends",
                    attempt.run.id, attempt.run.queue, CANCEL_AGAIN_SECONDS, attempt.stop and attempt.stop.value,
                )  # fmt: skip
                attempt.cancel(now)
        return [attempt.cancel_again_at for attempt in told]

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
            attempt.end(Stop.LOST, self._clock.now())
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
        self._give_back("released: the node stops")
        await self._wait_idle(0.0 if self._hurried else grace_seconds)
        for attempt in self._lively():
            attempt.end(Stop.NODE, self._clock.now())
        if self._places:
            await asyncio.wait(self._places, timeout=END_SECONDS)
        for attempt in self._attempts.values():
            if attempt.stop is Stop.NODE:
                attempt.given_back = True
                self._collector.add(attempt.run, attempt.job, Released("interrupted, but it went on: the node stopped"))

    async def _wait_idle(self, seconds: float) -> None:
        """Wait until nothing runs, so many seconds at the most, or until `hurry`."""
        try:
            async with asyncio.timeout(seconds) as self._patience:
                while self._places:
                    await asyncio.wait(self._places)
        except TimeoutError:
            pass
        finally:
            self._patience = None

    def hurry(self) -> None:
        """Let a drain wait no longer for what runs."""
        self._hurried = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())


def _ended_early(attempt: Attempt, outcome: Outcome | None) -> Outcome | None:
    """What to report of it. A time limit ends the lease too: there, as for a lost one, the rescuer has the word. What
    was done before this node ended it is done; anything else is not held against the run."""
    if attempt.stop is not Stop.NODE or attempt.given_back:
        return None
    return outcome if outcome is None or isinstance(outcome, Succeeded) else INTERRUPTED


class Keeper:
    """The service that keeps the leases of a dispatcher's attempts."""

    name = "keeper"
    topics: tuple[str, ...] = ("cancel",)

    def __init__(self, dispatchers: tuple[Dispatcher, ...]) -> None:
        self._dispatchers = dispatchers
        self._asked = False

    def signalled(self) -> None:
        """A cancel was asked, of whatever run."""
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
