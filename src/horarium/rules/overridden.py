"""Fire times that a person skipped or moved: what a plan makes of them (docs/overrides.md).

An override is kept in the job, so that a plan and a change of it can't miss one another: both write the job under the
version that they read. The rule's fire times are asked for without those that are overridden (`rules.windows`); these
are settled here, each when it falls due and never ahead of that: so it can be taken back up to its very instant, and a
moved run obeys the policies of the moment at which it is to begin. A moved run keeps the fire time of its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros, to_text
from horarium.model import Cause, Disposition, Event, Job, Run, State, due_then
from horarium.model.overrides import Override
from horarium.policies import CatchUpPolicy

MISFIRE_GRACE = 2 * SECOND
"""A fire time planned within this of its instant is on time: no scheduler is exact, and a pause is no downtime."""


class Owed(NamedTuple):
    """A fire time that is to run, and why. `moved`: by which override it is due at another instant.
    `payload`: that of the run, where it has one of its own."""

    fire_at: Instant
    cause: Cause
    moved: Override | None = None
    payload: bytes | None = None

    @property
    def due_at(self) -> Instant:
        return self.fire_at if self.moved is None else self.moved.due_at

    @property
    def said(self) -> str:
        """That it was moved, at the end of a sentence."""
        return "" if self.moved is None else f"; {said(self.moved)}"


class Dropped(NamedTuple):
    """A range of fire times that are not to run."""

    first: Instant
    last: Instant
    fires: int
    disposition: Disposition
    reason: str


class Settled(NamedTuple):
    """What became of the overrides that fell due: those to run, those that don't, all that were dealt with, and of them
    those that a person is asked about."""

    owed: list[Owed]
    dropped: list[Dropped]
    overrides: list[Override]
    asked: list[Dropped]

    def dropped_by(self, until: Instant) -> list[Dropped]:
        """Of a plan whose cursor stops there: the rest is dealt with by another, or is owed no more."""
        skips = Disposition.SKIPPED_OVERRIDE
        return [each for each in self.dropped if each.first <= until or each.disposition is not skips]


def of_fire(job: Job, fire_at: Instant) -> Override | None:
    """The override of this fire time."""
    return next((each for each in job.overrides if each.fire_at == fire_at), None)


def moved_to(job: Job, instant: Instant) -> list[Override]:
    """The overrides by which the job runs at this instant, beside a fire time of its rule there may be."""
    return [each for each in job.overrides if each.to == instant and not each.done]


def with_moves(job: Job, fires: Iterable[Instant]) -> list[tuple[Instant, Override | None]]:
    """Instants at which the job runs, each with the override by which it does; None: by its rule."""
    left, found = [each for each in job.overrides if not each.done], list[tuple[Instant, Override | None]]()
    for fire in fires:
        moved = next((each for each in left if each.to == fire), None)
        left = left if moved is None else [each for each in left if each is not moved]
        found.append((fire, moved))
    return found


def next_due(job: Job) -> Instant | None:
    """When the next override of a job falls due."""
    return min((each.due_at for each in job.overrides if not each.done), default=None) if job.overrides else None


def moves(job: Job, after: Instant, until: Instant) -> list[Instant]:
    """The instants in (after, until] to which fire times were moved, ascending."""
    return sorted(
        each.to for each in job.overrides if each.to is not None and not each.done and after < each.to <= until
    )


def settled(
    job: Job, now: Instant, owed: Iterable[Owed], skipped: Sequence[tuple[Instant, Instant, str]] = ()
) -> Settled:
    """The outcome of the overrides that have fallen due. `owed`: the runs beside them; `skipped`: stretches of holds
    whose fire times do not run, and why. One that is late (nothing planned at its instant) is caught up on as the
    policy says, as any other fire time."""
    if not job.overrides:
        return Settled([], [], [], [])
    due = sorted((each for each in job.overrides if not each.done and each.due_at <= now), key=lambda each: each.due_at)
    held = {each.fire_at: why for each in due for begin, end, why in skipped if begin <= (each.to or -1) < end}
    if job.fires_max is not None:
        room = max(0, job.fires_max - job.fires_count)
        run = [each for each in due if each.to is not None and each.fire_at not in held]
        beyond = {each.fire_at for each in run[room:]}
        due = [each for each in due if each.fire_at not in beyond]
    newest = max([*(each.due_at for each in owed), *(each.due_at for each in due)], default=now)
    found = Settled([], [], due, [])
    for each in due:
        if each.to is None:
            found.dropped.append(one(each.fire_at, Disposition.SKIPPED_OVERRIDE, said(each)))
        elif each.fire_at in held:
            found.dropped.append(one(each.fire_at, Disposition.HELD, f"{held[each.fire_at]}; {said(each)}"))
        elif each.to > now - MISFIRE_GRACE:
            found.owed.append(Owed(each.fire_at, Cause.SCHEDULE, each))
        elif _is_given_up(job, each.to, newest, now):
            why = f"catch_up: {job.catch_up.policy}; {said(each)}"
            found.dropped.append(one(each.fire_at, Disposition.MISSED, why))
        elif job.catch_up.policy is CatchUpPolicy.ASK:
            found.asked.append(one(each.fire_at, Disposition.MISSED, said(each)))
        else:
            found.owed.append(Owed(each.fire_at, Cause.CATCH_UP, each))
    return found


def _is_given_up(job: Job, to: Instant, newest: Instant, now: Instant) -> bool:
    window = job.catch_up.window_seconds
    if job.catch_up.policy is CatchUpPolicy.NONE or (window is not None and to < now - to_micros(window)):
        return True
    return job.catch_up.policy is CatchUpPolicy.LATEST and newest > to


def left(job: Job, dealt_with: Sequence[Override], planned_until: Instant) -> tuple[Override, ...]:
    """The overrides that stay with a job that is planned up to there. Of a run that was made before its fire time this
    has to be known until the cursor has passed it. One that is skipped is dealt with by the plan that passes it."""
    done = {each.fire_at for each in dealt_with if each.to is not None or each.fire_at <= planned_until}
    kept = (replace(each, done=True) if each.fire_at in done else each for each in job.overrides)
    return tuple(each for each in kept if not each.done or each.fire_at > planned_until)


def passed_by(job: Job, now: Instant) -> Settled:
    """The same for a job that stood still up to now: nothing of it runs."""
    disposition, reason = stood_still(job)
    due = [each for each in job.overrides if not each.done and each.due_at <= now]
    dropped = [
        one(each.fire_at, Disposition.SKIPPED_OVERRIDE, said(each))
        if each.to is None
        else one(each.fire_at, disposition, f"{reason}; {said(each)}")
        for each in due
    ]
    return Settled([], dropped, due, [])


def stood_still(job: Job) -> tuple[Disposition, str]:
    """What fire times come to that pass while a job is paused, or that passed under a hold under which it is changed,
    and why, in words."""
    if job.enabled:
        return Disposition.HELD, "a hold lay over it when it was changed"
    return Disposition.SKIPPED_PAUSED, f"paused: {job.pause_reason or 'by hand'}"


def one(fire_at: Instant, disposition: Disposition, reason: str) -> Dropped:
    """A single fire time that does not run."""
    return Dropped(fire_at, fire_at, 1, disposition, reason)


def as_moved(run: Run, override: Override) -> Run:
    """The run of a fire time that was moved. A limit for its start moves along."""
    assert override.to is not None, "a run is made of a fire time that was moved, not of one that is skipped"
    due_at = max(override.to, run.created_at) if run.cause is Cause.CATCH_UP else override.to
    said_so = Event(override.to, State.PENDING, said(override), override=override)
    return replace(due_then(run, due_at), token=override.token, history=(*run.history, said_so))


def run_moved_to(run: Run) -> Instant | None:
    """Where the run's fire time was moved to; None: it was not moved."""
    return next((event.override.to for event in run.history if event.override is not None), None)


def back_in_force(job: Job, rows: Sequence[Run]) -> tuple[Override, ...]:
    """The overrides of a job, with those of these rows of it that go."""
    found = [event.override for run in rows for event in run.history if event.override is not None]
    kept = {each.fire_at: each for each in job.overrides}
    kept.update((each.fire_at, each) for each in found if not each.joined)
    kept.update((each.fire_at, each) for each in job.overrides if not each.done)
    return tuple(kept[fire_at] for fire_at in sorted(kept))


def said(override: Override) -> str:
    """What was decided, by whom and why, in words."""
    if override.joined:
        return override.reason or ""
    what = "skipped" if override.to is None else f"moved from {to_text(override.fire_at)} to {to_text(override.to)}"
    by = f" by {override.by}" if override.by else ""
    why = f", because: {override.reason}" if override.reason else ""
    return f"{what}{by}{why}"
