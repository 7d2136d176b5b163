"""Leases of claimed runs, as the store knows them: renewed in batches, and asked about before a run begins.

Nothing is remembered here. What an answer says about an attempt is noted on the attempt itself, and an attempt that
ended while the store was asked is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import CLAIMED, Run, RunChange, State, awaits_worker
from horarium.ports import BATCH_MAX, Beat, Pulse, Store, Topic
from horarium.rules.settling import longest_lease, put_forward
from horarium.services.leases.attempt import Attempt, Stop
from horarium.services.loop.clock_watch import ClockWatch, Steps
from horarium.services.loop.service import Service, Wake

GRACE_SECONDS = 10.0
"""After a step forward of this node's wall clock no lease from before it is taken for this long."""


class Leases:
    """Renews leases in the store. `watch`: notices steps of the clock, as often as the one that keeps these leases
    looks, and before each lease that is given. `steps`: those that this process knows of."""

    def __init__(self, store: Store, clock: Clock, steps: Steps | None = None) -> None:
        self.watch = ClockWatch(clock, steps)
        self.lively: Callable[[], Sequence[Attempt]] = lambda: ()
        """The attempts whose leases are kept here."""
        self._forward = 0
        """By how much all steps forward have put leases forward."""
        self._store = store
        self._clock = clock

    async def ask(self, runs: Sequence[Run]) -> list[Pulse | None]:
        """Renew the leases of these runs. None: the lease is lost."""
        beats = [Beat(run.id, run.token) for run in runs]
        pulses: list[Pulse | None] = []
        for start in range(0, len(beats), BATCH_MAX):
            pulses += await self._store.heartbeat_runs(beats[start : start + BATCH_MAX], await self.notice())
        return pulses

    async def notice(self) -> Instant:
        """Put all leases forward if the wall clock has stepped forward, before anything else is waited for: a lease
        that is given next is by the new time. Returns that time."""
        while (step := self.watch.look(now := self._clock.now())) > 0:
            self._forward += step
            await self.put_forward(self.lively(), step, now)
        return now

    async def beat(self, attempts: Sequence[Attempt], progress: bytes | None = None) -> None:
        """Renew the leases of these attempts; note which are lost and which have to stop."""
        for start in range(0, len(attempts), BATCH_MAX):
            refused = await self._beat(attempts[start : start + BATCH_MAX], progress)
            now = self._clock.now()
            if counted := [attempt for attempt in refused if attempt.lease_expires_at > now]:
                # They last by our own count: what put them forward was not written. Who took one has another token.
                await self.put_forward(counted, 0, now)
                lost = await self._beat(counted, progress)
                refused = [attempt for attempt in refused if attempt not in counted or attempt in lost]
            for attempt in refused:
                # After a step forward that the keeper has not seen yet, it puts the lease forward, and asks again.
                if self.watch.peek(self._clock.now()) <= 0:
                    attempt.end(Stop.LOST, self._clock.now())

    async def _beat(self, attempts: Sequence[Attempt], progress: bytes | None) -> list[Attempt]:
        """Renew these leases. Those that the store refuses."""
        sent_at = await self.notice()
        forward = self._forward
        beats = [Beat(attempt.run.id, attempt.run.token, progress) for attempt in attempts]
        pulses = await self._store.heartbeat_runs(beats, sent_at)
        went_back, shift = self._clock.now() < sent_at, self._forward - forward
        refused, renewed = [], []
        for attempt, pulse in zip(attempts, pulses, strict=True):
            if attempt.ended:
                continue
            if pulse is not None:
                self._note(attempt, pulse, shift)
                renewed.append(attempt)
            elif not went_back:
                # A time that lies in the future by now says nothing of a lease: the keeper asks again.
                refused.append(attempt)
        if shift:
            # A step was noticed meanwhile, and the store has these leases by the time before it.
            runs = [replace(each.run, state=State.RUNNING, lease_expires_at=each.lease_expires_at) for each in renewed]
            await self.write(runs, self._clock.now())
        return refused

    async def put_forward(self, attempts: Sequence[Attempt], step: int, now: Instant) -> None:
        """The wall clock stepped forward: these leases go on for as long as they would have without it. What the store
        knows otherwise by now is found out by the next beat."""
        for attempt in attempts:
            attempt.put_forward(step)
        await self.write([attempt.run for attempt in attempts], now)

    async def revive(self, claims: Mapping[str, int]) -> bool:
        """After a step forward these leases (tokens by id) may have ended by this clock only: those of claims that
        still hold go on as they would have without it. Whether there are any that last, by us or by another."""
        now = self._clock.now()
        self.watch.look(now)
        if self.watch.stood_for(GRACE_SECONDS) and not self.watch.steps.stood:
            return False
        runs = [run for run in await self._store.get_runs(list(claims)) if run is not None]
        held = [run for run in runs if run.token == claims[run.id]]
        changes = revived(self.watch, held, now, asked=True)
        if changes:
            await self._store.settle_runs(changes, now)  # unless another service was quicker to do the same
        return bool(changes) or any(run.state in CLAIMED and (run.lease_expires_at or 0) > now for run in held)

    async def write(self, runs: Sequence[Run], now: Instant) -> None:
        """Have the store know the leases of these claimed runs, as far as they still are ours."""
        changes = [RunChange(run, run.token, State.RUNNING) for run in runs]
        for start in range(0, len(changes), BATCH_MAX):
            await self._store.settle_runs(changes[start : start + BATCH_MAX], now)

    def _note(self, attempt: Attempt, pulse: Pulse, shift: int) -> None:
        """`shift`: by how much leases were put forward since the store was asked."""
        attempt.lease_expires_at = pulse.expires_at + shift
        third = to_micros(attempt.run.lease_seconds) // 3
        attempt.renew_at = max(attempt.lease_expires_at - 2 * third, self._clock.now() + min(third, SECOND))
        if pulse.cancel_requested:
            attempt.ask_to_stop()


class LeaseWatch(Service):
    """Notices steps of the clock for leases that workers outside of this process hold: a step is seen only between two
    looks, and they may be silent for long."""

    name = "lease-watch"
    topics: tuple[Topic, ...] = ()

    def __init__(self, leases: Leases) -> None:
        self.wake = Wake()
        self._leases = leases

    def looks(self) -> bool:
        return False

    async def step(self, now: Instant) -> Instant | None:
        self._leases.watch.look(now)
        return None


def revived(watch: ClockWatch, runs: Sequence[Run], now: Instant, *, asked: bool = False) -> list[RunChange]:
    """Of these runs those whose leases have ended by a step forward only, put forward. None lasts longer than one that
    is given now: it may have been given by a clock that was set back right before the step. Where it is not sure from
    when a lease is, it goes on if its holder has just `asked`, or if it waits at a broker, and has no holder yet."""
    changes = []
    for run in runs:
        lease = run.lease_expires_at or 0
        if run.state not in CLAIMED or lease > now:
            continue
        after, end = watch.unstepped(run), longest_lease(run, now)
        if after is run and (asked or awaits_worker(run)) and watch.is_unsure(run):
            after = put_forward(run, end - lease)
        if now < (after.lease_expires_at or 0):
            after = replace(after, lease_expires_at=min(after.lease_expires_at or 0, end))
            changes.append(RunChange(after, run.token, run.state, False))
    return changes
