"""Performing: places, and the attempts that are under way in them.

Each place is a task that takes the next ready run as soon as it is done with one; another place is opened only when the
present ones wait for something, so that runs that never wait cost no task at all.

The hard part is to stop in time. An attempt ends early for one of three reasons: its time limit, a lost lease (also
that of a cancel whose grace ran out), or the end of this process. The reason is noted before the task is cancelled, so
that one is never mistaken for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

from horarium.clock import Clock, Instant, to_micros
from horarium.model import Failed, Job, Outcome, Released, Run, Succeeded
from horarium.operations.settling.holding import Holding
from horarium.ports import BATCH_MAX, Assignment, Delivery
from horarium.services.leases.attempt import Attempt, Stop, begun
from horarium.services.leases.leases import Leases
from horarium.services.loop.service import POLL_SECONDS, Wake
from horarium.services.performing.collector import Collector
from horarium.services.performing.unstoppable import Unstoppable
from horarium.services.performing.waiting import Claim, Ready, Waiting

PLACES_MAX = 10_000
AHEAD_SECONDS = 0.03
"""Runs are claimed ahead of free places as far as they begin within this, by the present pace: short runs come in large
batches, and long ones wait in the store, where others can take them."""
AHEAD_MAX = 2 * BATCH_MAX
"""So that while one full claim is performed the next one is made."""
GROWTH = 4
"""How many more runs are claimed ahead, at most, for each one that was performed since the last look: one short
run says little."""
FAIR_RUNS = 200
"""Runs that one place performs without giving way, where none of them waits for anything."""

POLL = to_micros(POLL_SECONDS)
INTERRUPTED = Released("interrupted: the node stopped")
OWN_DOING = "CancelledError: it cancelled its own task, or what it waited for was cancelled"
NO_TURN = "released: it is not its turn under its rate limit any more"
NO_PLACE = "released: every place is taken by work that does not stop"

log = logging.getLogger("horarium")


class Pace:
    """How fast runs are performed, and so how many are claimed ahead of free places. Only time with work in hand
    counts: waiting for the store says nothing of how fast the next runs will go."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self._began: float | None = None
        self._busy = 0.0
        self.count = 0
        """Runs that were performed since the last look."""
        self.ahead = 0

    def begins(self) -> None:
        """The first place is taken."""
        if self._began is None:
            self._began = self._clock.monotonic()

    def pauses(self) -> None:
        """The last place is free."""
        if self._began is not None:
            self._busy += self._clock.monotonic() - self._began
            self._began = None

    def look(self) -> None:
        """See how many were performed since the last look."""
        now = self._clock.monotonic()
        if self._began is not None:
            self._busy += now - self._began
            self._began = now
        seconds = self._busy or now - self._looked_at
        begun = min(int(self.count / seconds * AHEAD_SECONDS) if seconds > 0 else 0, GROWTH * self.count, AHEAD_MAX)
        self.ahead = max(begun, (self.ahead + begun) // 2)
        self._looked_at, self._busy, self.count = now, 0.0, 0


class Performing:
    """The slots of one dispatcher, and its claimed runs. `room` is set when it can take more, `leased` when there is an
    attempt that the keeper has to look at sooner than it would."""

    def __init__(
        self,
        clock: Clock,
        leases: Leases,
        collector: Collector,
        deliveries: Mapping[str, Delivery],
        leased: Wake,
        *,
        places: int = 100,
        holding: Holding | None = None,
    ) -> None:
        self.room = Wake()
        self.places = min(places, PLACES_MAX)
        self.waiting = Waiting(holding)
        self.pace = Pace(clock)
        self.unstoppable = Unstoppable(self.places, clock, self._has_room)
        self.attempts: dict[Claim, Attempt] = {}
        self._clock = clock
        self._leases = leases
        self._collector = collector
        collector.room.append(self.room)
        collector.waitings.append(self.waiting)
        self._deliveries = deliveries
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[object] | None = None
        self._opening = False
        self._more = 1
        self._leased = leased

    @property
    def free(self) -> int:
        """How many runs could begin at once, or very soon."""
        taken = len(self.attempts) + len(self.waiting) + len(self.unstoppable.work)
        return self.places + self.pace.ahead - taken - self._collector.excess

    def has_plenty(self, free: int) -> bool:
        """Whether a claim of so few can wait until more are free, which is soon: `room` is set then."""
        return len(self.waiting.line) > self.pace.ahead // 2 and 2 * free < min(self.pace.ahead, BATCH_MAX)

    def taken(self) -> Counter[str]:
        """How many runs of each queue are in our hands."""
        taken = Counter(attempt.run.queue for attempt in (*self.attempts.values(), *self.unstoppable))
        taken.update(ready.run.queue for ready in self.waiting)
        return taken

    def not_done(self, claimed: Sequence[Run]) -> Sequence[Run]:
        """Without those whose work this process has done, under a claim that others took for lost, and those that it
        holds, performs or has done under a claim that the store has forgotten (at a loss of power) and made again."""
        known = {ended.run.id for ended in self._collector.unwritten()}
        known.update(map(_id_of, self.waiting), map(_id_of, self.attempts.values()))
        if known.isdisjoint([run.id for run in claimed]):
            return claimed
        return [run for run in claimed if not self._has(run)]

    def _has(self, run: Run) -> bool:
        claim = run.id, run.token
        if (attempt := self.attempts.get(claim)) is not None:
            return attempt.stop is None
        return claim in self.waiting.claims() or claim in self._collector.claims() or self._collector.takes(run)

    # ---- places

    def begin(self) -> None:
        """Let ready runs begin, as far as there are free slots: one more, if there is a run for it; twice as many each
        time for as long as there still is."""
        self._feeder = asyncio.current_task() or self._feeder
        self._opening = False
        free = self.places - len(self.unstoppable.work) - len(self._tasks)
        more = min(self._more, free, len(self.waiting.line))
        self._more = 2 * more if more > 0 else 1
        if more > 0:
            self.pace.begins()
        for _ in range(more):
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._close_place)

    def _close_place(self, task: asyncio.Task[None]) -> None:
        """A place found nothing more to do. Runs that came in since, while it still counted as one, need another. One
        that was cancelled from outside (the event loop ends) does not come back."""
        self._tasks.discard(task)
        if not task.cancelled():
            self.begin()
        if not self._tasks:
            self.pace.pauses()

    def _has_room(self) -> None:
        self.begin()
        self.room.set()

    async def _work(self) -> None:
        """One place: perform runs until there are none."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        performed = 0
        line, unstoppable, holding = self.waiting.line, self.unstoppable.work, self.waiting.holding
        while line and len(self._tasks) <= self.places - len(unstoppable):
            ready = line.popleft()
            if line and not self._opening:
                self._opening = True
                loop.call_soon(self.begin)
            run, now, steady = ready.run, self._clock.now(), self._clock.steady()
            if ready.turn is not None and not ready.turn[0] <= steady <= ready.turn[1]:
                self.release(run, ready.job, NO_TURN)
                continue
            if not _may_begin(run, now, steady) or not (holding is None or steady < holding.obeyed_until):
                self.waiting.hold(ready)
                self.room.set()
                continue
            if holding is not None and holding.known and holding.holds(run, ready.job, now):
                self.release(run, ready.job, "released: a hold began")
                continue
            await self._attempt(ready, task, steady)
            if task.cancelling():
                break  # the run cancelled its own task: another one goes on
            performed += 1
            if performed % FAIR_RUNS == 0:
                await asyncio.sleep(0)
        self.room.set()

    # ---- attempts

    async def _attempt(self, ready: Ready, task: asyncio.Task[None], steady: Instant) -> None:
        run, job = ready.run, ready.job
        claim = run.id, run.token
        attempt = self.attempts[claim] = begun(self._leases, self._goes_on, run, job, task)
        if ready.doubted:
            attempt.renew_at = steady
        if attempt.deadline is not None or attempt.renew_at < steady + POLL:
            self._leased.set()
        outcome: Outcome | None = None
        try:
            outcome = await self._deliveries[run.queue].deliver(Assignment(run, job), attempt)
            if attempt.stop is None and task.cancelling():
                await asyncio.sleep(0)  # it cancelled its own task: that strikes here, and not in the next run
            if attempt.stop is not None:
                outcome = _ended_early(attempt, outcome)
        except asyncio.CancelledError:
            if attempt.stop is None and task.cancelling() and self._feeder is not None and self._feeder.cancelling():
                raise  # the event loop ends: that of the dispatcher is cancelled too
            outcome = Failed(OWN_DOING) if attempt.stop is None else _ended_early(attempt, INTERRUPTED)
        except Exception as error:
            log.exception("run %s of %s: its target failed", run.id, run.job or run.queue)
            outcome = Failed(f"{type(error).__name__}: {error}")
        finally:
            attempt.over()
            if self.attempts.get(claim) is attempt:  # else the claim was made again while this one was ended
                del self.attempts[claim]
            self.pace.count += 1
            if len(self.waiting.line) <= self.pace.ahead // 2:
                self.room.set()
        if outcome is not None:  # else it is not ours to settle
            self._collector.add(attempt.run, job, outcome)

    def _goes_on(self, attempt: Attempt, over: asyncio.Future[object]) -> None:
        """This work goes on, though its attempt is over: it keeps its place until then."""
        self.unstoppable.add(attempt, over)
        if self.unstoppable.everywhere:
            self.give_back(NO_PLACE)

    def lively(self) -> list[Attempt]:
        """The attempts that were not asked to end."""
        return [attempt for attempt in self.attempts.values() if attempt.stop is None]

    def cancel_asked(self, run: Run) -> None:
        """A cancel was asked for this claimed run, in this process: its target sees it at once."""
        attempt = self.attempts.get((run.id, run.token))
        if attempt is not None:
            attempt.ask_to_stop()

    # ---- giving back

    def give_back(self, reason: str) -> None:
        """Release claimed runs that have not begun."""
        for ready in self.waiting.clear():
            self.release(ready.run, ready.job, reason)

    def release(self, run: Run, job: Job | None, reason: str) -> None:
        """Release a run that has not begun."""
        self._collector.add(run, job, Released(reason))

    @property
    def unoccupied(self) -> bool:
        """Whether nothing is claimed here."""
        return not self._tasks and not self.attempts and not len(self.waiting)

    async def idle(self) -> None:
        """Return when nothing runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self, seconds: float) -> None:
        """End runs under way, and wait for them a little. Runs that go on all the same are given back."""
        for attempt in self.lively():
            attempt.end(Stop.NODE, self._clock.steady())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for attempt in self.attempts.values():
            if attempt.stop is Stop.NODE:
                attempt.given_back = True
                self.release(attempt.run, attempt.job, "interrupted, but it went on: the node stopped")


_id_of = attrgetter("run.id")


def _ended_early(attempt: Attempt, outcome: Outcome | None) -> Outcome | None:
    """What to report of it. A time limit ends the lease too: there, as for a lost one, the rescuer decides. Work done
    before this node ended it counts; anything else is not held against the run."""
    if attempt.stop is not Stop.NODE or attempt.given_back:
        return None
    return outcome if outcome is None or isinstance(outcome, Succeeded) else INTERRUPTED


def _may_begin(run: Run, now: Instant, steady: Instant) -> bool:
    """Whether it is due by the present clock, which may have jumped, and its lease lasts. If not, the store is asked
    first."""
    return run.due_at <= now and steady < (run.lease_expires_at or 0)
