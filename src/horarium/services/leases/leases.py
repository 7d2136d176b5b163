"""Leases of claimed runs, as the store knows them: renewed in batches, and asked about before a run begins.

What an answer says about an attempt is noted on the attempt itself, and an attempt that ended while the store was asked
is left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import SECOND, Clock, Instant, to_micros
from horarium.model import CLAIMED, Run, State
from horarium.ports import BATCH_MAX, Beat, Pulse, Store
from horarium.services.leases.attempt import Attempt, Stop

Claim = tuple[str, int]
"""A run and the token of its claim."""


class Own(Struct, frozen=True):
    """The claims of one process, by where they are: it never rescues these, though a lease has ended.
    `claiming_since`: when the oldest of its claims began that has no answer yet. `worker`: the name under which it
    claims. `astray`: claims of it and for workers elsewhere that came to nothing (`operations.settling`).
    `timed_out`: those that it gave up itself at their time limit."""

    worker: str = ""
    ended: frozenset[Claim] = frozenset()
    under_way: frozenset[Claim] = frozenset()
    waiting: frozenset[Claim] = frozenset()
    claiming_since: Instant | None = None
    astray: frozenset[Claim] = frozenset()
    timed_out: frozenset[Claim] = frozenset()

    def waits(self, run: Run) -> bool:
        """True if this process has claimed the run, for itself or a worker elsewhere, and it was not begun."""
        if run.state not in CLAIMED:
            return False
        claim = run.id, run.token
        return claim in self.waiting or claim in self.astray or (run.worker, run.started_at) in self.astray

    def keeps(self, run: Run) -> bool:
        """True if it has the outcome, is at work on the run, or may be about to get the claim of it. A cancel whose
        grace is over is enforced all the same."""
        claim = (run.id, run.token)
        if claim in self.ended:
            return True
        return run.state is State.RUNNING and (claim in self.under_way or self._is_on_its_way(run))

    def _is_on_its_way(self, run: Run) -> bool:
        since = self.claiming_since
        is_new = since is not None and run.started_at is not None and run.started_at >= since
        return is_new and run.worker == self.worker and (run.id, run.token) not in self.waiting


NOTHING = Own()


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
