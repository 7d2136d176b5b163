"""What each node has in its hands: a run that a dispatcher took is in one of its lists until the store knows better.

A run that is claimed and in no list is forgotten: its lease would run out, and another node would do it later, though
nothing was wrong. This looks for such runs at every call of the store, long before their leases tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horarium.clock import SECOND, Clock
from horarium.model import Run, State
from horarium.services.performing.dispatcher import Dispatcher

EVERY_SECONDS = 0.04
HEARTBEATS = "heartbeat_runs"

Claim = tuple[str, int]


class Hands:
    """Those of one node. `ahead`: how many runs beyond its places it takes at least."""

    def __init__(self, name: str, clock: Clock, collector: Any, fail: Callable[[str], None], ahead: int = 0) -> None:
        self.ahead = ahead
        self._name = name
        self._clock = clock
        self._collector = collector
        self._fail = fail
        self._dispatchers: Sequence[Dispatcher] = ()
        self._taken: dict[Claim, None] = {}
        self._looked_at = 0.0
        self._trouble_at = -1.0

    def watch(self, dispatchers: Sequence[Dispatcher]) -> None:
        """Note what these take from now on. A run that goes to a broker is the broker's."""
        self._dispatchers = [each for each in dispatchers if not each.name.startswith("bus-")]
        for dispatcher in self._dispatchers:
            self._follow(dispatcher)

    def _follow(self, dispatcher: Any) -> None:
        take = dispatcher.take

        def taking(runs: Sequence[Run], *rest: Any) -> None:
            self._taken.update(dict.fromkeys((run.id, run.token) for run in runs))
            take(runs, *rest)

        dispatcher.take = taking

    def has_trouble(self, call: str) -> None:
        """A call of the store failed: if it was to renew leases, they may be others than the node knows."""
        if call == HEARTBEATS:
            self._trouble_at = self._clock.monotonic()

    def look(self, stored: Mapping[str, Run]) -> None:
        """Look for forgotten runs. `stored`: every run as it is in the store."""
        now = self._clock.monotonic()
        if not self._taken or now - self._looked_at < EVERY_SECONDS:
            return
        self._looked_at = now
        held = self._held()
        for claim in list(self._taken):
            run = stored.get(claim[0])
            if run is None or run.token != claim[1] or not self._is_ours(run):
                del self._taken[claim]
            elif claim not in held and now - self._trouble_at > run.lease_seconds:
                self._fail(f"run {run.id}: {self._name} claimed it under token {run.token}, and has it in no hand")

    def _held(self) -> set[Claim]:
        held: set[Claim] = {(ended.run.id, ended.run.token) for ended in self._collector._ended}
        for dispatcher in self._dispatchers:
            performing = dispatcher._performing
            held.update(ready.claim for ready in performing.waiting)
            held.update(performing.attempts)
        return held

    def _is_ours(self, run: Run) -> bool:
        """Whether the node must have it: it was not told to stop, and its lease lasts by the reading of the node."""
        return run.state is State.RUNNING and (run.lease_expires_at or 0) > self._clock.steady() + SECOND // 100
