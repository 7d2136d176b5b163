"""Joins: which ends of runs count in which window, when a window is whole, and what becomes of it. Pure.

A job with the trigger `after` fires once in each window in which all that it names had a run. An end of such a run
brings a line along; a service reads lines, keeps for each window who came, and with the last one moves the fire time of
the job, the start of the window, to that instant (`rules.overridden`). From there on it is a fire time like any other:
the planner makes its run once, under the job's policies. A window with a deadline that has passed is a missed fire
time. Both write the job and the window if they are as they were read, so a window has one or the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import DAY, SECOND, Instant, to_micros, to_text
from horarium.model import Disposition, Event, EventKind, Job, Plan, Run, RunChange, State, fraction
from horarium.model.overrides import Override
from horarium.model.records import Record, RecordChange, instant_key, put_over
from horarium.rules.compiled import trigger_of
from horarium.rules.overridden import Dropped, of_fire, one
from horarium.rules.planning import dropped_run, timed
from horarium.rules.windows import exhausted
from horarium.triggers.join import After, JoinOutcome
from horarium.triggers.words import say_list

JOINS = "join/"
"""`join/MEMBER/JOB_ID/VERSION`: a job that is stored under this version follows from runs of this member."""
JOIN_ENDS = "join-end/"
"""Ends of runs of members that no join has taken into account yet, each written with that end."""
JOIN_LOOKS = "join-look/"
"""When to look at a join, ordered by that: for ends before it was known everywhere, and at its deadlines."""
JOINED = "joined/"
"""Who came in a window, ordered by when that is forgotten."""

LOOKS_AFTER = (3 * SECOND, 12 * SECOND)
"""So long after it was defined a join is looked at once more: until then a node may not have heard of it."""
KEPT = 30 * DAY
"""How long after its window's end, or its deadline, it is known who came: so long a late retry counts."""
WAITING_MAX = 1_000
"""Windows of one job that may wait for the end of a hold."""
WINDOWS_MAX = 200
"""Deadlines that one look deals with."""
GRACE = 2 * SECOND
"""So long after a deadline it is judged: by then an end that came in time is written."""


class JoinEnd(Struct, frozen=True, omit_defaults=True):
    """The end of a run of a member. `fire_at`: of the run whose work it does."""

    job: str
    run_id: str
    fire_at: Instant
    state: State
    finished_at: Instant


class Window(Struct, frozen=True, omit_defaults=True):
    """Who came in a window, and when: the run and its end. `done_at`: when it was whole, or missed."""

    came: dict[str, tuple[str, Instant]] = {}
    done_at: Instant | None = None


class JoinLook(Struct, frozen=True, omit_defaults=True):
    """A note: look at this join then. `anchor`: what the job counted from when it was written; `since`: when it was
    defined, if it is to be seen who came before that was known; `window`: whose deadline it is."""

    job_id: str
    at: Instant
    anchor: Instant
    since: Instant | None = None
    window: Instant | None = None

    @property
    def record(self) -> Record:
        return Record(name=f"{JOIN_LOOKS}{instant_key(self.at, self.job_id)}", body=msgspec.json.encode(self))


decode_end = msgspec.json.Decoder(JoinEnd).decode
decode_window = msgspec.json.Decoder(Window).decode
decode_look = msgspec.json.Decoder(JoinLook).decode


def is_join(job: Job) -> bool:
    """Whether the job follows from runs of others."""
    return job.trigger.get("type") == After.type


def join_of(job: Job) -> After:
    trigger = trigger_of(job)
    assert isinstance(trigger, After), trigger
    return trigger


def members_in(job: Job) -> tuple[str, ...]:
    """The names of the jobs from whose runs it follows."""
    return tuple(job.trigger.get("jobs", ())) if is_join(job) else ()


# ---- written with jobs ------------------------------------------------------------------------------------------


def defined_records(job: Job, version: int, now: Instant) -> tuple[Record, ...]:
    """What a job that was defined, edited or deleted brings along: that it follows from its members, and a look."""
    if not is_join(job):
        return ()
    if job.deleted_at is not None:
        return (JoinLook(job.id, now, job.anchor_at).record,)
    names = (f"{JOINS}{member}/{job.id}/{version:012d}" for member in members_in(job))
    look = JoinLook(job.id, now, job.anchor_at, since=now)
    return (*(Record(name=name, body=b"") for name in names), look.record)


def member_of(record: Record) -> str:
    """The member that a record of JOINS names."""
    return record.name.removeprefix(JOINS).partition("/")[0]


def named_join(record: Record) -> tuple[str, int]:
    """The id of the job that follows, and the version of it that the record was written with."""
    _, job_id, version = record.name.removeprefix(JOINS).split("/")
    return job_id, int(version)


def useless(record: Record, job: Job | None) -> bool:
    """Whether this join, as it is stored now, follows from that member no longer."""
    if job is None or job.deleted_at is not None:
        return True
    return named_join(record)[1] <= job.version and member_of(record) not in members_in(job)


# ---- ends -------------------------------------------------------------------------------------------------------


def repeating(run: Run, repeated: Instant | None) -> Run:
    """The new run, which does the work of the run of this fire time again."""
    if repeated is None:
        return run
    again = Event(repeated, State.PENDING, "the fire time of the run whose work is done again", EventKind.AGAIN)
    return replace(run, history=(again, *run.history))


def fire_of(run: Run) -> Instant:
    """The fire time whose work the run does: its own, or that of the run that it repeats."""
    return next((event.at for event in run.history if event.kind is EventKind.AGAIN), run.fire_at)


def end_of_run(run: Run) -> JoinEnd | None:
    """Its end, if it may count in a window: it is over, and was neither skipped nor withdrawn."""
    if run.job is None or run.finished_at is None or run.state is State.SKIPPED or not run.finished:
        return None
    if run.disposition is Disposition.WITHDRAWN:
        return None
    return JoinEnd(run.job, run.id, fire_of(run), run.state, run.finished_at)


def with_join_end(change: RunChange) -> RunChange:
    """The change of a run of a member, with the line of its end."""
    end = end_of_run(change.run)
    if end is None or change.state is change.run.state:
        return change
    name = f"{JOIN_ENDS}{end.job}/{end.run_id}/{change.run.token}-{end.state}"
    return replace(change, records=(*change.records, Record(name=name, body=msgspec.json.encode(end))))


def window_counted(job: Job, end: JoinEnd) -> Instant | None:
    """The start of the window of this join in which the end counts; None: it counts in none."""
    join = join_of(job)
    if end.job not in join.jobs or (join.outcome is JoinOutcome.COMPLETED and end.state is not State.COMPLETED):
        return None
    start = join.window_of(end.fire_at)
    in_time = join.deadline is None or end.finished_at <= start + join.deadline
    return start if in_time and is_owed(job, start) else None


def is_owed(job: Job, start: Instant) -> bool:
    """Whether the window may fire at all: it is none from before the join was defined, and within its bounds."""
    return (
        start >= join_of(job).window_of(job.anchor_at)
        and (job.starts_at is None or start >= job.starts_at)
        and (job.ends_at is None or start < job.ends_at)
    )


# ---- windows ----------------------------------------------------------------------------------------------------


def window_name(job: Job, start: Instant) -> str:
    """The record of a window. (Under another outcome, or another length, it is another one.)"""
    join = join_of(job)
    over = max(join.next_window(start) or start, start + (join.deadline or 0))
    return f"{JOINED}{instant_key(over + KEPT, job.id)}/{start:016x}-{join.outcome}"


def with_ends(window: Window, ends: Iterable[JoinEnd]) -> Window:
    """The window with these ends; of each member the first that is told counts."""
    came = dict(window.came)
    for end in ends:
        came.setdefault(end.job, (end.run_id, end.finished_at))
    return window if len(came) == len(window.came) else replace(window, came=came)


def missing(job: Job, window: Window) -> list[str]:
    """The members that have not come."""
    return [name for name in join_of(job).jobs if name not in window.came]


def filled(
    job: Job, start: Instant, stored: Record | None, ends: Iterable[JoinEnd], now: Instant
) -> tuple[RecordChange | None, Plan | None]:
    """The change of a window by these ends, and where it is whole the plan of its job. None: nothing is new."""
    before = Window() if stored is None else decode_window(stored.body)
    after = with_ends(before, ends)
    if before.done_at is not None or after == before:
        return None, None
    is_whole = not missing(job, after)
    after = replace(after, done_at=now) if is_whole else after
    change = _changed(job, start, stored, after)
    return change, _joined(job, start, after, now) if is_whole else None


def _changed(job: Job, start: Instant, stored: Record | None, after: Window) -> RecordChange:
    return put_over(stored, window_name(job, start), msgspec.json.encode(after))


def said_of(job: Job, window: Window) -> str:
    """Who came when, and who did not, in words."""
    ended = "completed" if join_of(job).outcome is JoinOutcome.COMPLETED else "ended"
    absent = missing(job, window)
    came = [f"{name} {ended} at {to_text(window.came[name][1])}" for name in join_of(job).jobs if name in window.came]
    said = [f"{say_list(absent)} {'has' if len(absent) == 1 else 'have'} not {ended}"] if absent else []
    return "; ".join([*said, *came])


def _joined(job: Job, start: Instant, window: Window, now: Instant) -> Plan | None:
    """The fire time of a window that is whole: due now, or skipped as the job is paused."""
    if exhausted(job) or of_fire(job, start) is not None:
        return None
    said = said_of(job, window)
    if not job.enabled:
        return _dropped(job, one(start, Disposition.SKIPPED_PAUSED, f"paused: {job.pause_reason or 'by hand'}"), now)
    if len(job.overrides) >= WAITING_MAX:
        return _dropped(job, one(start, Disposition.MISSED, f"{WAITING_MAX} windows wait already; {said}"), now)
    due_at = now + (to_micros(job.jitter_seconds * fraction(job.id, start)) if job.jitter_seconds else 0)
    whole = Override(fire_at=start, to=due_at, reason=said, at=now, joined=True)
    overrides = tuple(sorted((*job.overrides, whole), key=lambda each: each.fire_at))
    return Plan(timed(replace(job, overrides=overrides)))


def _dropped(job: Job, dropped: Dropped, now: Instant) -> Plan:
    return Plan(job, (dropped_run(job, dropped, now),))


# ---- deadlines --------------------------------------------------------------------------------------------------


def looks_of(job: Job, look: JoinLook, now: Instant) -> list[JoinLook]:
    """When to look next at a join that was defined, beside what this look does."""
    if look.since is None:
        return []
    again = [replace(look, at=look.since + each) for each in LOOKS_AFTER if now < look.since + each][:1]
    return [*again, *_deadline_look(job, _first_window(job), look.since)]


def deadlines_passed(job: Job, look: JoinLook, now: Instant) -> tuple[list[Instant], Dropped | None, list[JoinLook]]:
    """The windows whose deadlines have passed, from that of this look on, and the look at the next one. After a long
    absence, in which none can have come in time, those between the first and the last of them are one range."""
    join, start, found = join_of(job), look.window, list[Instant]()
    if join.deadline is None or look.anchor != job.anchor_at or exhausted(job):
        return [], None, []
    while start is not None and len(found) < WINDOWS_MAX and _judged_at(join.deadline, start) <= now:
        found.append(start)
        start = join.next_window(start)
    gap = None if start is None else _gap(job, start, now - join.deadline - GRACE)
    if gap is not None:
        start = join.next_window(gap.last)
    return found, gap, _deadline_look(job, start)


def _gap(job: Job, start: Instant, until: Instant) -> Dropped | None:
    """The windows from `start` on but for the last, if there are many."""
    join = join_of(job)
    until = until if job.ends_at is None else min(until, job.ends_at - 1)
    last = join.window_of(max(until, 0) - WINDOWS_MAX * join.length)
    if last <= start:
        return None
    count = (last - start) // join.length + 1
    return Dropped(start, last, count, *_given_up(job, Window()))


def _given_up(job: Job, window: Window) -> tuple[Disposition, str]:
    """What becomes of a window whose deadline has passed, and why."""
    if not job.enabled:
        return Disposition.SKIPPED_PAUSED, f"paused: {job.pause_reason or 'by hand'}"
    return Disposition.MISSED, f"after: {said_of(job, window)}"


def missed(
    job: Job, starts: Sequence[Instant], gap: Dropped | None, stored: Mapping[Instant, Record], now: Instant
) -> tuple[list[RecordChange], Plan | None]:
    """What becomes of windows whose deadlines have passed: those that are not whole are missed, and are over. Windows
    in which none came have one row for each stretch."""
    changes, dropped = list[RecordChange](), list[Dropped]()
    alone = True
    for start in starts:
        record = stored.get(start)
        window = Window() if record is None else decode_window(record.body)
        if window.done_at is not None or not is_owed(job, start) or of_fire(job, start) is not None:
            alone = True
            continue
        changes.append(_changed(job, start, record, replace(window, done_at=now)))
        found = one(start, *_given_up(job, window))
        if not alone and not window.came:
            before = dropped.pop()
            found = before._replace(last=start, fires=before.fires + 1)
        dropped.append(found)
        alone = bool(window.came)
    dropped += [] if gap is None else [gap]
    rows = tuple(dropped_run(job, each, now) for each in dropped)
    return changes, Plan(job, rows) if rows else None


def _judged_at(deadline: int, start: Instant) -> Instant:
    return start + deadline + GRACE


def _deadline_look(job: Job, start: Instant | None, after: Instant | None = None) -> list[JoinLook]:
    """The look at the deadline of this window, or of the first after it whose deadline lies beyond `after`."""
    join = join_of(job)
    if join.deadline is None:
        return []
    if after is not None and start is not None and start + join.deadline <= after:
        start = join.next_window(join.window_of(after - join.deadline))
    if start is None or (job.ends_at is not None and start >= job.ends_at):
        return []
    return [JoinLook(job.id, _judged_at(join.deadline, start), job.anchor_at, window=start)]


def _first_window(job: Job) -> Instant | None:
    join, start = join_of(job), join_of(job).window_of(max(job.anchor_at, job.starts_at or 0))
    return start if job.starts_at is None or start >= job.starts_at else join.next_window(start)
