"""Why a job ran, did not run, will run or will not run at an instant.

What happened is in the run, if there is one. All else follows from the rule, the job's window and its pauses, and is
worked out here, never stored: `excluded`, `dst_gap` and `limit_reached` are dispositions that no row has.

Why a rule does not fire at an instant is found from outside, by asking it: it is asked without its exclusions, without
the gap of the clock, and on which days it fires at all. So it holds for every trigger, and for those that others add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from horarium.clock import DAY, INSTANT_MAX, MINUTE, SECOND, Instant, to_text
from horarium.errors import HorariumError, TooExpensive
from horarium.model import UNFINISHED, Cause, Disposition, EventKind, Job, Run, State
from horarium.model.holds import HeldMissed, Hold
from horarium.rules.approving import is_waiting, last_word
from horarium.rules.compiled import trigger_of
from horarium.rules.foreseeing import gap_policy, with_gap
from horarium.rules.holds import hold_at, hold_on, owed_at, reason_of, words_of_hold
from horarium.rules.missed import as_run, waits
from horarium.rules.overridden import moved_to, of_fire, said
from horarium.rules.windows import words_of_limit
from horarium.triggers import Trigger, parse_trigger
from horarium.triggers.budget import PLAN_STEPS, limited
from horarium.triggers.business import BusinessDay
from horarium.triggers.compose import Except, meaning_of, zone_of
from horarium.triggers.words import MONTHS, WEEKDAYS, say_list
from horarium.triggers.zones import Gap, Repeat, Zone, get_zone

EXPLAIN_STEPS = 2 * PLAN_STEPS
"""For one explanation, or a list of them."""
DAYS_LOOKED_AT = 40
"""On how many of its days a rule is looked at, to say what they have in common."""
FEW_DAYS = 5
"""Days of the month are named one by one up to this number."""


class Explanation(NamedTuple):
    """`fires`: whether the job ran, runs or will run for this instant. `previous` and `next`: the fire times of its
    rule around it. `missing`: the jobs for whose runs its window waits, or waited in vain."""

    at: Instant
    fires: bool
    reason: str
    disposition: Disposition | None = None
    run: Run | None = None
    previous: Instant | None = None
    next: Instant | None = None
    missing: tuple[str, ...] = ()


def explain(job: Job, at: Instant, now: Instant, run: Run | None) -> Explanation:
    """`job`: as it was at the instant. `run`: the one for this instant, or the skipped one that covers it."""
    with limited(EXPLAIN_STEPS):
        before, after = _around(job, at)
        overridden = _overridden(job, at, now) if job.overrides and run is None else None
        told = from_run(run, now) if run is not None else overridden or _from_rule(job, at, now)
    return told._replace(at=at, run=run, previous=before, next=after)


def candidates(job: Job, after: Instant, until: Instant, limit: int) -> list[Instant]:
    """Fire times of the job's rule in (after, until], those that it excludes too; the first `limit`."""
    trigger = meaning_of(trigger_of(job), until)
    while isinstance(trigger, Except) or (isinstance(trigger, BusinessDay) and trigger.only_skips):
        trigger = trigger.trigger
    with limited(EXPLAIN_STEPS):
        return trigger.list_fires(after, until, limit)


# ---- from the run -----------------------------------------------------------------------------------------------


def from_run(run: Run, now: Instant) -> Explanation:
    """Its result, past or future."""
    if run.state is State.SKIPPED:
        return Explanation(run.fire_at, False, _said_of_skipped(run), run.disposition or Disposition.MISSED)
    why = _CAUSES.get(run.cause, "it ran")
    moved = next((event.message for event in run.history if event.override is not None), None)
    why = why if moved is None else f"{why}, {moved}"
    if run.state in UNFINISHED:
        return Explanation(run.fire_at, True, f"{why}; {_said_of_unfinished(run, now)}", run.disposition)
    begun = run.attempt > 0 or run.state is State.COMPLETED
    how = f"{run.state}" + (f": {run.error}" if run.error else "")
    if run.disposition is Disposition.NOT_STARTED:
        how = "no worker started it in time"
    late = _late(run)
    return Explanation(run.fire_at, begun, f"{why}; {how}{late}", run.disposition)


_CAUSES = {
    Cause.SCHEDULE: "the rule fires then",
    Cause.CATCH_UP: "the rule fires then; it was caught up on later",
    Cause.MANUAL: "it was asked for by hand",
    Cause.PING: "it was heard of by a ping when nothing was due",
    Cause.FOLLOW_UP: "it follows from the end of another run",
    Cause.BACKFILL: "it was asked for as a backfill",
}


def _said_of_skipped(run: Run) -> str:
    said = run.history[-1].message if run.history else str(run.disposition)
    return said if run.fires > 1 or not run.error else f"{run.disposition}: {run.error}"


def explain_held(
    told: Explanation, job: Job, holds: Sequence[Hold], now: Instant, at: Instant | None = None
) -> Explanation:
    """The explanation as a hold leaves it. `at`: when it is owed, if that is another instant."""
    if (run := told.run) is not None:
        waits_for = hold_on(holds, run, job, now) if run.state is State.PENDING else None
        if waits_for is None or reason_of(waits_for.hold) in told.reason:
            return told
        return told._replace(reason=f"{told.reason}; it {words_of_hold(waits_for)}")
    override = of_fire(job, told.at)
    moved = None if override is None else override.to
    held = hold_at(holds, job, at or moved or told.at)
    if held is None:
        return told
    if not told.fires:
        return told if told.disposition else told._replace(reason=f"{told.reason}; the job {words_of_hold(held)}")
    how = told.reason.rpartition(": it ")[0] or told.reason
    if held.hold.missed is not HeldMissed.SKIP:
        return told._replace(reason=f"{how}; it {words_of_hold(held)}; then it is caught up, as the job says")
    reason = f"{how}; {reason_of(held.hold)}: it does not run, neither then nor when the hold ends"
    return told._replace(fires=False, reason=reason, disposition=Disposition.HELD)


def _said_of_unfinished(run: Run, now: Instant) -> str:
    if run.state is not State.PENDING:
        return f"attempt {run.attempt} is performed by {run.worker or 'a worker'}"
    if is_waiting(run) and (asked := last_word(run)) is not None:
        return asked.message
    if run.due_at > now:
        if run.history and run.history[-1].kind in (EventKind.HELD, EventKind.LIMITED):
            return f"it {run.history[-1].message}"
        again = f" after attempt {run.attempt} failed: {run.error}" if run.attempt and run.error else ""
        return f"it waits until {to_text(run.due_at)}{again}"
    if run.fair is not None:
        return (
            f"it is due and waits in the queue {run.queue} for its turn: keys of fairness take turns there, its own is "
            f"{run.fair!r}; or for a worker, an earlier run of its job, or room"
        )
    return f"it is due and waits in the queue {run.queue} for a worker, for an earlier run of its job, or for room"


def _late(run: Run) -> str:
    if run.started_at is None or run.started_at - owed_at(run) < MINUTE or run.cause is not Cause.SCHEDULE:
        return ""
    return f"; its last attempt began {timedelta(microseconds=run.started_at - owed_at(run))} after the fire time"


# ---- from a person ----------------------------------------------------------------------------------------------


def _overridden(job: Job, at: Instant, now: Instant) -> Explanation | None:
    """A fire time that was skipped or moved, and is not settled yet; or the instant to which one was moved."""
    override = of_fire(job, at)
    if override is not None and override.to is None:
        return Explanation(at, False, said(override), Disposition.SKIPPED_OVERRIDE)
    found = moved_to(job, at) if override is None else [override]
    if not found:
        return None
    how = "; ".join(said(each) for each in found)
    if (told := _paused(job, found[0].due_at, now)) is not None:
        return told._replace(reason=f"{how}; {told.reason}")
    if override is None and _outside(job, at) is None and _fires(trigger_of(job), at):
        how += ", beside the fire time of its rule"
    return Explanation(at, True, f"{how}: it {'will run then' if found[0].due_at > now else 'is due'}")


# ---- from the rule ----------------------------------------------------------------------------------------------


def _from_rule(job: Job, at: Instant, now: Instant) -> Explanation:
    trigger, zone = trigger_of(job), _zone(job)
    fires = _fires(trigger, at)
    gap = _gap_around(zone, at)
    missing = None if gap is None else _missing(job, at, gap)
    said = "" if gap is None or missing is None else _said_of_gap(missing, zone)
    if not fires:
        return _why_not(job, trigger, zone, at, _became(trigger, zone, at, gap, said) if gap and said else None)
    if (told := _outside(job, at) or _limited(job, at) or _paused(job, at, now)) is not None:
        return told
    how = f"{said}: moved to {_clock(zone, at)}" if said else "the rule fires then"
    if at > now:
        return Explanation(at, True, f"{how}: it will run")
    if at > job.planned_until:
        return Explanation(at, True, f"{how}: it is due, and is about to be planned")
    if waits(job, at):
        return Explanation(at, False, f"{how}, but it was missed; {as_run(job).history[-1].message}")
    if at <= job.created_at:
        return Explanation(at, False, f"{how}, but the job was made later, at {to_text(job.created_at)}")
    return Explanation(at, False, f"{how}; no run is kept: it was deleted by retention, or the job was changed since")


def _why_not(job: Job, trigger: Trigger, zone: Zone, at: Instant, in_gap: str | None) -> Explanation:
    if in_gap is not None:
        return Explanation(at, False, in_gap, Disposition.DST_GAP)
    excluded = excluded_by(trigger, at)
    if excluded is not None:
        return Explanation(at, False, f"excluded by {excluded}", Disposition.EXCLUDED)
    return _outside(job, at) or Explanation(at, False, _mismatch(trigger, zone, at))


def refused(job: Job, at: Instant, now: Instant, *, windows_only: bool = False) -> Explanation | None:
    """Why the job does not run then though its rule fires: its window, or (unless `windows_only`) its pause."""
    return _outside(job, at) or (None if windows_only else _paused(job, at, now))


def _outside(job: Job, at: Instant) -> Explanation | None:
    if job.starts_at is not None and at < job.starts_at:
        return Explanation(at, False, f"before starts_at, {to_text(job.starts_at)}")
    if job.ends_at is not None and at >= job.ends_at:
        return Explanation(at, False, f"after ends_at, {to_text(job.ends_at)}")
    return None


def _paused(job: Job, at: Instant, now: Instant) -> Explanation | None:
    if job.enabled or (job.paused_at is not None and at <= job.paused_at):
        return None
    if job.paused_until is not None and at >= job.paused_until:
        return None
    since = "" if job.paused_at is None else f" since {to_text(job.paused_at)}"
    since += "" if job.paused_until is None else f" until {to_text(job.paused_until)}"
    why = f", because: {job.pause_reason}" if job.pause_reason else ""
    later = "; it will not run unless the job is resumed before" if at > now else ""
    return Explanation(at, False, f"paused{since}{why}{later}", Disposition.SKIPPED_PAUSED)


def _limited(job: Job, at: Instant) -> Explanation | None:
    if job.fires_max is None or at <= job.planned_until:
        return None
    left, resumed_at = job.fires_max - job.fires_count, 0 if job.enabled else job.paused_until or at
    begins = min(at, max(job.planned_until, (job.starts_at or 0) - 1, resumed_at - 1))
    before = trigger_of(job).count_fires(begins, at, left + 1) if left > 0 else 1
    return None if before <= left else Explanation(at, False, words_of_limit(job), Disposition.LIMIT_REACHED)


# ---- exclusions -------------------------------------------------------------------------------------------------


def excluded_by(trigger: Trigger, at: Instant) -> str | None:
    """What takes this instant away from the rule, in words; None: it is not in the rule to begin with."""
    trigger = meaning_of(trigger, at)
    if isinstance(trigger, BusinessDay) and _fires(trigger.trigger, at):
        moved = trigger.goes_to(at)
        where = f", moved to {', '.join(map(to_text, moved))}" if moved else ""
        return f"calendar {trigger.calendar or 'Monday to Friday'}{where}"
    if isinstance(trigger, Except):
        covering = [item.words() for item in trigger.excluded if item.end_of(at) > at]
        if covering and _fires(trigger.trigger, at):
            return f'"except {say_list(covering)}"'
        return excluded_by(trigger.trigger, at)
    members = getattr(trigger, "children", None)
    for member in members() if members is not None else ():
        found = excluded_by(member, at)
        if found is not None:
            return found
    return _excluded_by_date(trigger, at)


def _excluded_by_date(trigger: Trigger, at: Instant) -> str | None:
    """An rrule has exclusions of its own: EXDATE and EXRULE."""
    spec = trigger.spec()
    text = spec.get("rrule")
    if not isinstance(text, str) or "EX" not in text:
        return None
    for name in ("EXDATE", "EXRULE"):
        without = "\n".join(line for line in text.splitlines() if not line.upper().startswith(name))
        if without != text and _fires_as({**spec, "rrule": without}, at):
            return name
    return None


# ---- the gap of the clock ---------------------------------------------------------------------------------------


class _Gap(NamedTuple):
    """A change of the clock that skips wall times: when, and the offset before it."""

    start: Instant
    before: int


def _gap_around(zone: Zone, at: Instant) -> _Gap | None:
    """The gap in which the instant lies by the offset before it."""
    second = at // SECOND
    segment = zone.segment_at(second)
    if segment.start <= 0:
        return None
    before = zone.segment_at(segment.start - 1).offset
    skipped = segment.offset - before
    if skipped <= 0 or second - segment.start >= skipped:
        return None
    return _Gap(segment.start * SECOND, before)


def _missing(job: Job, at: Instant, gap: _Gap) -> datetime | None:
    """The wall time that the rule names and the clock skips, if it is for this one that the instant is looked at."""
    trigger = trigger_of(job)
    spec = trigger.spec()
    if _fires_as(with_gap(spec, Gap.SKIP), at):
        return None
    if _fires_as(with_gap(spec, Gap.SHIFT), at):
        return _wall(at // SECOND + gap.before)
    if at == gap.start and _fires(trigger, at):
        shifted = parse_trigger(with_gap(spec, Gap.SHIFT)).next_fire(at)
        return None if shifted is None else _wall(shifted // SECOND + gap.before)
    return None


def _became(trigger: Trigger, zone: Zone, at: Instant, gap: _Gap, said: str) -> str:
    """What the policy makes of a wall time that the clock skips."""
    policy = gap_policy(trigger.spec()) or Gap.SKIP
    if policy is Gap.SKIP:
        return f"{said}, and the policy is to skip it"
    return f"{said}: moved to {_clock(zone, gap.start if policy is Gap.RUN_AT_TRANSITION else at)}"


def _said_of_gap(missing: datetime, zone: Zone) -> str:
    return f"in the gap of {_day(missing.date())} ({missing:%H:%M} does not exist in {zone.key})"


# ---- what does not match ----------------------------------------------------------------------------------------


def _mismatch(trigger: Trigger, zone: Zone, at: Instant) -> str:
    """Why the rule does not fire then, from the days and times at which it does."""
    rule = trigger.words()
    try:
        here = _wall(zone.to_wall(at // SECOND))
        if which := _other_that_fires(trigger, zone, at):
            return f"{here:%H:%M} comes twice on that day in {zone.key}, and the rule fires at the {which} ({rule})"
        same_day = _times_around(trigger, zone, here.date(), at)
        if same_day:
            return f"not at {here:%H:%M:%S}: around it, on that day, it fires at {say_list(same_day)} ({rule})"
        return f"{_mismatched_day(_days_from(trigger, zone, at), here.date())} ({rule})"
    except TooExpensive:
        return f"the rule does not fire then ({rule})"


def _other_that_fires(trigger: Trigger, zone: Zone, at: Instant) -> str | None:
    """Which of the two times that a clock shows then, when it goes back, is a fire time instead."""
    both = zone.to_utc(zone.to_wall(at // SECOND), repeat=Repeat.BOTH)
    pairs = zip(both, ("first", "second"), strict=False) if len(both) > 1 else ()
    return next((name for each, name in pairs if each != at // SECOND and _fires(trigger, each * SECOND)), None)


def _mismatched_day(days: list[date], asked: date) -> str:
    told = _day(asked)
    weekdays = sorted({_weekday(day) for day in days})
    if len(days) < DAYS_LOOKED_AT // 4:
        return f"no fire time on {told}" if days else f"no fire time on {told} or later"
    if _weekday(asked) not in weekdays:
        return f"not a {say_list([WEEKDAYS[day] for day in weekdays], 'or')}: {told} is a {WEEKDAYS[_weekday(asked)]}"
    months = sorted({day.month for day in days})
    if asked.month not in months and days[-1] - days[0] > timedelta(days=366):
        return f"not in {say_list([MONTHS[month - 1] for month in months], 'or')}: {told}"
    of_month = sorted({day.day for day in days})
    if asked.day not in of_month and len(of_month) <= FEW_DAYS:
        return f"not day {say_list([str(day) for day in of_month], 'or')} of the month: {told}"
    return f"no fire time on {told}"


def _times_around(trigger: Trigger, zone: Zone, day: date, at: Instant) -> list[str]:
    """The fire times of that day before and after the instant, one of each."""
    before = trigger.last_fire(_start_of(zone, day) - 1, at - 1)
    after = trigger.next_fire(at)
    ends = _start_of(zone, day + timedelta(days=1))
    return [_clock(zone, fire) for fire in (before, after) if fire is not None and fire < ends]


def _days_from(trigger: Trigger, zone: Zone, at: Instant) -> list[date]:
    """The days from then on, in the rule's zone, on which it fires."""
    days: list[date] = []
    after = at
    while len(days) < DAYS_LOOKED_AT:
        fire = trigger.next_fire(after)
        if fire is None or fire > INSTANT_MAX - 2 * DAY:
            break
        days.append(_wall(zone.to_wall(fire // SECOND)).date())
        after = _start_of(zone, days[-1] + timedelta(days=1)) - 1
    return days


# ---- shared -----------------------------------------------------------------------------------------------------


def _zone(job: Job) -> Zone:
    return get_zone(zone_of(trigger_of(job)))


def _fires(trigger: Trigger, at: Instant) -> bool:
    return trigger.next_fire(at - 1) == at


def _fires_as(spec: Mapping[str, Any], at: Instant) -> bool:
    """Whether the rule fires then if it is written like this."""
    try:
        return _fires(parse_trigger(dict(spec)), at)
    except HorariumError:
        return False


def _around(job: Job, at: Instant) -> tuple[Instant | None, Instant | None]:
    """The last fire time before the instant (as far as the rule is easily asked), and the first after it, within the
    job's window."""
    trigger = trigger_of(job)
    start = max(job.starts_at or 0, 0)
    end = INSTANT_MAX if job.ends_at is None else job.ends_at
    before: Instant | None = None
    span = DAY
    try:
        after = trigger.next_fire(max(at, start - 1))
        while before is None and at - 1 > start:
            begin = max(at - span, start)
            before = trigger.last_fire(begin - 1, min(at - 1, end - 1))
            if begin == start:
                break
            span *= 8
    except TooExpensive:
        return before, None
    return before, None if after is None or after >= end else after


def _wall(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _start_of(zone: Zone, day: date) -> Instant:
    wall = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    return zone.to_utc(wall, Gap.RUN_AT_TRANSITION)[0] * SECOND


def _clock(zone: Zone, at: Instant) -> str:
    wall = _wall(zone.to_wall(at // SECOND))
    return f"{wall:%H:%M}" if wall.second == 0 else f"{wall:%H:%M:%S}"


def _weekday(day: date) -> int:
    """0 is Sunday."""
    return day.isoweekday() % 7


def _day(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
