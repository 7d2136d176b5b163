"""Requests about single fire times of a job: skipped, moved, and as their rule has them again.

The override is written with the job, and a run that was planned ahead is withdrawn in the same transaction. A claim
does not raise a job's version, so it may be quicker by a moment: then the run is found, and the override taken back.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from horarium.access.acting import who_acts
from horarium.clock import INSTANT_MAX, Instant, to_datetime, to_instant, to_text
from horarium.errors import AlreadyBegun, InvalidRequest, NoSuchFire
from horarium.model import Job, Plan, Run, State
from horarium.model import run_id as run_id_of
from horarium.model.overrides import OVERRIDES_MAX, REASON_CHARS_MAX, Override
from horarium.operations.bounds.evaluating import evaluate
from horarium.operations.jobs.changes import Changes, Seen, always
from horarium.operations.jobs.grouping import Reach
from horarium.operations.writing.context import Context
from horarium.operations.writing.named import job_named
from horarium.rules.compiled import after_end
from horarium.rules.overridden import of_fire
from horarium.rules.overriding import has_begun, lift, override
from horarium.rules.planning import is_fire_time, needs_unfinished
from horarium.rules.windows import last_in_window, next_in_window
from horarium.triggers.budget import PLAN_STEPS


class Overriding:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context, changes: Changes) -> None:
        self._store, self._clock = context.store, context.clock
        self._changes = changes

    async def page(self, name: str, after: Instant | None, limit: int) -> tuple[list[Override], Instant | None]:
        """The overrides of a job that are in force, by fire time, and where the next page begins. Raises NotFound."""
        job = await job_named(self._store, name)
        found = [each for each in job.overrides if after is None or each.fire_at > after]
        return found[:limit], found[limit - 1].fire_at if len(found) > limit else None

    async def skip(self, name: str, fire_at: datetime, reason: str | None = None) -> Override:
        """The fire time does not run. Raises NotFound, NoSuchFire, AlreadyBegun."""
        return await self._override(name, to_instant(fire_at), None, reason)

    async def move(self, name: str, fire_at: datetime, to: datetime, reason: str | None = None) -> Override:
        """The run of this fire time is due at another instant. Raises NotFound, NoSuchFire, AlreadyBegun."""
        moved_to = to_instant(to)
        if not self._clock.now() < moved_to <= INSTANT_MAX:
            raise InvalidRequest("to: must lie in the future, and before the year 2200", field="to")
        return await self._override(name, to_instant(fire_at), moved_to, reason)

    async def _override(self, name: str, fire_at: Instant, to: Instant | None, reason: str | None) -> Override:
        if reason is not None and len(reason) > REASON_CHARS_MAX:
            raise InvalidRequest(f"reason: at most {REASON_CHARS_MAX:,} characters are kept", field="reason")
        origin = who_acts()
        wanted = Override(fire_at=fire_at, to=to, by="" if origin is None else origin.principal.name, reason=reason)
        run: Run | None = None

        async def decide(seen: Seen) -> Plan | None:
            nonlocal wanted, run
            job, before = seen.job, of_fire(seen.job, fire_at)
            await self._require_fire(job, fire_at)
            run = await self._run(job, fire_at)
            if before is not None and replace(before, at=0, token=0) == replace(wanted, at=0):
                wanted = before
                return None
            if before is None and len(job.overrides) >= OVERRIDES_MAX:
                raise InvalidRequest(f"{OVERRIDES_MAX} fire times of job {name!r} are skipped or moved; edit its rule")
            if has_begun(run, before):
                raise _begun(job, fire_at, run)
            if run is None and before is None and fire_at <= seen.now:
                raise AlreadyBegun(f"the fire time {to_text(fire_at)} of job {name!r} has passed")
            wanted = replace(wanted, at=seen.now)
            return await evaluate(lambda: override(job, wanted, run, seen.now), PLAN_STEPS)

        action = "job.skip" if to is None else "job.move"
        job = await self._changes.change(name, decide, always(Reach.NONE), action)
        there = await self._run(job, fire_at)
        if run is None or there is None or there.state is State.SKIPPED or there.created_at != run.created_at:
            return wanted
        await self._lift(name, fire_at, there)
        raise _begun(job, fire_at, there)

    async def lift(self, name: str, fire_at: datetime) -> Job:
        """The fire time is as its rule has it again; one that has come meanwhile is due at once. Raises NotFound,
        NoSuchFire where it is neither skipped nor moved, AlreadyBegun."""
        return await self._lift(name, to_instant(fire_at))

    async def _lift(self, name: str, fire_at: Instant, quicker: Run | None = None) -> Job:
        """`quicker`: its run, claimed while the override was written, which a plan may have dealt with since."""

        async def decide(seen: Seen) -> Plan | None:
            job, before = seen.job, of_fire(seen.job, fire_at)
            run = quicker or await self._run(job, fire_at)
            if before is None and quicker is None:
                await self._require_fire(job, fire_at)
                if run is not None and (run.finished or has_begun(run, None)):
                    raise _begun(job, fire_at, run)
                text = f"the fire time {to_text(fire_at)} of job {name!r} is neither skipped nor moved"
                raise _no_such_fire(text, await _around(job, fire_at))
            if before is not None and before.done:
                raise _begun(job, fire_at, run)
            return await evaluate(lambda: lift(job, fire_at, run, seen.unfinished, seen.now), PLAN_STEPS)

        async def reach(job: Job) -> Reach:
            return Reach.COUNTED if needs_unfinished(job) and fire_at <= job.planned_until else Reach.NONE

        return await self._changes.change(name, decide, reach, "job.unskip", plan_owed=quicker is None)

    async def _run(self, job: Job, fire_at: Instant) -> Run | None:
        (run,) = await self._store.get_runs([run_id_of(job.id, fire_at)])
        return run

    async def _require_fire(self, job: Job, fire_at: Instant) -> None:
        """Raises NoSuchFire where the rule does not yield this instant."""
        if after_end(job) is not None:
            raise InvalidRequest(f"job {job.name!r} counts from the end of its last run: its fire times are not known")
        if not 0 <= fire_at <= INSTANT_MAX:
            raise NoSuchFire(f"job {job.name!r} has no fire time outside of the years 1970 to 2200")
        if await evaluate(lambda: is_fire_time(job, fire_at), PLAN_STEPS):
            return
        near = await _around(job, fire_at)
        told = " and ".join(to_text(each) for each in near if each is not None) or "none"
        raise _no_such_fire(f"job {job.name!r} has no fire time at {to_text(fire_at)}; those around it: {told}", near)


async def _around(job: Job, fire_at: Instant) -> list[Instant | None]:
    """The last fire time of the rule before an instant, and the first after it."""
    plain = replace(job, overrides=())
    return [
        await evaluate(lambda: last_in_window(plain, 0, fire_at - 1), PLAN_STEPS),
        await evaluate(lambda: next_in_window(plain, fire_at), PLAN_STEPS),
    ]


def _no_such_fire(text: str, near: list[Instant | None]) -> NoSuchFire:
    return NoSuchFire(text, *(None if each is None else to_datetime(each) for each in near))


def _begun(job: Job, fire_at: Instant, run: Run | None) -> AlreadyBegun:
    state = "has been made" if run is None else f"is {run.state}"
    named = "its run" if run is None else f"its run {run.id}"
    return AlreadyBegun(f"the fire time {to_text(fire_at)} of job {job.name!r} can't be changed: {named} {state}")
