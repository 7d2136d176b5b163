"""What people and programs ask for, carried out: on jobs (`job_operations.py`), and here on runs: added, listed,
cancelled, retried, kept alive and settled.

The API and the library both come through here. Each operation reads, lets a pure function decide, and writes if nothing
changed meanwhile; where it lost a race it reads again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from horarium.clock import Instant, to_micros
from horarium.errors import (
    Conflict,
    HorariumError,
    LeaseLost,
    NotFound,
    StateConflict,
    StoreUnavailable,
)
from horarium.job_operations import RACES_MAX, JobOperations, check_size, contended
from horarium.model import (
    CLAIMED,
    DEFAULT_RUN_POLICY,
    RESULT_BYTES_MAX,
    Cause,
    Job,
    Node,
    Outcome,
    Run,
    RunChange,
    State,
    uuid7,
)
from horarium.moving import move_put_back
from horarium.ports import BATCH_MAX, PAGE_MAX, Beat, Page, Pulse, RunFilter, Stats
from horarium.settling import cancel, retention_of, settle

BATCHES_AT_ONCE = 4
"""Batches of runs that are handed to the store without waiting for one another."""
NODES_SHOWN_SECONDS = 24 * 3600

log = logging.getLogger("horarium")


class Settlement(Struct, frozen=True):
    """An outcome reported from outside, under the token of the claim."""

    run_id: str
    token: int
    outcome: Outcome


class Operations(JobOperations):
    """Everything that can be asked of one namespace. Raises the errors of `errors`, nothing else."""

    # ---- runs

    async def add_runs(self, runs: Sequence[Run]) -> list[bool]:
        """Add one-off runs, in batches, some of them under way at a time. False: the unique key is taken."""
        added: list[bool] = []
        for start in range(0, len(runs), BATCH_MAX * BATCHES_AT_ONCE):
            stop = min(start + BATCH_MAX * BATCHES_AT_ONCE, len(runs))
            batches = [runs[first : min(first + BATCH_MAX, stop)] for first in range(start, stop, BATCH_MAX)]
            for answer in await asyncio.gather(*map(self.store.add_runs, batches)):
                added += answer
            self._signal_runs(runs[start:stop])
        return added

    async def get_run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound."""
        run = (await self.store.get_runs([run_id]))[0]
        if run is None:
            raise NotFound(f"there is no run {run_id!r}")
        return run

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        """Runs, newest fire time first; 200 a page at the most."""
        return await self.store.list_runs(where, after, min(limit, PAGE_MAX))

    async def cancel_run(self, run_id: str, reason: str = "cancelled by request") -> Run:
        """Cancel a pending run at once; ask a running one to stop (it is then `cancelling`). Raises StateConflict for
        one that is finished."""
        for _ in range(RACES_MAX):
            run = await self.get_run(run_id)
            if run.state is State.CANCELLING:
                return run
            now = self.clock.now()
            changed = cancel(run, retention_of(run, await self._job_of(run)), now, reason)
            if (await self.store.settle_runs([RunChange(changed, run.token, run.state)], now))[0]:
                if changed.state is State.CANCELLING:
                    self._cancel_asked(changed)
                self.signal.publish("cancel")
                self._after_settle(changed, None)
                return changed
        raise contended(run_id)

    async def retry_run(self, run_id: str) -> Run:
        """A new run for the work of one that failed or was cancelled, due now, with its attempts counted anew. The
        finished run stays as it is. Raises StateConflict for one that is not finished, or that completed."""
        run = await self.get_run(run_id)
        if run.state not in (State.FAILED, State.CANCELLED, State.SKIPPED):
            raise StateConflict(f"run {run_id} is {run.state}; only a failed, cancelled or skipped run can be retried")
        if run.job is not None:
            job = await self._job_of(run)
            if job is None or job.deleted_at is not None:
                raise StateConflict(f"run {run_id}: its job {run.job!r} was deleted")
            return await self.trigger_job(run.job, run.payload)
        now = self.clock.now()
        again = _fresh(run, id=uuid7(now, self._entropy(10)), now=now)
        await self.add_runs([again])
        return again

    async def _job_of(self, run: Run) -> Job | None:
        return None if run.job_id is None else (await self.store.get_jobs_by_id([run.job_id]))[0]

    async def heartbeat(self, run_id: str, token: int, progress: bytes | None = None) -> Pulse:
        """Renew a lease. Raises LeaseLost, or NotFound."""
        check_size("progress", progress, RESULT_BYTES_MAX)
        pulse = (await self.store.heartbeat_runs([Beat(run_id, token, progress)], self.clock.now()))[0]
        if pulse is None:
            raise await self._lease_lost(run_id, token)
        return pulse

    async def settle_one(self, settlement: Settlement) -> Run:
        """Settle one claimed run. Raises LeaseLost or NotFound, and then nothing was written."""
        (settled,) = await self.settle([settlement])
        if isinstance(settled, HorariumError):
            raise settled
        return settled

    async def settle(self, settlements: Sequence[Settlement]) -> list[Run | HorariumError]:
        """Settle many claimed runs in one go. For each the run as it then stands, or the error that applies."""
        answers: dict[int, Run | HorariumError] = {}
        todo = dict(enumerate(settlements))
        for _ in range(RACES_MAX):
            if not todo:
                break
            await self._settle_round(todo, answers)
        for index in todo:
            answers[index] = contended(settlements[index].run_id)
        await self._move_put_back([answer for answer in answers.values() if isinstance(answer, Run)])
        return [answers[index] for index in range(len(settlements))]

    async def _move_put_back(self, runs: Sequence[Run]) -> None:
        """Let them follow their jobs. The reports are written: nothing that fails here is an answer to them."""
        try:
            await move_put_back(self.store, self.signal, runs, self.clock.now())
        except StoreUnavailable as error:
            log.warning("runs that were put back could not be moved to where their jobs now go: %s", error)

    async def _settle_round(self, todo: dict[int, Settlement], answers: dict[int, Run | HorariumError]) -> None:
        """Read the runs, decide, write. What was written or refused leaves `todo`; what lost a race stays in it."""
        runs = await self.store.get_runs([settlement.run_id for settlement in todo.values()])
        jobs = await self._jobs_of([run for run in runs if run is not None])
        now = self.clock.now()
        changes: dict[int, RunChange] = {}
        for (index, settlement), run in zip(list(todo.items()), runs, strict=True):
            error = _refusal(settlement, run, now)
            if error is not None or run is None:
                answers[index] = error or NotFound(f"there is no run {settlement.run_id!r}")
                del todo[index]
                continue
            after = settle(run, jobs.get(run.job_id or ""), settlement.outcome, now)
            changes[index] = RunChange(after, run.token, run.state, held=True)
        written = await self.store.settle_runs(list(changes.values()), now) if changes else []
        for (index, change), done in zip(changes.items(), written, strict=True):
            if done:
                answers[index] = change.run
                del todo[index]
                self._after_settle(change.run, jobs.get(change.run.job_id or ""))

    async def _jobs_of(self, runs: Sequence[Run]) -> dict[str, Job]:
        ids = list({run.job_id for run in runs if run.job_id is not None})
        if not ids:
            return {}
        return {job.id: job for job in await self.store.get_jobs_by_id(ids) if job is not None}

    async def _lease_lost(self, run_id: str, token: int) -> HorariumError:
        run = (await self.store.get_runs([run_id]))[0]
        if run is None:
            return NotFound(f"there is no run {run_id!r}")
        return _lost(run, token)

    def _after_settle(self, run: Run, job: Job | None) -> None:
        self._settled(run, job)
        if run.state is State.PENDING or run.serial or run.concurrency_key is not None:
            self.signal.publish(f"queue:{run.queue}")

    # ---- the rest

    async def nodes(self) -> list[Node]:
        """The nodes that gave a sign of life within the last day."""
        return await self.store.list_nodes(self.clock.now() - NODES_SHOWN_SECONDS * 1_000_000)

    async def stats(self) -> Stats:
        """Counts by queue."""
        return await self.store.stats(self.clock.now())


def _refusal(settlement: Settlement, run: Run | None, now: Instant) -> HorariumError | None:
    if run is None:
        return None
    held = run.state in CLAIMED and run.token == settlement.token
    if not held or run.lease_expires_at is None or run.lease_expires_at <= now:
        return _lost(run, settlement.token)
    return None


def _lost(run: Run, token: int) -> Conflict:
    if run.token == token and run.finished:
        return LeaseLost(f"run {run.id} is {run.state} already; this report changed nothing")
    return LeaseLost(
        f"the lease on run {run.id} under token {token} is lost: the run is {run.state} under token {run.token}; "
        "stop working on it, this report changed nothing"
    )


def _fresh(run: Run, *, id: str, now: Instant) -> Run:
    """The same work as a new run."""
    start_seconds = (run.policy or DEFAULT_RUN_POLICY).timeouts.start_seconds
    return Run(
        id=id,
        queue=run.queue,
        fire_at=now,
        due_at=now,
        created_at=now,
        priority=run.priority,
        cause=Cause.MANUAL,
        payload=run.payload,
        policy=run.policy,
        concurrency_key=run.concurrency_key,
        concurrency_max=run.concurrency_max,
        lease_seconds=run.lease_seconds,
        execution_seconds=run.execution_seconds,
        start_by=None if start_seconds is None else now + to_micros(start_seconds),
    )
