"""The collector: settles in groups. Outcomes come in one by one and wait for as long as the last group is being
written; then all that has gathered goes as one batch. An idle system settles at once, a busy one in large groups.

Where work is done faster than outcomes are written, less of it is claimed.

Nothing is dropped on an outage: outcomes are kept and written later, also after the lease. Only where another claim
was made meanwhile the run belongs to another worker, and the outcome is void.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from horarium.clock import Clock, Instant
from horarium.model import Job, Outcome, Run, RunChange, Succeeded
from horarium.operations.settling.settling import Settlement, Settling
from horarium.ports import BATCH_MAX, Topic
from horarium.rules.settling import settle
from horarium.services.loop.quiet import QuietLog
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry

MANY = 100
"""Outcomes that came since the last look at them, where more are about to."""
UNWRITTEN_MAX = 2 * BATCH_MAX
"""Where more outcomes wait than this, each takes the place of a run that would be claimed: they must be written before
their leases end."""


class Ended(Struct, frozen=True, gc=False):
    """An attempt that ended."""

    run: Run
    job: Job | None
    outcome: Outcome

    def change(self, now: Instant) -> RunChange:
        """The end of the run, whose lease is held."""
        run, outcome = self.run, self.outcome
        after = settle(run, self.job, outcome, now)
        return RunChange(after, run.token, run.state, True, as_claimed=type(outcome) is Succeeded)


class Collector(Service):
    """Writes outcomes of attempts that this process performed."""

    name = "collector"
    topics: tuple[Topic, ...] = ()

    def __init__(self, settling: Settling, clock: Clock, telemetry: Telemetry) -> None:
        self._settling = settling
        self._clock = clock
        self._telemetry = telemetry
        self._ended: list[Ended] = []
        self.wake = Wake()
        self.room: list[Wake] = []
        """Are set when fewer outcomes wait again than hold claims back."""
        self._flushed: list[asyncio.Future[None]] = []
        self._log = QuietLog("outcomes that came too late")

    @property
    def waiting(self) -> int:
        """Outcomes that are not written yet."""
        return len(self._ended)

    @property
    def excess(self) -> int:
        """How many more wait than should."""
        return max(0, len(self._ended) - UNWRITTEN_MAX)

    def claims(self) -> frozenset[tuple[str, int]]:
        """The claims whose outcomes are still to be written."""
        return frozenset((ended.run.id, ended.run.token) for ended in self._ended)

    def holds(self, run: Run) -> bool:
        """Whether the outcome of this claim is still to be written."""
        return any(ended.run.id == run.id and ended.run.token == run.token for ended in self._ended)

    def add(self, run: Run, job: Job | None, outcome: Outcome) -> None:
        """Take an outcome. It is written by the next step."""
        if not self._ended:
            self.wake()
        self._ended.append(Ended(run, job, outcome))

    def looks(self) -> bool:
        return bool(self._ended) or self._log.waits

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        while self._ended:
            await self._gather()
            batch, excess = self._ended[:BATCH_MAX], self.excess
            stale = await self._write(batch)
            self._ended[: len(batch)] = stale
            if stale:
                await self._write_stale(stale)
                del self._ended[: len(stale)]
            if excess:
                for wake in self.room:
                    wake()
        for flushed in self._flushed:
            if not flushed.done():
                flushed.set_result(None)
        self._flushed.clear()
        return None

    async def _gather(self) -> None:
        """Where many runs do nothing that takes time, more of them end at once: they go along."""
        before = 0
        while len(self._ended) - before >= MANY and len(self._ended) < BATCH_MAX:
            before = len(self._ended)
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Return when nothing waits to be written. The loop does the writing, and its back-off is respected."""
        if self._ended:
            self._flushed.append(asyncio.get_running_loop().create_future())
            self.wake()
            await self._flushed[-1]

    async def _write(self, batch: list[Ended]) -> list[Ended]:
        """Settle one batch, as runs and jobs were read when they were claimed. Those that have changed come back."""
        now = self._clock.now()
        changes = [ended.change(now) for ended in batch]
        written = await self._settling.write(
            changes, {ended.job.id: ended.job for ended in batch if ended.job is not None}, now
        )
        return [] if all(written) else [ended for ended, done in zip(batch, written, strict=True) if not done]

    async def _write_stale(self, stale: list[Ended]) -> None:
        """Settle runs that were not as expected as they now are: a cancel was asked meanwhile, or the first answer was
        lost. A claim that is no longer ours makes the outcome void."""
        reports = [Settlement(ended.run.id, ended.run.token, ended.outcome) for ended in stale]
        for ended, answer in zip(stale, await self._settling.settle(reports), strict=True):
            if not isinstance(answer, Run):
                self._telemetry.lease_lost()
                void = "run %s of %s: its lease was lost, so its outcome is void"
                self._log.warning(self._clock.now(), void, ended.run.id, ended.run.job or ended.run.queue)
