"""Fire times that were missed and about which a person is asked, and their dispositions.

They are kept in the job, so that a plan, a decision and an edit can't miss one another: each writes the job under the
version that it read. A stretch is a range of fire times that would else have been dropped as one row. It gets its rows
when the question is over: by a decision, by the end of its time, or since the job asks no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import Instant, to_micros, to_text
from horarium.model import Cause, Disposition, Event, EventKind, Job, Run, State, run_id
from horarium.model.missed import STRETCHES_MAX, Missed, Rule, Stretch
from horarium.model.records import Record
from horarium.policies import CatchUpPolicy
from horarium.rules.approving import said
from horarium.rules.asking import Question
from horarium.rules.catching_up import CATCH_UP_RUNS_MAX
from horarium.rules.overridden import Dropped, Owed, one
from horarium.rules.windows import dropped_ranges, newest_in_window

_RUNS_MAX = {CatchUpPolicy.NONE: 0, CatchUpPolicy.LATEST: 1, CatchUpPolicy.ALL: CATCH_UP_RUNS_MAX}


class Settled(NamedTuple):
    """The job without its question, and what becomes of the fire times. `apart`: instants that no range may cover or
    meet; `event`: what their histories say."""

    job: Job
    owed: list[Owed]
    dropped: list[Dropped]
    apart: list[Instant]
    event: Event

    def told(self, row: Run) -> Run:
        """The row, whose history tells the decision."""
        return replace(row, history=(replace(self.event, state=row.state), *row.history))


# ---- the question -----------------------------------------------------------------------------------------------


def over_at(job: Job) -> Instant | None:
    """When the question of a job is over; None: it has none."""
    missed = job.missed
    if missed is None or is_asked(job):
        return None if missed is None else missed.expires_at
    return missed.asked_at if missed.decision is None else missed.decided_at


def is_asked(job: Job) -> bool:
    """Whether a decision about it is waited for, or has been in vain."""
    return job.missed is not None and job.missed.decision is None and job.catch_up.policy is CatchUpPolicy.ASK


def asked_more(job: Job, ranges: Sequence[Dropped], now: Instant) -> tuple[Job, list[Dropped], tuple[Record, ...]]:
    """The job with these fire times among those that it asks about, the ranges that this is too much for, and the
    record that leads to a new question."""
    if not ranges:
        return job, [], ()
    found = tuple(Stretch(each.first, each.last, each.fires) for each in sorted(ranges))
    within = job.catch_up.within_seconds
    assert isinstance(within, float | int), "a job that asks says how long"
    missed = job.missed or Missed(run_id(job.id, found[0].first), now, now + to_micros(within), ())
    stretches = (*missed.stretches, *found)
    beyond = f"catch_up: ask; a question is about the newest {STRETCHES_MAX} stretches"
    given_up = [
        Dropped(each.first, each.last, each.fires, Disposition.MISSED, beyond) for each in stretches[:-STRETCHES_MAX]
    ]
    record = Question(missed.id, missed.expires_at, job_id=job.id).record
    changed = replace(job, missed=replace(missed, stretches=stretches[-STRETCHES_MAX:]))
    return changed, given_up, () if job.missed is not None else (record,)


def decided(job: Job, policy: CatchUpPolicy, by: str, reason: str | None, now: Instant) -> Job:
    """The job, the question of which is over, to be planned next."""
    assert job.missed is not None, "it has a question"
    return replace(job, missed=replace(job.missed, decision=policy, by=by, reason=reason, decided_at=now))


def pinned(job: Job, changed: Job) -> Job:
    """The job that takes the place of this one: its question is about fire times of the rule of then."""
    missed = job.missed
    if missed is None:
        return changed
    rule = Rule(job.trigger, job.anchor_at, job.starts_at, job.ends_at)
    stretches = tuple(each if each.rule is not None else replace(each, rule=rule) for each in missed.stretches)
    return replace(changed, missed=replace(missed, stretches=stretches))


def back_at(job: Job, now: Instant) -> Job:
    """The job, planned up to now at most by a clock that had been ahead: what that asked about is not asked, and the
    cursor lies before it."""
    missed = job.missed
    early = [] if missed is None else [each for each in missed.stretches if each.last > now]
    if missed is None or not early:
        return replace(job, planned_until=now)
    kept = tuple(each for each in missed.stretches if each not in early)
    left = replace(missed, stretches=kept) if kept else None
    return replace(job, missed=left, planned_until=min(now, *(each.first - 1 for each in early)))


def as_run(job: Job) -> Run:
    """The question of a job as though it were a run that waits: of such a one it has all but a row."""
    assert job.missed is not None, "it has a question"
    missed, first = job.missed, job.missed.stretches[0].first
    text = f"{missed.fires:,} missed; what becomes of them waits for a decision until {to_text(missed.expires_at)}"
    return Run(
        id=missed.id,
        queue=job.queue,
        job_id=job.id,
        job=job.name,
        fire_at=first,
        due_at=missed.expires_at,
        created_at=missed.asked_at,
        cause=Cause.CATCH_UP,
        fires=missed.fires,
        last_fire_at=missed.stretches[-1].last,
        history=(Event(missed.asked_at, State.PENDING, text, EventKind.ASKED),),
    )


def waits(job: Job, at: Instant) -> bool:
    """Whether a fire time is among those that are asked about."""
    return job.missed is not None and any(each.first <= at <= each.last for each in job.missed.stretches)


# ---- its end ----------------------------------------------------------------------------------------------------


def settled(job: Job, now: Instant, unfinished: Sequence[Run], ran: Sequence[Instant]) -> Settled | None:
    """What becomes of the fire times that a job asks about; None: that is to be waited for. `ran`: those that have a
    row all the same (of a backfill)."""
    over, missed = over_at(job), job.missed
    if missed is None or over is None or over > now:
        return None
    taken = sorted({run.fire_at for run in unfinished}.union(ran))
    policy, event = _verdict(job, missed, now)
    room = _RUNS_MAX[policy]
    if job.fires_max is not None:
        room = max(0, min(room, job.fires_max - job.fires_count))
    owed: list[Owed] = []
    dropped: list[Dropped] = []
    reason = f"catch_up: {event.message}"
    for stretch in reversed(missed.stretches):
        ruled = _as_ruled(job, stretch)
        after, until = stretch.first - 1, stretch.last
        within = [fire for fire in taken if after < fire <= until]
        left = room - len(owed)
        if stretch.first == until:  # one that was moved need not be in the rule any more
            found = [until] if left else []
        else:
            found = newest_in_window(ruled, after, until, left + len(within)) if left else []
        kept = [fire for fire in found if fire not in within][-left:] if left else []
        owed = [*(Owed(fire, Cause.CATCH_UP) for fire in kept), *owed]
        until = kept[0] - 1 if kept else until
        if stretch.first == stretch.last:
            dropped += [] if kept or within else [one(until, Disposition.MISSED, reason)]
        else:
            dropped += dropped_ranges(ruled, after, until, Disposition.MISSED, reason, within)
    apart = sorted({*taken, *(each.first for each in missed.stretches)})
    return Settled(replace(job, missed=None), owed, dropped, apart, event)


def given_up(job: Job, reason: str, ran: Sequence[Instant]) -> list[Dropped]:
    """All of them, of a job that ends. `ran`: as in `settled`, ascending."""
    dropped: list[Dropped] = []
    for stretch in () if job.missed is None else job.missed.stretches:
        within = [fire for fire in ran if stretch.first <= fire <= stretch.last]
        if not within:
            dropped.append(Dropped(stretch.first, stretch.last, stretch.fires, Disposition.MISSED, reason))
        elif stretch.first < stretch.last:
            ruled = _as_ruled(job, stretch)
            dropped += dropped_ranges(ruled, stretch.first - 1, stretch.last, Disposition.MISSED, reason, within)
    return dropped


def _verdict(job: Job, missed: Missed, now: Instant) -> tuple[CatchUpPolicy, Event]:
    if missed.decision is not None:
        text = said(f"{missed.decision}, decided", missed.by, missed.reason)
        return missed.decision, Event(now, State.PENDING, text, EventKind.DECIDED)
    if job.catch_up.policy is not CatchUpPolicy.ASK:
        return job.catch_up.policy, Event(now, State.PENDING, f"{job.catch_up.policy}", EventKind.DECIDED)
    then = CatchUpPolicy(str(job.catch_up.then))
    text = f"{then}, since there was no decision until {to_text(missed.expires_at)}"
    return then, Event(now, State.PENDING, text, EventKind.EXPIRED)


def _as_ruled(job: Job, stretch: Stretch) -> Job:
    """The job by the rule of then. Fire times that a person skipped or moved are in no stretch."""
    job, rule = replace(job, overrides=()), stretch.rule
    if rule is None:
        return job
    return replace(job, trigger=rule.trigger, anchor_at=rule.anchor_at, starts_at=rule.starts_at, ends_at=rule.ends_at)
