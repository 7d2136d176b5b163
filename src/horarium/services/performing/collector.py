"""The collector: settles in groups. Outcomes come in one by one and wait for as long as the last group is being
written; then all that has gathered goes as one batch. An idle system settles at once, a busy one in large groups.

Where work is done faster than outcomes are written, less of it is claimed.

Nothing is dropped on an outage: outcomes are kept and written later, also after the lease. Only where another claim
was made meanwhile the run belongs to another worker, and the outcome is void. Where this process made that claim, the
claim takes the outcome instead of the work (`takes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Clock, Instant
from horarium.model import Job, Outcome, Run, RunChange, Succeeded
from horarium.operations.settling.settling import Settlement, Settling
from horarium.ports import BATCH_MAX
from horarium.rules.settling import after_silence, settle
from horarium.services.loop.quiet import QuietLog
from horarium.services.loop.service import Service, Wake
from horarium.services.metrics.telemetry import Telemetry
from horarium.services.performing.waiting import Waiting

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

    def __init__(self, settling: Settling, clock: Clock, telemetry: Telemetry) -> None:
        self._settling = settling
        self._clock = clock
        self._telemetry = telemetry
        self._ended: list[Ended] = []
        self._void: list[Ended] = []
        self.wake = Wake()
        self.room: list[Wake] = []
        """Are set when fewer outcomes wait again than hold claims back."""
        self.waitings: list[Waiting] = []
        """Where the claims of this process arrive."""
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

    def unwritten(self) -> Iterator[Ended]:
        """What is still to be written, or given up."""
        return chain(self._ended, self._void)

    def claims(self) -> frozenset[tuple[str, int]]:
        """The claims whose outcomes are still to be written."""
        return frozenset((ended.run.id, ended.run.token) for ended in self._ended)

    def add(self, run: Run, job: Job | None, outcome: Outcome) -> None:
        """Take an outcome. It is written by the next step."""
        if not self._ended:
            self.wake()
        self._ended.append(Ended(run, job, outcome))

    def takes(self, run: Run) -> bool:
        """Whether the work of this claim is done: its outcome is kept here under the claim before it, which others took
        for lost. It is written under this one."""
        if not after_silence(run):
            return False
        for kept in (self._ended, self._void):
            for place, ended in enumerate(kept):
                if ended.run.id == run.id and ended.run.token == run.token - 1:
                    kept[place] = replace(ended, run=replace(ended.run, token=run.token, due_at=run.due_at))
                    if kept is self._void:
                        self._ended.append(kept.pop(place))
                        self.wake()
                    return True
        return False

    def looks(self) -> bool:
        return bool(self._ended or self._void) or self._log.waits

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        self._give_up()
        while self._ended:
            await self._gather()
            count, excess = min(len(self._ended), BATCH_MAX), self.excess
            written = await self._write(self._ended[:count])
            stale = [ended for ended, done in zip(self._ended, written, strict=False) if not done]
            self._ended[:count] = stale
            if stale:
                self._ended[: len(stale)] = await self._write_stale(stale)
                self._give_up()
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

    async def _write(self, batch: list[Ended]) -> list[bool]:
        """Settle one batch, as runs and jobs were read when they were claimed. False: the run has changed since."""
        now = self._clock.now()
        changes = [ended.change(now) for ended in batch]
        return await self._settling.write(
            changes, {ended.job.id: ended.job for ended in batch if ended.job is not None}, now
        )

    async def _write_stale(self, stale: list[Ended]) -> list[Ended]:
        """Settle runs that were not as expected as they now are: a cancel was asked meanwhile, or the first answer was
        lost. A claim that is no longer ours makes the outcome void. Those that another claim took while this was
        asked."""
        reports = [Settlement(ended.run.id, ended.run.token, ended.outcome) for ended in stale]
        answers = await self._settling.settle(reports)
        lost = [place for place, answer in enumerate(answers) if not isinstance(answer, Run)]
        self._void += [stale[place] for place in lost if self._ended[place] is stale[place]]
        return [self._ended[place] for place in lost if self._ended[place] is not stale[place]]

    def _give_up(self) -> None:
        """Void outcomes, once no claim is on its way that may still take them."""
        if any(each.claiming_since is not None for each in self.waitings):
            return
        for ended in self._void:
            self._telemetry.lease_lost()
            void = "run %s of %s: its lease was lost, so its outcome is void"
            self._log.write(self._clock.now(), void, ended.run.id, ended.run.job or ended.run.queue)
        self._void.clear()
