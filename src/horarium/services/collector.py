"""The collector: settles in groups. Outcomes come in one by one and wait for as long as the last group is being
written; then all that has gathered goes as one batch. An idle system settles at once, a busy one in large groups.

Nothing is dropped on an outage: outcomes are kept and written later, unless the lease expires first. Then the run
belongs to somebody else, and the outcome is void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from horarium.clock import Clock, Instant
from horarium.model import CLAIMED, Job, Outcome, Run, RunChange, State
from horarium.moving import move_put_back
from horarium.ports import BATCH_MAX, Signal, Store
from horarium.services.quiet import QuietLog
from horarium.settling import settle
from horarium.telemetry import Telemetry


class Ended(NamedTuple):
    """An attempt that ended here."""

    run: Run
    job: Job | None
    outcome: Outcome


class Collector:
    """Writes outcomes of attempts that this process performed."""

    name = "collector"
    topics: tuple[str, ...] = ()

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        telemetry: Telemetry,
        settled: Callable[[Run, Job | None], None] = lambda run, job: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._signal = signal
        self._telemetry = telemetry
        self._settled = settled
        self._ended: list[Ended] = []
        self._put_back: list[Run] = []
        self.wake: Callable[[], None] = lambda: None
        self._flushed: list[asyncio.Future[None]] = []
        self._log = QuietLog("outcomes that came too late")

    @property
    def waiting(self) -> int:
        """Outcomes that are not written yet."""
        return len(self._ended)

    def holds(self, run: Run) -> bool:
        """Whether the outcome of this claim is still to be written."""
        return any(ended.run.id == run.id and ended.run.token == run.token for ended in self._ended)

    def add(self, run: Run, job: Job | None, outcome: Outcome) -> None:
        """Take an outcome. It is written by the next step."""
        if not self._ended:
            self.wake()
        self._ended.append(Ended(run, job, outcome))

    async def step(self, now: Instant) -> Instant | None:
        self._log.tell_rest(now)
        while self._ended:
            batch = self._ended[:BATCH_MAX]
            stale = await self._write(batch)
            self._ended[: len(batch)] = stale
            if stale:
                await self._again(stale)
        await move_put_back(self._store, self._signal, self._put_back, now)
        self._put_back.clear()
        for flushed in self._flushed:
            if not flushed.done():
                flushed.set_result(None)
        self._flushed.clear()
        return None

    async def flush(self) -> None:
        """Return when nothing waits to be written. The loop does the writing, and its back-off is respected."""
        if self._ended:
            self._flushed.append(asyncio.get_running_loop().create_future())
            self.wake()
            await self._flushed[-1]

    async def _write(self, batch: list[Ended]) -> list[Ended]:
        """Settle one batch. Those that were not as they had been read come back."""
        now = self._clock.now()
        changes = [RunChange(settle(run, job, outcome, now), run.token, run.state, True) for run, job, outcome in batch]
        written = await self._store.settle_runs(changes, now)
        if all(written):
            self._after(batch, changes)
            return []
        kept = [index for index, done in enumerate(written) if done]
        self._after([batch[index] for index in kept], [changes[index] for index in kept])
        return [ended for ended, done in zip(batch, written, strict=True) if not done]

    async def _again(self, stale: list[Ended]) -> None:
        """Read what was not as expected. Still ours (a cancel was asked meanwhile): settle from there. Else: void."""
        runs = await self._store.get_runs([ended.run.id for ended in stale])
        now = self._clock.now()
        del self._ended[: len(stale)]
        for ended, run in zip(stale, runs, strict=True):
            ours = run is not None and run.token == ended.run.token and run.state in CLAIMED
            if run is not None and ours and (run.lease_expires_at or 0) > now:
                self._ended.append(Ended(run, ended.job, ended.outcome))
            elif run is not None and _written(ended, run):
                self._telemetry.settled([run])
            else:
                self._telemetry.lease_lost()
                self._log.warning(now, "run %s: its lease was lost, so its outcome is void", ended.run.id)

    def _after(self, batch: list[Ended], changes: list[RunChange]) -> None:
        self._telemetry.settled([change.run for change in changes])
        self._put_back += [change.run for change in changes if change.run.state is State.PENDING]
        queues = {
            change.run.queue
            for change in changes
            if change.run.state is State.PENDING or change.run.serial or change.run.concurrency_key is not None
        }
        for queue in sorted(queues):
            self._signal.publish(f"queue:{queue}")
        for change, ended in zip(changes, batch, strict=True):
            if ended.job is not None and ended.job.retention.runs_max is not None:
                self._settled(change.run, ended.job)


def _written(ended: Ended, run: Run) -> bool:
    """Whether the run stands as this outcome left it: the store carried it out, and only its answer was lost."""
    done = run.token == ended.run.token and run.finished_at is not None
    return done and run.state is settle(ended.run, ended.job, ended.outcome, run.finished_at or 0).state
