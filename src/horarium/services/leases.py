"""Leases of claimed runs, as the store knows them: renewed in batches, and asked about before a run begins.

Nothing is remembered here. What an answer says about an attempt is noted on the attempt itself, and an attempt that
ended while the store was asked is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import Run, RunChange, State
from horarium.ports import BATCH_MAX, Beat, Pulse, Store
from horarium.services.attempt import Attempt, Stop


class Leases:
    """Renews leases in the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def ask(self, runs: Sequence[Run]) -> list[Pulse | None]:
        """Renew the leases of these runs. None: the lease is lost."""
        beats = [Beat(run.id, run.token) for run in runs]
        pulses: list[Pulse | None] = []
        for start in range(0, len(beats), BATCH_MAX):
            pulses += await self._store.heartbeat_runs(beats[start : start + BATCH_MAX], self._clock.now())
        return pulses

    async def beat(self, attempts: Sequence[Attempt], progress: bytes | None = None) -> None:
        """Renew the leases of these attempts; note which are lost and which have to stop."""
        for start in range(0, len(attempts), BATCH_MAX):
            batch = attempts[start : start + BATCH_MAX]
            beats = [Beat(attempt.run.id, attempt.run.token, progress) for attempt in batch]
            pulses = await self._store.heartbeat_runs(beats, self._clock.now())
            for attempt, pulse in zip(batch, pulses, strict=True):
                if not attempt.ended:
                    self._note(attempt, pulse)

    async def put_forward(self, attempts: Sequence[Attempt], step: int, now: Instant) -> None:
        """The wall clock stepped forward: these leases go on for as long as they would have without it. What the store
        knows otherwise by now is found out by the next beat."""
        for attempt in attempts:
            attempt.put_forward(step)
        await self.write([attempt.run for attempt in attempts], now)

    async def write(self, runs: Sequence[Run], now: Instant) -> None:
        """Have the store know the leases of these claimed runs, as far as they still are ours."""
        changes = [RunChange(run, run.token, State.RUNNING) for run in runs]
        for start in range(0, len(changes), BATCH_MAX):
            await self._store.settle_runs(changes[start : start + BATCH_MAX], now)

    def _note(self, attempt: Attempt, pulse: Pulse | None) -> None:
        if pulse is None:
            attempt.end(Stop.LOST, self._clock.now())
            return
        attempt.lease_expires_at = pulse.expires_at
        third = to_micros(attempt.run.lease_seconds) // 3
        attempt.renew_at = max(pulse.expires_at - 2 * third, self._clock.now() + min(third, SECOND))
        if pulse.cancel_requested:
            attempt.ask_to_stop()
