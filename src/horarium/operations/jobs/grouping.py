"""Changes of one job take turns: those that gather while one is being written are decided one after the other, each on
what the one before makes of the job, and written together.

Callers that patch, pause or trigger one job at the same time pay for one read and one write in common, and none of them
loses a race against another one of the same process. Each has a version and an entry in the audit of its own, as if
they had been written one by one. Where another process was quicker, the next try is for half as many, after a pause.

A run by hand under a policy that ends others finds that of the one before it, pending and not yet stored: it enters the
store as ended, with all that follows from its end. What the first of them asked of stored runs is not asked again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import UNFINISHED, Job, Plan, Run, RunChange, State
from horarium.model.records import Record
from horarium.operations.jobs.versions import LastKept
from horarium.operations.settling.reconciling import Changed
from horarium.operations.writing.context import RACES_MAX, Entropy, contended, pause_after
from horarium.ports import BATCH_MAX
from horarium.rules.following import looks_back
from horarium.rules.planning import ENDS_OTHERS
from horarium.rules.reconciling import look_from

GROUP_MAX = 100
"""Changes of one job that are written together."""


BYTES_MAX = 2_000_000
"""The size of runs and records of one group, but for the last change of it."""


class Reach(Enum):
    """Which unfinished runs of the job a change looks at."""

    NONE = "none"
    AHEAD = "ahead"
    """Those of fire times that lie ahead."""
    SOME = "some"
    """Those ahead, and all the rest if one page has them; if not, they are left for later (`rules.applying`)."""
    COUNTED = "counted"
    """As many as the overlap policy counts."""
    ALL = "all"


ALONE = frozenset({Reach.SOME, Reach.ALL})
"""A change that looks at that many runs is decided on the stored ones, and written by itself."""


class Group:
    """A group's state: the job as it is to be so far, and reads for one change that serve the others. `touched`: the
    first of it changes stored runs."""

    def __init__(self, job: Job, now: Instant) -> None:
        self.job = job
        self.now = now
        self.unfinished: dict[Reach, list[Run]] = {}
        self.taken: set[Instant] = set()
        self.free: set[Instant] = set()
        self.kept = LastKept()
        self.changed = False
        self.touched = False
        self.weight = 0
        self.closed = False
        self._made: dict[str, Run] = {}
        self._stored: dict[str, Run] = {}
        self._plans: list[Plan] = []

    def fit(self, planned: Plan) -> Plan | None:
        """The plan as it goes with those before it: the end of a run that the group makes is put into that run, what
        follows from it is added beside. None: it has to be the first of its group."""
        if not self.changed or not (self.touched or touches_runs(planned)):
            return planned
        if not _adds_only(planned, self.job) or not all(map(self._is_made, planned.changes)):
            return None
        if any(looks_back(planned.job, change.run, change.state, self.now) for change in planned.changes):
            return None
        followed = [run for change in planned.changes for run in change.follow_ups]
        if len(self._made) + len(planned.runs) + len(followed) > BATCH_MAX:
            return None
        told = {change.run.id: change.records for change in planned.changes if change.records}
        runs = (*planned.runs, *followed)
        return replace(planned, runs=runs, along={**planned.along, **told})

    def take(self, planned: Plan, after: Job) -> Plan:
        """Go on from this plan, which fits. The rest of it for the store beside that of the others."""
        before, first = self.job, not self.changed
        self.job = after
        self.changed = True
        self._made.update((run.id, run) for run in planned.runs if run.id not in self._made)
        self.taken.update(run.fire_at for run in planned.runs if run.job_id == after.id)
        self.weight += _weight_of(planned)
        if first:
            self.touched = touches_runs(planned)
            self._stored = {change.run.id: change.run for change in planned.changes}
            self.closed = self.touched and not _adds_only(planned, before)
        else:
            self._made.update((change.run.id, change.run) for change in planned.changes)
            planned = replace(planned, changes=())
        self.closed = self.closed or self.weight > BYTES_MAX or after.deleted_at is not None
        self._plans.append(planned)
        return planned

    def as_one(self) -> Plan | None:
        """All that was decided; None: there is nothing to change."""
        if len(self._plans) < 2:
            return self._plans[0] if self._plans else None
        along: dict[str, tuple[Record, ...]] = {}
        for run_id, records in (each for planned in self._plans for each in planned.along.items()):
            along[run_id] = (*along.get(run_id, ()), *records)
        first, last = self._plans[0], self._plans[-1]
        return Plan(
            replace(last.job, version=first.job.version),
            tuple(self._made.values()),
            first.changes,
            records=tuple(record for planned in self._plans for record in planned.records),
            along=along,
            versions=len(self._plans),
        )

    def with_key(self, unique_key: str) -> Run | None:
        """The run that the group makes under this key."""
        return next((run for run in self._made.values() if run.unique_key == unique_key), None)

    def seen(self, reach: Reach) -> list[Run]:
        """The runs read for this reach, and those that the group made since, each as the group leaves it."""
        if reach is Reach.NONE:
            return []
        since = self.now + 1 if reach is Reach.AHEAD else 0
        runs = [run for run in self._made.values() if run.job_id == self.job.id and run.fire_at >= since]
        if self._stored:
            runs += (self._stored.get(run.id, run) for run in self.unfinished[reach])
            return [run for run in runs if run.state in UNFINISHED]
        return [*self.unfinished[reach], *(run for run in runs if run.state in UNFINISHED)]

    def _is_made(self, change: RunChange) -> bool:
        """Whether it ends a run that the group makes. What follows from the end of one that has a unique key is left
        out: such a run may yet turn out to be there already."""
        made = self._made.get(change.run.id)
        fresh = made is not None and made.state is change.state is State.PENDING
        return fresh and change.run.finished and not (change.follow_ups and change.run.unique_key is not None)


def _weight_of(planned: Plan) -> int:
    records = sum(len(record.body) for record in planned.records)
    return records + sum(len(run.payload or b"") for run in planned.runs)


def touches_runs(planned: Plan) -> bool:
    """Whether it changes runs that are there, or takes any out."""
    return bool(planned.changes or planned.withdrawals)


def _adds_only(planned: Plan, job: Job) -> bool:
    """Whether it leaves the job as it is, and makes runs that end those before them. The result of such a plan is known
    even if a claim is quicker: a run claimed meanwhile is ended by the look that comes after."""
    return planned.job == job and not planned.withdrawals and job.overlap in ENDS_OTHERS


Step = Changed
"""One change, decided."""


class PendingChange(Struct, eq=False):
    """One change that waits for its turn. `context`: that of its caller, who is the one that acts. `owed`: fire times
    that are owed by now are planned first."""

    decide: Callable[[Group], Awaitable[Step | None]]
    owed: bool
    context: Context
    answer: asyncio.Future[Step]


Read = Callable[[str, bool], Awaitable[Group | None]]
"""The job of that name, with nothing owed; None: another one was quicker to plan it."""
Commit = Callable[[Plan, Instant], Awaitable[bool]]
Look = Callable[[Sequence[Changed]], Awaitable[None]]
"""What follows for the job's runs from changes that were written together."""


class Grouping:
    """Writes the changes of each job, a group at a time."""

    def __init__(self, read: Read, commit: Commit, look: Look, entropy: Entropy) -> None:
        self._read = read
        self._commit = commit
        self._look = look
        self._entropy = entropy
        self._asked: dict[str, deque[PendingChange]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def take(self, name: str, decide: Callable[[Group], Awaitable[Step | None]], owed: bool) -> Step:
        """The result of the change. `decide` may be called again; None: it has to be the first of its group."""
        asked = PendingChange(decide, owed, copy_context(), asyncio.get_running_loop().create_future())
        if name in self._asked:
            self._asked[name].append(asked)
        else:
            self._asked[name] = deque([asked])
            self._begin(self._write_all(name))
        return await asked.answer

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_all(self, name: str) -> None:
        waiting = self._asked[name]
        race = 0
        try:
            while waiting:
                group = _next_group(waiting, max(1, GROUP_MAX >> race))
                try:
                    left = await self._write(name, group)
                except Exception as error:
                    _fail(group, error)
                    race = 0
                    continue
                race = race + 1 if group and len(left) == len(group) else 0
                if race == RACES_MAX:
                    _fail(left[:1], contended(name))
                    left, race = left[1:], 0
                waiting.extendleft(reversed(left))
                if race:
                    await pause_after(race, self._entropy)
        finally:
            del self._asked[name]
            for asked in waiting:
                asked.answer.cancel()

    async def _write(self, name: str, group: Sequence[PendingChange]) -> list[PendingChange]:
        """Decide and write. Those that are left for another try."""
        try:
            return await self._decide_and_commit(name, group)
        except asyncio.CancelledError:
            for asked in group:
                asked.answer.cancel()
            raise

    async def _decide_and_commit(self, name: str, group: Sequence[PendingChange]) -> list[PendingChange]:
        if not group:
            return []
        together = await self._read(name, group[0].owed)
        if together is None:
            return list(group)
        decided: list[tuple[PendingChange, Step]] = []
        left = deque(group)
        while left and not together.closed:
            try:
                step = await asyncio.create_task(_decided(left[0], together), context=left[0].context)
            except Exception as error:
                _fail([left.popleft()], error)
                continue
            if step is None:
                break
            decided.append((left.popleft(), step))
        planned = together.as_one()
        if planned is not None and not await self._commit(planned, together.now):
            return list(group)
        looked = [(asked, step) for asked, step in decided if look_from(*step) is not None]
        if looked:
            self._begin(self._look_and_answer(looked))
        _answer([(asked, step) for asked, step in decided if look_from(*step) is None])
        return list(left)

    async def _look_and_answer(self, decided: Sequence[tuple[PendingChange, Step]]) -> None:
        """One look for all of them, even if their callers are gone: a write has to be followed by it."""
        try:
            await self._look([step for _, step in decided])
        except Exception as error:
            _fail([asked for asked, _ in decided], error)
        except BaseException:
            for asked, _ in decided:
                asked.answer.cancel()
            raise
        _answer(decided)


async def _decided(asked: PendingChange, together: Group) -> Step | None:
    step = await asked.decide(together)
    if step is None or step.planned is None:
        return step
    return step._replace(planned=together.take(step.planned, step.after))


def _next_group(waiting: deque[PendingChange], count: int) -> list[PendingChange]:
    """Those that come next and may be decided together. Those whose callers are gone are left out."""
    group: list[PendingChange] = []
    while waiting and len(group) < count and (not group or waiting[0].owed == group[0].owed):
        asked = waiting.popleft()
        if not asked.answer.done():
            group.append(asked)
    return group


def _answer(decided: Sequence[tuple[PendingChange, Step]]) -> None:
    for asked, step in decided:
        if not asked.answer.done():
            asked.answer.set_result(step)


def _fail(group: Sequence[PendingChange], error: Exception) -> None:
    for asked in group:
        if not asked.answer.done():
            asked.answer.set_exception(error)


__all__ = ["ALONE", "Group", "Grouping", "Reach", "Step"]
