"""What a process holds itself, as it knows better than the store: it never rescues that, though the lease has ended."""

from __future__ import annotations

from msgspec import Struct

from horarium.clock import Instant
from horarium.model import CLAIMED, Run, State

Claim = tuple[str, int]
"""A run and the token of its claim."""


class Own(Struct, frozen=True):
    """The claims of one process, by where they are. `claiming_since`: when the oldest of its claims began that has no
    answer yet. `worker`: the name under which it claims. `astray`: claims of it and for workers elsewhere that came to
    nothing (`operations.settling`). `timed_out`: those that it gave up itself at their time limit."""

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
