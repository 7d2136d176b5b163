"""Follow-ups: `follow` says which runs a change brings along, and touches nothing (docs/architecture/follow-ups.md).

A job's `on` names actions for occasions. A notification is a run in the queue `notify`, whose payload names the channel
and the event. A job that is triggered is a run in the queue `follow`, whose delivery asks for a run of that job. Both
belong to no job, so nothing follows from them. Each has the unique key `RUN/OCCASION/ACTION`: it is made once, by
however many nodes, and whether the end of the run or the watcher comes first.

A run that followed carries its depth in its own unique key (`follow/DEPTH/RUN/OCCASION/ACTION`), and what follows from
it lies one deeper, or more where several follow (`step_of`). At DEPTH_MAX the chain ends, and the last run says so in
its history: so no cycle runs away, in depth or in breadth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros, to_text
from horarium.model import (
    CLAIMED,
    TIMED,
    UNFINISHED,
    Cause,
    Disposition,
    EventKind,
    Follow,
    Job,
    Occasion,
    Plan,
    Run,
    RunChange,
    RunPolicy,
    State,
    run_id,
)
from horarium.model.channels import Told
from horarium.model.follows import AFTER_MAX
from horarium.model.targets import FOLLOW_QUEUE, NOTIFY_QUEUE
from horarium.policies import Retry
from horarium.rules.approving import is_waiting, was_approved
from horarium.rules.chains import AT_END, DEPTH_MAX, depth_of, step_of, with_end_of_chain
from horarium.rules.holds import PLANNED_CAUSES
from horarium.rules.missed import as_run
from horarium.rules.overridden import run_moved_to
from horarium.rules.planning import due_of

NOTIFY_POLICY = RunPolicy(retry=Retry(attempts_max=15, backoff_seconds=5, backoff_max_seconds=900))
FOLLOW_POLICY = RunPolicy(retry=Retry(attempts_max=100, backoff_seconds=1, backoff_max_seconds=60))
NOTIFY_SECONDS = 60.0
"""How long one notification may take to be delivered."""

OUTPUT_CHARS_MAX = 1_500
"""Of the output of a program, in a notification."""

_WAITED = frozenset({EventKind.ASKED, EventKind.HELD, EventKind.LIMITED, EventKind.THROTTLED})
"""Why a run could not begin in time, as its history has it."""
_PUT_BACK = frozenset({EventKind.FAILED, EventKind.TIMED_OUT, EventKind.LOST})
_RESULTS = frozenset({State.COMPLETED, State.FAILED})


class _Printed(Struct):
    """The result of a program, as far as a notification tells it."""

    exit_code: int | UnsetType = UNSET
    stdout: str = ""
    stderr: str = ""


# ---- what happened ----------------------------------------------------------------------------------------------


def occasions(job: Job, run: Run, was: State | None, now: Instant) -> list[Occasion]:
    """The occasions of this change of a run (from the state `was`), whether its job asks for them or not. `recovered`
    is among them if it may be one: that is for the runs before it to say."""
    if run.state is State.PENDING and was is None:
        return [Occasion.APPROVAL_WANTED] if is_waiting(run) else []
    if run.state is State.PENDING and run.history and run.history[-1].kind is EventKind.ASKED:
        return [Occasion.APPROVAL_WANTED]  # again: its job does other work than the approved
    if run.state is State.PENDING and _has_just(run, {EventKind.EXPIRED}, now):
        return [Occasion.APPROVAL_EXPIRED]
    if run.state is State.PENDING:
        return [Occasion.ATTEMPT_FAILED] if was in CLAIMED and _has_just(run, _PUT_BACK, now) else []
    if was is not None and was not in UNFINISHED:
        return []
    if run.state not in AT_END or run.disposition is Disposition.WITHDRAWN:
        return []
    found = [occasion for occasion in AT_END[run.state] if _is(run, occasion)]
    return [*found, *(occasion for occasion in (Occasion.LATE, Occasion.OVERDUE) if run.state is not State.SKIPPED)]


_OF_DISPOSITION = {
    Occasion.NOT_STARTED: Disposition.NOT_STARTED,
    Occasion.MISSED: Disposition.MISSED,
    Occasion.APPROVAL_EXPIRED: Disposition.APPROVAL_EXPIRED,
}


def _is(run: Run, occasion: Occasion) -> bool:
    if occasion is Occasion.ATTEMPT_FAILED:
        return run.disposition is not Disposition.NOT_STARTED
    return run.disposition is _OF_DISPOSITION.get(occasion, run.disposition)


def _has_just(run: Run, kinds: Collection[EventKind], now: Instant) -> bool:
    """Whether the last line of its history is of now, and of such a kind."""
    last = run.history[-1] if run.history else None
    return last is not None and last.kind in kinds and last.at == now


def owed_at(job: Job, run: Run) -> Instant:
    """The instant from which a run's lateness counts: its fire time, even if it was made later (after a downtime) or
    had to wait, where that was moved to, or when it was asked for by hand."""
    if run.cause not in PLANNED_CAUSES:
        return run.due_at_first
    moved = run_moved_to(run) if run.history else None
    return due_of(job, run.fire_at) if moved is None else moved


def began_at(run: Run) -> Instant | None:
    """When its first attempt was claimed; None: it never was."""
    first = next((event.at for event in run.history if event.state is State.RUNNING), None)
    return run.started_at if first is None else first


def is_behind(job: Job, run: Run, occasion: Occasion, seconds: float, now: Instant) -> bool:
    """Whether the run is, or was, late (not begun in time) or overdue (not ended in time), as seen at `now`."""
    begun = began_at(run) if occasion is Occasion.LATE else None
    until = next(instant for instant in (begun, run.finished_at, now) if instant is not None)
    return until - owed_at(job, run) > to_micros(seconds)


def looks_back(job: Job, run: Run, was: State | None, now: Instant) -> int:
    """How many of the job's earlier runs must be known to say what follows. 0 for nearly all."""
    wanted = [(occasion, job.on.get(occasion, ())) for occasion in occasions(job, run, was, now)] if job.on else []
    return max(
        (
            AFTER_MAX if occasion is Occasion.RECOVERED else follow.after - 1
            for occasion, follows in wanted
            for follow in follows
            if occasion is not Occasion.ATTEMPT_FAILED
        ),
        default=0,
    )


def says_something(run: Run, earlier: Run) -> bool:
    """Whether an earlier run of the job counts, or ends the count, of occasions in a row up to this run. Others in
    between (skipped ones, say) are passed over."""
    return earlier.state in _RESULTS or (earlier.state is run.state and earlier.disposition is run.disposition)


def telling_states(run: Run) -> frozenset[State]:
    """The states of runs that may say something."""
    return _RESULTS if run.state in UNFINISHED else _RESULTS | {run.state}


def _in_a_row(job: Job, occasion: Occasion, seconds: float | None, earlier: Sequence[Run], now: Instant) -> int:
    """How many runs before this one had the same, with none in between that ran and had not."""
    count = 0
    for run in earlier:
        if occasion in TIMED:
            same = run.state in _RESULTS and is_behind(job, run, occasion, seconds or 0, now)
        else:
            same = occasion in occasions(job, run, None, now)
        if same:
            count += 1
        elif run.state in _RESULTS:
            break
    return count


def failures_before(earlier: Sequence[Run]) -> list[Run]:
    """The failed runs, the newest first, that no completed one has followed."""
    failed: list[Run] = []
    for run in earlier:
        if run.state is State.COMPLETED:
            break
        if run.state is State.FAILED:
            failed.append(run)
    return failed


# ---- what follows -----------------------------------------------------------------------------------------------


def follow(job: Job | None, change: RunChange, now: Instant, earlier: Sequence[Run] = ()) -> RunChange:
    """The change, with the runs that follow from it. `earlier`: of the job's finished runs of fire times before this
    one's those that say something, the newest first, as many as `looks_back` asks for."""
    if job is None or not job.on:
        return change
    wanted = list(_wanted(job, change.run, change.state, now, earlier))
    if not wanted:
        return change
    depth = depth_of(change.run)
    runs = [run for each in wanted if (run := _follow_up(job, change.run, each, depth, now)) is not None]
    ended = [each.follow.trigger for each in wanted if each.follow.trigger is not None and depth >= DEPTH_MAX]
    run = with_end_of_chain(change.run, ended, depth, now) if ended else change.run
    return replace(change, run=run, follow_ups=(*change.follow_ups, *runs))


def follow_plan(planned: Plan, now: Instant, earlier: dict[str, Sequence[Run]] | None = None) -> Plan:
    """The plan, with what follows from its changes, and from the fire times that it gives up. `earlier`: by run."""
    job, before = planned.job, earlier or {}
    if not job.on:
        return planned
    changes = tuple(follow(job, change, now, before.get(change.run.id, ())) for change in planned.changes)
    runs = [
        follow_up
        for run in planned.runs
        if (run.state is State.SKIPPED and run.disposition is Disposition.MISSED) or is_waiting(run)
        for each in _wanted(job, run, None, now, before.get(run.id, ()))
        if (follow_up := _follow_up(job, run, each, 0, now)) is not None
    ]
    runs += [found for each in _about_missed(planned, now) if (found := _follow_up(job, *each, 0, now)) is not None]
    return replace(planned, changes=changes, runs=(*planned.runs, *runs))


def _about_missed(planned: Plan, now: Instant) -> Iterator[tuple[Run, _Wanted]]:
    """The events of a question about fire times that were missed: it is new, or was not decided in time."""
    job, first = planned.job, next((run for run in planned.runs if _was_missed(run, now)), None)
    if job.missed is not None and job.missed.asked_at == now:
        first, occasion = as_run(job), Occasion.APPROVAL_WANTED
    else:
        occasion = Occasion.APPROVAL_EXPIRED
    if first is not None:
        yield from ((first, each) for each in _of_occasion(job, first, occasion, now, ()))


def _was_missed(run: Run, now: Instant) -> bool:
    return any(event.kind is EventKind.EXPIRED and event.at == now for event in run.history)


def follow_behind(job: Job, run: Run, now: Instant, earlier: Sequence[Run] = ()) -> list[Run]:
    """The follow-ups of a run that has not ended (or that should be there and is not) because it is late or overdue."""
    wanted = _timed(job, run, TIMED, now, earlier)
    depth = depth_of(run)
    return [found for each in wanted if (found := _follow_up(job, run, each, depth, now)) is not None]


class _Wanted(Struct, frozen=True):
    """One thing that follows. `about`: the run that the unique key is of. `part`: the occasion in that key."""

    occasion: Occasion
    follow: Follow
    about: str
    part: str
    count: int


def _wanted(job: Job, run: Run, was: State | None, now: Instant, earlier: Sequence[Run]) -> Iterator[_Wanted]:
    told: set[str] = set()
    found = occasions(job, run, was, now)
    for occasion in found:
        if occasion in TIMED:
            continue
        for each in _of_occasion(job, run, occasion, now, earlier):
            if each.follow.notify is not None and each.follow.notify in told:
                continue
            if each.follow.notify is not None:
                told.add(each.follow.notify)
            yield each
    yield from _timed(job, run, TIMED & set(found), now, earlier)


def _of_occasion(job: Job, run: Run, occasion: Occasion, now: Instant, earlier: Sequence[Run]) -> Iterator[_Wanted]:
    follows = job.on.get(occasion, ())
    if not follows:
        return
    about, part = run.id, str(occasion)
    if occasion is Occasion.ATTEMPT_FAILED:
        part, count = f"{occasion}.{run.attempt}", run.attempt
    elif occasion is Occasion.APPROVAL_WANTED and was_approved(run):
        asked = sum(event.kind is EventKind.ASKED for event in run.history)
        part, count = f"{occasion}.{asked}", 1
    elif occasion is Occasion.RECOVERED:
        failed = failures_before(earlier)
        if not failed:
            return
        about, count = failed[0].id, len(failed)
    else:
        count = 1 + _in_a_row(job, occasion, None, earlier, now)
    yield from (_Wanted(occasion, each, about, part, count) for each in follows if count >= each.after)


def _timed(job: Job, run: Run, which: Collection[Occasion], now: Instant, earlier: Sequence[Run]) -> Iterator[_Wanted]:
    for occasion in (Occasion.LATE, Occasion.OVERDUE):
        for each in job.on.get(occasion, ()) if occasion in which else ():
            if is_behind(job, run, occasion, each.seconds or 0, now):
                count = 1 + _in_a_row(job, occasion, each.seconds, earlier, now)
                if count >= each.after:
                    yield _Wanted(occasion, each, run.id, str(occasion), count)


def _follow_up(job: Job, run: Run, wanted: _Wanted, depth: int, now: Instant) -> Run | None:
    """The run that follows; None: the chain ends here."""
    key = f"{wanted.about}/{wanted.part}/{wanted.follow.action}"
    if wanted.follow.notify is not None:
        told = Told(
            str(wanted.occasion),
            job.name,
            run.id,
            to_text(run.fire_at),
            to_text(now),
            message_of(job, run, wanted.occasion, wanted.count, wanted.follow.seconds),
            run.fires if wanted.occasion is Occasion.MISSED else 1,
            **_facts_of(run, now),
        )
        return notify_run(wanted.follow.notify, told, key, now)
    if depth >= DEPTH_MAX:
        return None
    payload = wanted.follow.payload
    body: dict[str, Any] = {"job": wanted.follow.trigger, "depth": depth + step_of(job)}
    if payload == "result":
        body["payload"] = None if run.result is None else msgspec.Raw(run.result)
    elif payload is not None:
        body["payload"] = payload
    return run_that_follows(FOLLOW_QUEUE, body, key, now, FOLLOW_POLICY)


def _facts_of(run: Run, now: Instant) -> dict[str, Any]:
    """What one wants to know about a run that was at work."""
    if not run.attempt or run.disposition is Disposition.NOT_STARTED:
        return {}
    facts: dict[str, Any] = {"attempt": run.attempt}
    if run.worker is not None:
        facts["worker"] = run.worker
    if run.started_at is not None:
        facts["seconds"] = max(0, (run.finished_at or now) - run.started_at) / SECOND
    try:
        result = msgspec.json.decode(run.result or b"{}", type=_Printed)
    except msgspec.DecodeError:
        return facts  # the result of no program
    if result.exit_code is not UNSET:
        facts["exit_code"] = result.exit_code
    output = (result.stderr.strip() or result.stdout.strip())[-OUTPUT_CHARS_MAX:]
    return facts | {"output": output} if output else facts


def notify_run(channel: str, told: Told, key: str, now: Instant, policy: RunPolicy = NOTIFY_POLICY) -> Run:
    """The notification of one event to one channel. Of a channel one is delivered at a time."""
    run = run_that_follows(NOTIFY_QUEUE, {"channel": channel, "event": told}, key, now, policy)
    return replace(run, concurrency_key=f"notify/{channel}", concurrency_max=1, execution_seconds=NOTIFY_SECONDS)


def run_that_follows(queue: str, body: Any, key: str, now: Instant, policy: RunPolicy | None = None) -> Run:
    """The run that follows under this key, due now."""
    return Run(
        id=run_id(key, now),
        queue=queue,
        fire_at=now,
        due_at=now,
        created_at=now,
        cause=Cause.FOLLOW_UP,
        payload=msgspec.json.encode(body),
        policy=policy,
        unique_key=key,
    )


# ---- words ------------------------------------------------------------------------------------------------------


def message_of(job: Job, run: Run, occasion: Occasion, count: int, seconds: float | None = None) -> str:
    """The event, in one line."""
    name, error = job.name, run.error or ""
    match occasion:
        case Occasion.COMPLETED:
            return f"{name} completed"
        case Occasion.FAILED:
            row = f", at least {count} times in a row" if count > 1 else ""  # it is looked no further back
            return f"{name} failed{row}: {error}"
        case Occasion.ATTEMPT_FAILED:
            return f"{name}: attempt {run.attempt} of {job.retry.attempts_max} failed: {error}"
        case Occasion.CANCELLED:
            return f"{name} was cancelled: {error}"
        case Occasion.MISSED:
            many = f"{run.fires} fire times" if run.fires > 1 else "a fire time"
            return f"{name} missed {many}, from {to_text(run.fire_at)}: {error}"
        case Occasion.NOT_STARTED:
            return f"{name} was not started in time: {error}"
        case Occasion.RECOVERED:
            return f"{name} recovered after {count} failed run{'s' if count > 1 else ''}"
        case Occasion.APPROVAL_WANTED if run.fires > 1 or run.cause is Cause.CATCH_UP:
            many = f"{run.fires:,} missed fire time{'s' if run.fires > 1 else ''}, from {to_text(run.fire_at)}"
            return f"{name} asks for a decision about {many}, until {to_text(run.due_at)}"
        case Occasion.APPROVAL_WANTED:
            return f"{name} asks for a decision about {to_text(run.fire_at)}, until {to_text(run.due_at)}"
        case Occasion.APPROVAL_EXPIRED:
            said = next(event.message for event in reversed(run.history) if event.kind is EventKind.EXPIRED)
            return f"{name} of {to_text(run.fire_at)}: {said}"
        case Occasion.LATE:
            return f"{name} did not begin within {seconds:g} s of {to_text(owed_at(job, run))}{_why_behind(run)}"
        case Occasion.OVERDUE:
            return f"{name} was not done within {seconds:g} s of {to_text(owed_at(job, run))}{_why_behind(run)}"


def _why_behind(run: Run) -> str:
    """For what it had to wait last, if for anything."""
    return next((f": {event.message}" for event in reversed(run.history) if event.kind in _WAITED), "")
