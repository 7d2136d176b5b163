"""Requests about runs: added, listed, cancelled, retried, kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros, to_wall
from horarium.errors import HorariumError, NotFound, StateConflict
from horarium.model import (
    BUS_QUEUES,
    CLAIMED,
    DEFAULT_RUN_POLICY,
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    Cause,
    Job,
    Run,
    RunChange,
    State,
    leased,
    retry_key,
    shown_state,
    uuid7,
)
from horarium.operations.bounds.reaching import require_run
from horarium.operations.jobs.jobs import JobOperations
from horarium.operations.runs.waiting import Waiting
from horarium.operations.settling.batching import Batching
from horarium.operations.settling.holding import Holding
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.settling import Settling, lease_lost
from horarium.operations.writing.auditing import NOT_SAID, require_reach, summary, told, told_cancel, told_runs
from horarium.operations.writing.context import RACES_MAX, Context, contended, pause_after
from horarium.operations.writing.named import run_of_id
from horarium.operations.writing.signalling import announce_runs
from horarium.ports import BATCH_MAX, CANCEL, PAGE_MAX, Beat, Page, Pulse, RunFilter, Store
from horarium.rules.batches import batch_of, without_batch
from horarium.rules.settling import cancel, ends_overdue, retention_of
from horarium.wire.faults import check_size

RAN = frozenset({State.COMPLETED, State.FAILED, State.SKIPPED})
"""States of the past alone: a fire time that was skipped, too, has come."""
EARLY = SECOND
"""Clocks of nodes differ by less than this."""


PAGES_MAX = 50
"""Pages of runs cancelled in a wrong future that are passed by in one go."""
PAGE_MIN = 200
"""Runs of such a page, however few are asked for: the newest run is found, though hundreds were cancelled."""


def is_of_a_wrong_future(run: Run, now: Instant) -> bool:
    """Whether it ran, or was made, before its time could have come: the clock was ahead, and was set back. (Its end
    is brought back with the clock, but a moment later.)"""
    if run.fire_at <= now + EARLY:
        return False
    return run.state in RAN or (run.state is State.CANCELLED and run.created_at > now + EARLY)


async def list_runs(store: Store, where: RunFilter, after: str | None, limit: int, now: Instant) -> Page[Run]:
    """As `Store.list_runs`, without runs of a wrong future, unless `since` is given.

    A run's place in a list is its fire time, which is part of its id and never changes. Runs of a future that turned
    out to be wrong would stay the newest ones until that time comes, perhaps for years. So a list begins with runs that
    may lie ahead (waiting or cancelled) and goes on with the present."""
    page = await store.list_runs(where, after, limit)
    if where.since is not None or not any(is_of_a_wrong_future(run, now) for run in page.items):
        return page
    ahead = now + EARLY
    found, more = await _still_to_come(store, replace(where, since=ahead), after, limit, now)
    if len(found) >= limit:
        return Page(tuple(found[:limit]), found[limit - 1].id if limit > 0 else None)
    if more is not None:
        return Page(tuple(found), more)
    until = ahead if where.until is None else min(ahead, where.until)
    rest = await store.list_runs(replace(where, until=until), after, limit - len(found))
    return Page((*found, *rest.items), rest.next_after)


async def _still_to_come(
    store: Store, where: RunFilter, after: str | None, limit: int, now: Instant
) -> tuple[list[Run], str | None]:
    """Runs that wait, or were cancelled before their time; and where to go on, if not all of it was looked at."""
    found: list[Run] = []
    where = replace(where, states=(where.states or frozenset(State)) - RAN)
    for _ in range(PAGES_MAX if where.states else 0):
        page = await store.list_runs(where, after, max(limit, PAGE_MIN))
        found += (run for run in page.items if not is_of_a_wrong_future(run, now))
        after = page.next_after
        if after is None or len(found) >= limit:
            return found, after
    return found, after if where.states else None


WAITING = frozenset({State.PENDING, State.RUNNING})
"""Stored states that do not tell which is shown: a run at a broker is claimed, and pending until a worker begins."""
PAGES_SIFTED_MAX = 20
"""Pages that are looked through for one page of either."""
BATCHES_AT_ONCE = 4
"""Batches of runs that are handed to the store without waiting for one another."""
RETRIED = frozenset({State.FAILED, State.CANCELLED, State.SKIPPED})


class RunOperations:
    """Operations on the runs of one namespace. Raises the errors of `errors`, nothing else. `cancel_asked` is called
    with claimed runs that were asked to stop, for those that this process performs."""

    def __init__(
        self,
        context: Context,
        jobs: JobOperations,
        settling: Settling,
        waiting: Waiting,
        holding: Holding,
        cancel_asked: Callable[[Run], None],
    ) -> None:
        self.waiting = waiting
        self._store, self._clock, self._signal, self._entropy = context
        self._jobs = jobs
        self._settling, self.holding = settling, holding
        self.lined_up = Rating(context).lined_up
        self.batching = Batching(context)
        self._cancel_asked = cancel_asked

    async def add_runs(self, runs: Sequence[Run], asked: Mapping[str, str] = NOT_SAID) -> list[bool]:
        """Add one-off runs, in batches, some of them under way at a time. False: the unique key is taken. `asked`: what
        the audit says of them, by id; left out: that they were made."""
        require_reach(*runs)
        if len(runs) <= BATCH_MAX:
            return await self._add_batch(runs, asked)
        added: list[bool] = []
        batches = [runs[first : first + BATCH_MAX] for first in range(0, len(runs), BATCH_MAX)]
        for first in range(0, len(batches), BATCHES_AT_ONCE):
            adding = (self._add_batch(batch, asked) for batch in batches[first : first + BATCHES_AT_ONCE])
            for answer in await asyncio.gather(*adding):
                added += answer
        return added

    async def _add_batch(self, runs: Sequence[Run], asked: Mapping[str, str]) -> list[bool]:
        added = await self._store.add_runs(runs, told_runs(runs, asked))
        announce_runs(self._signal, runs if all(added) else compress(runs, added))
        return added

    async def replace_run(self, waiting: Run, after: Run, now: Instant) -> bool:
        """Replace a run that waits, if it is still as it was read."""
        records = told("run.replace", f"run/{waiting.id}", now, after=summary(after))
        change = RunChange(after, waiting.token, State.PENDING, records=records, replaces=True)
        (replaced,) = await self._store.settle_runs([change], self._clock.steady())
        if replaced:
            announce_runs(self._signal, [after])
        return replaced

    async def get_run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound."""
        return await run_of_id(self._store, run_id)

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        """Runs, newest fire time first; at most 200 a page. States are meant as they are shown."""
        limit, now = min(limit, PAGE_MAX), self._clock.now()
        if len(where.states & WAITING) != 1 or not (where.queue or BUS_QUEUES).startswith(BUS_QUEUES):
            return await list_runs(self._store, where, after, limit, now)
        asked = replace(where, states=where.states | WAITING)
        found: list[Run] = []
        for _ in range(PAGES_SIFTED_MAX):
            page = await list_runs(self._store, asked, after, limit, now)
            found += (run for run in page.items if shown_state(run) in where.states)
            after = page.next_after
            if len(found) > limit:
                return Page(tuple(found[:limit]), found[limit - 1].id)
            if after is None or len(found) == limit:
                break
        return Page(tuple(found), after)

    async def cancel_run(self, run_id: str, reason: str = "cancelled by request") -> Run:
        """Cancel a pending run at once; ask a running one to stop (it is then `cancelling`). Raises StateConflict for
        one that is finished."""
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            run = await self.get_run(run_id)
            await require_run(self._store, run)
            if run.state is State.CANCELLING and not ends_overdue(run):
                return run
            now, job = self._clock.now(), await self._job_of(run)
            changed = leased(cancel(run, retention_of(run, job), now, reason), self._clock.steady())
            change = RunChange(changed, run.token, run.state, records=told_cancel(run, changed, reason, now))
            if (await self._settling.write([change], {} if job is None else {job.id: job}, now))[0]:
                if run.state in CLAIMED:
                    self._cancel_asked(changed)
                    self._signal.publish(CANCEL)
                return changed
        raise contended(run_id)

    async def retry_run(self, run_id: str, payload: bytes | None = None, key: str | None = None) -> Run:
        """A new run for the work of one that failed or was cancelled, due now, with its attempts counted from the
        start. The finished run stays as it is. `payload`: in place of its own. With a `key`, asking again gives the
        run that was made the first time. Raises StateConflict for one that is not finished, or that completed."""
        check_size("payload", payload, PAYLOAD_BYTES_MAX)
        run = await self.get_run(run_id)
        await require_run(self._store, run)
        if run.state not in RETRIED:
            raise StateConflict(f"run {run_id} is {run.state}; only a failed, cancelled or skipped run can be retried")
        if run.job is not None:
            job = await self._job_of(run)
            if job is None or job.deleted_at is not None:
                raise StateConflict(f"run {run_id}: its job {run.job!r} was deleted")
            return await self._jobs.trigger_job(run.job, payload or run.payload, key, retry_of=run)
        unique_key = None if key is None else retry_key(run.id, key)
        if (found := await self._retried_before(unique_key)) is not None:
            return found
        now = self._clock.now()
        again = fresh_run(replace(run, payload=payload or run.payload), id=uuid7(now, self._entropy(10)), now=now)
        again = replace(again, unique_key=unique_key)
        (again,) = await self.lined_up([await self.holding.said(again, None)])
        told = {again.id: f"run.retry run/{run_id}"}
        of_batch = batch_of(run) is not None
        added = self.batching.again([(run, again)], told) if of_batch else self.add_runs([again], told)
        if (await added)[0]:
            return await self.get_run(again.id) if of_batch else again
        if (found := await self._retried_before(unique_key)) is not None:
            return found
        if of_batch:
            raise StateConflict(f"run {run_id} was done again already, as a run of its batch")
        raise contended(run_id)

    async def _retried_before(self, unique_key: str | None) -> Run | None:
        return None if unique_key is None else await self._store.get_run_by_key(unique_key)

    async def _job_of(self, run: Run) -> Job | None:
        return None if run.job_id is None else (await self._store.get_jobs_by_id([run.job_id]))[0]

    async def heartbeat(self, run_id: str, token: int, progress: bytes | None = None) -> Pulse:
        """Renew a lease; its end is answered as wall time. Raises LeaseLost, or NotFound."""
        check_size("progress", progress, RESULT_BYTES_MAX)
        (pulse,) = await self._store.heartbeat_runs([Beat(run_id, token, progress)], self._clock.steady())
        if pulse is None:
            raise await self._lease_lost(run_id, token)
        return replace(pulse, expires_at=to_wall(self._clock, pulse.expires_at))

    async def _lease_lost(self, run_id: str, token: int) -> HorariumError:
        run = (await self._store.get_runs([run_id]))[0]
        return NotFound(f"there is no run {run_id!r}") if run is None else lease_lost(run, token)


def fresh_run(run: Run, *, id: str, now: Instant) -> Run:
    """The work of a one-off run as a new run, due now."""
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
        policy=without_batch(run.policy),
        concurrency_key=run.concurrency_key,
        concurrency_max=run.concurrency_max,
        rates=run.rates,
        fair=run.fair,
        lease_seconds=run.lease_seconds,
        execution_seconds=run.execution_seconds,
        start_by=None if start_seconds is None else now + to_micros(start_seconds),
    )
