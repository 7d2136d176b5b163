"""The one way in which claimed runs are written: settled, rescued, released.

Every end of an attempt comes through here: the collector with what this process performed, workers with what they
report, the rescuer, and a poll whose worker has left. It writes, wakes those that wait for the free slots, adds
follow-ups, reports settled runs, and moves runs that were put back to the queue of their jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from types import MappingProxyType

from msgspec import Struct

from horarium.clock import Instant
from horarium.errors import HorariumError, LeaseLost, NotFound
from horarium.model import CLAIMED, Job, Outcome, Released, Run, RunChange, State, Succeeded
from horarium.operations.settling.batching import BATCHES
from horarium.operations.settling.following import Following
from horarium.operations.settling.rating import Rating
from horarium.operations.settling.reconciling import Reconciler
from horarium.operations.writing.context import RACES_MAX, Context, contended
from horarium.operations.writing.named import jobs_of
from horarium.operations.writing.signalling import JOIN_ENDS, announce_runs
from horarium.ports import BATCH_MAX, CANCEL, queue_topic
from horarium.rules.batches import with_ends
from horarium.rules.chains import with_then
from horarium.rules.settling import settle, was_left_by
from horarium.rules.unbegun import as_claimed, unbegun


class Settlement(Struct, frozen=True):
    """An outcome, reported under the token of the claim."""

    run_id: str
    token: int
    outcome: Outcome


Settled = Callable[[Sequence[Run], Mapping[str, Job]], None]
"""Is called with runs that were written, and the jobs of theirs that are known, by id."""

_state_of = attrgetter("state")


NO_JOBS: Mapping[str, Job] = MappingProxyType({})
ASTRAY_MAX = 1_000
"""Claims that came to nothing, as many as are remembered."""


class Settling:
    """Writes changes of claimed runs."""

    def __init__(
        self,
        context: Context,
        reconciler: Reconciler,
        following: Following,
        settled: Settled = lambda runs, jobs: None,
    ) -> None:
        self._store, self._clock, self._signal = context.store, context.clock, context.signal
        self._reconciler = reconciler
        self._following = following
        self._rating = Rating(context)
        self._settled = settled
        self.astray: deque[tuple[str, int]] = deque(maxlen=ASTRAY_MAX)
        """Claims of this process that were handed to no worker and not put back: by run and token; where no answer
        came, by worker and instant."""

    async def write(self, changes: Sequence[RunChange], jobs: Mapping[str, Job], now: Instant) -> list[bool]:
        """Write these, and all that follows from it. False: the run was not as the change says. One batch, unless what
        follows from one of them depends on whether another is written."""
        known = await self._following.with_missing(changes, jobs)
        if not any(job.on for job in known.values()):
            return await self._write_batch(changes, jobs, now)
        todo, written = dict(enumerate(changes)), dict[int, bool]()
        while todo:
            ready = await self._following.ready(todo, known, now)
            written |= zip(ready, await self._write_batch(list(ready.values()), jobs, now), strict=True)
            todo = {index: change for index, change in todo.items() if index not in ready}
        return [written[index] for index in range(len(changes))]

    async def _write_batch(self, changes: Sequence[RunChange], jobs: Mapping[str, Job], now: Instant) -> list[bool]:
        members = self._following.members
        if members is not None:
            changes = await members.with_ends(changes)
        changes = with_then(with_ends(changes, now), now)
        try:
            written = await self._store.settle_runs(changes, self._clock.steady())
        except BaseException:  # they may have been written all the same
            self._reconciler.look_later(change.run for change in changes)
            raise
        done = [change.run for change in compress(changes, written)]
        self._settled(done, jobs)
        pending = State.PENDING
        room = [run for run in done if run.state is pending or run.serial or run.concurrency_key is not None]
        for queue in sorted({run.queue for run in room}):
            self._signal.publish(queue_topic(queue))
        if followed := [change.follow_ups for change in changes if change.follow_ups]:
            announce_runs(self._signal, chain.from_iterable(followed))
        if State.CANCELLING in set(map(_state_of, done)):
            self._signal.publish(CANCEL)
        if [run for run in done if run.policy is not None and run.policy.batch is not None]:
            self._signal.publish(BATCHES)
        if members is not None and members.known.intersection([run.job for run in done]):
            self._signal.publish(JOIN_ENDS)
        await self._after_room(room)
        return written

    async def _after_room(self, runs: Sequence[Run]) -> None:
        """What follows where these have left their places, and perhaps wait again: the same, if it is done twice."""
        if runs:
            await self._rating.shut(runs)
            await self._reconciler.after_put_back(runs)

    async def give_turns(self, runs: Sequence[Run], jobs: Mapping[str, Job], now: Instant) -> None:
        """Give these runs, which wait and have fallen due, the turns of their keys."""
        placed = await self._rating.lined_up(runs) if runs else []
        changes = [
            RunChange(after, run.token, run.state) for run, after in zip(runs, placed, strict=True) if after != run
        ]
        await self.write(changes, jobs, now)

    async def release(self, runs: Sequence[Run], jobs: Mapping[str, Job], reason: str) -> None:
        """Give claimed runs back that were not begun."""
        now = self._clock.now()
        outcome = Released(reason)
        changes = [
            RunChange(settle(run, jobs.get(run.job_id or ""), outcome, now), run.token, run.state) for run in runs
        ]
        await self.write(changes, jobs, now)

    async def never_begun(self, claims: Sequence[Run], jobs: Mapping[str, Job]) -> None:
        """These claims are lost, and their work was not begun: give their attempts back, as far as nothing has happened
        since."""
        now = self._clock.now()
        stored = await self._store.get_runs([run.id for run in claims])
        changes = []
        for claim, run in zip(claims, stored, strict=True):
            after = None if run is None else unbegun(run, claim.token, jobs.get(run.job_id or ""), now)
            if run is not None and after is not None:
                changes.append(RunChange(after, run.token, run.state))
        await self.write(changes, jobs, now)

    async def settle_one(self, settlement: Settlement) -> Run:
        """Settle one claimed run. Raises LeaseLost or NotFound, and then nothing was written."""
        (settled,) = await self.settle([settlement])
        if isinstance(settled, HorariumError):
            raise settled
        return settled

    async def settle(self, settlements: Sequence[Settlement]) -> list[Run | HorariumError]:
        """Settle many claimed runs in one go. For each the run as it then is, or the error that applies. A report that
        is repeated is answered as it was the first time."""
        if len(settlements) == 1 and (settled := await self._settle_at_once(settlements[0])) is not None:
            return [settled]
        answers: dict[int, Run | HorariumError] = {}
        for start in range(0, len(settlements), BATCH_MAX):
            todo = dict(enumerate(settlements[start : start + BATCH_MAX], start))
            for _ in range(RACES_MAX):
                if not todo:
                    break
                await self._settle_round(todo, answers)
            for index in todo:
                answers[index] = contended(settlements[index].run_id)
        return [answers[index] for index in range(len(settlements))]

    async def _settle_at_once(self, settlement: Settlement) -> Run | None:
        """The run, if it is claimed under this token, nothing follows from it and it is written: the usual case.
        None: nothing was written, and the reason is to be found."""
        (run,) = await self._store.get_runs((settlement.run_id,))
        if run is None:
            return None
        jobs = NO_JOBS if run.job_id is None else await jobs_of(self._store, (run,))
        job, now = jobs.get(run.job_id or ""), self._clock.now()
        if (job is not None and job.on) or not holds(run, settlement.token):
            return None
        change = RunChange(settle(run, job, settlement.outcome, now), run.token, run.state)
        return change.run if (await self._write_batch([change], jobs, now))[0] else None

    async def _settle_round(self, todo: dict[int, Settlement], answers: dict[int, Run | HorariumError]) -> None:
        """Read the runs, decide, write. Changes that were written or refused leave `todo`; those that lost a race stay
        in it."""
        runs = await self._store.get_runs([settlement.run_id for settlement in todo.values()])
        jobs = await jobs_of(self._store, (run for run in runs if run is not None))
        now = self._clock.now()
        changes, again = dict[int, RunChange](), list[Run]()
        for (index, settlement), run in zip(list(todo.items()), runs, strict=True):
            job = None if run is None else jobs.get(run.job_id or "")
            claimed = None if run is None else claim_of(run, settlement.token, job)
            if run is None or claimed is None:
                answers[index] = answer_to(settlement, run)
                if run is not None and run.token == settlement.token and run.state is State.PENDING:
                    again.append(run)
                del todo[index]
                continue
            outcome = settlement.outcome
            after, unmoved = settle(claimed, job, outcome, now), claimed is run and type(outcome) is Succeeded
            changes[index] = RunChange(after, run.token, run.state, as_claimed=unmoved)
        await self._after_room(again)  # what followed from the first report may have met an outage
        written = await self.write(list(changes.values()), jobs, now)
        for (index, change), done in zip(changes.items(), written, strict=True):
            if done:
                answers[index] = change.run
                del todo[index]


def answer_to(settlement: Settlement, run: Run | None) -> Run | HorariumError:
    """The answer to a report that changes nothing: the run, if it is as this very report left it; else why not."""
    if run is None:
        return NotFound(f"there is no run {settlement.run_id!r}")
    return run if was_left_by(run, settlement.token, settlement.outcome) else lease_lost(run, settlement.token)


def holds(run: Run, token: int) -> bool:
    """Whether the claim under this token is the present one."""
    return run.state in CLAIMED and run.token == token


def claim_of(run: Run, token: int, job: Job | None) -> Run | None:
    """The run under the claim of this token, if no other was made: also one whose lease has ended, or that a rescuer
    has put back since. Else None."""
    return run if holds(run, token) else as_claimed(run, token, job)


def lease_lost(run: Run, token: int) -> LeaseLost:
    """The answer to a worker that reports under this token."""
    if run.token == token and run.finished:
        return LeaseLost(f"run {run.id} is {run.state} already; this report changed nothing")
    what = f"is lost: the run is {run.state} under token {run.token}"
    if holds(run, token):
        what = "has ended with the time limit of the attempt"
    return LeaseLost(
        f"the lease on run {run.id} under token {token} {what}; stop working on it, this report changed nothing"
    )
