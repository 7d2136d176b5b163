"""Leases of claimed runs, as the store knows them: renewed in batches, and asked about before a run begins.

What an answer says about an attempt is noted on the attempt itself, and an attempt that ended while the store was asked
is left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from horarium.clock import SECOND, Clock, to_micros
from horarium.model import Run
from horarium.ports import BATCH_MAX, Beat, Pulse, Store
from horarium.services.leases.attempt import Attempt, Stop


class Leases:
    """Renews leases in the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.timed_out: deque[tuple[str, int]] = deque(maxlen=BATCH_MAX)
        """The last claims whose time limit this process has enforced, so that their leases have no holder."""

    async def ask(self, runs: Sequence[Run]) -> list[Pulse | None]:
        """Renew the leases of these runs. None: the lease is lost."""
        return await self._beat([Beat(run.id, run.token) for run in runs])

    async def beat(self, attempts: Sequence[Attempt], progress: bytes | None = None) -> None:
        """Renew the leases of these attempts; note which are lost and which have to stop."""
        pulses = await self._beat([Beat(attempt.run.id, attempt.run.token, progress) for attempt in attempts])
        for attempt, pulse in zip(attempts, pulses, strict=True):
            if attempt.ended:
                continue
            if pulse is None:
                attempt.end(Stop.LOST, self._clock.steady())
            else:
                self._note(attempt, pulse)

    async def _beat(self, beats: Sequence[Beat]) -> list[Pulse | None]:
        pulses: list[Pulse | None] = []
        for start in range(0, len(beats), BATCH_MAX):
            pulses += await self._store.heartbeat_runs(beats[start : start + BATCH_MAX], self._clock.steady())
        return pulses

    def _note(self, attempt: Attempt, pulse: Pulse) -> None:
        attempt.lease_expires_at = pulse.expires_at
        third = to_micros(attempt.run.lease_seconds) // 3
        attempt.renew_at = max(attempt.lease_expires_at - 2 * third, self._clock.steady() + min(third, SECOND))
        if pulse.cancel_requested:
            attempt.ask_to_stop()
