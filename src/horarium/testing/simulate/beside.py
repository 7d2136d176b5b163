"""A run that goes on beside a newer one, though its job ends others: for a moment, never for longer.

Most are ended in the write that makes the newer one. One that a claim, or its way back from one, has changed meanwhile
is looked at after it, which takes some calls of the store. Where a node died or was held up in that time, it may take
until the others have noticed that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from horarium.clock import SECOND
from horarium.model import Cause, Job, Run, State
from horarium.policies import Overlap
from horarium.testing.simulate.owed_ends import OwedEnds
from horarium.testing.simulate.trace import Trace

ENDING = (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER)
LOOK_EVERY = SECOND // 10
DEATH_KNOWN = 45 * SECOND
"""How long it may take until the others have noticed that a node is dead, and looked for what it left."""
MOMENT, CALLS = SECOND // 2, 4
"""How long it may go on where each call of the store is answered at once, and the calls until it is told."""

Pair = tuple[str, int, State, str]
"""A run, its token and its state, and the newer one."""
Calm = Callable[[], tuple[int, float]]
"""When a node died last, and how many seconds one call of the store may take."""


class Beside:
    """The books, looked at with each write. `order`: the writes at which runs were made."""

    def __init__(
        self,
        trace: Trace,
        calm: Calm,
        jobs: Mapping[str, Job],
        unfinished: Mapping[str, Mapping[str, Run]],
        order: Mapping[str, int],
        owed: OwedEnds,
    ) -> None:
        self._trace = trace
        self._calm = calm
        self._jobs = jobs
        self._unfinished = unfinished
        self._order = order
        self._owed = owed
        self._edited: dict[str, int] = {}
        """The writes at which jobs were edited last: instants do not tell, where the clock went back."""
        self._since: dict[Pair, tuple[int, int]] = {}
        """Since when, and how long that may be: of calls that were slow when it began."""
        self._looked_at = 0

    def job_written(self, old: Job | None, new: Job) -> None:
        """A job was written."""
        if old is None or old.updated_at != new.updated_at:
            self._edited[new.id] = self._trace.writes

    def not_asked_to_stop(self) -> list[Run]:
        """Runs that go on beside a newer one of their job, though its policy ends them."""
        return [run for run, _ in self._pairs()]

    def look(self) -> None:
        """Look at all of them, if it is time to."""
        now = self._trace.elapsed
        if now < self._looked_at + LOOK_EVERY or self._trace.clock_stepped or self._trace.was_held_up:
            return
        self._looked_at = now
        died_at, call_seconds = self._calm()
        pairs = [
            (run.id, run.token, run.state, newer.id)
            for run, newer in self._pairs()
            if not self._owed.of(run.job_id or "")
        ]
        allowed_now = MOMENT + round(CALLS * call_seconds * SECOND)
        self._since = {pair: self._since.get(pair, (now, allowed_now)) for pair in pairs}
        for (run_id, _, state, newer), (since, allowed) in self._since.items():
            begun = since if died_at < since - allowed else died_at + DEATH_KNOWN
            if now - begun > allowed:
                self._trace.fail(f"run {run_id} goes on ({state}) for {(now - since) / SECOND:.1f} s beside {newer}")

    def _pairs(self) -> Iterator[tuple[Run, Run]]:
        for job_id, job in self._jobs.items():
            if job.overlap not in ENDING:
                continue
            runs = sorted(self._unfinished.get(job_id, {}).values(), key=lambda run: self._order[run.id])
            while runs and runs[-1].cause is Cause.PING:  # it came at no fire time, and ends nothing
                runs.pop()
            was_made_since = runs and self._order[runs[-1].id] > self._edited.get(job_id, 0)
            if was_made_since and runs[-1].created_at >= job.updated_at:
                yield from ((run, runs[-1]) for run in runs[:-1] if run.state is not State.CANCELLING)
