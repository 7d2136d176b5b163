"""Why a job that counts from the end of its last run, or follows from runs of others, ran, did not run, will run or
will not run at an instant.

Its fire times are in no rule: the first is in the job, each of the others lies a delay after an end. So the past is in
its runs, and of its future only the next fire time is known, once the last run has ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from horarium.clock import Instant, to_text
from horarium.errors import TooExpensive
from horarium.model import Cause, Disposition, Job, Run
from horarium.rules.compiled import after_end, trigger_of
from horarium.rules.explaining import Explanation, excluded_by, from_run, refused
from horarium.rules.joins import Window, is_owed, join_of, missing, said_of
from horarium.rules.overridden import of_fire
from horarium.rules.windows import exhausted, next_in_window, words_of_limit
from horarium.triggers.budget import PLAN_STEPS, limited

PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)
"""The causes of runs from whose end the next one is counted."""


class Beside(NamedTuple):
    """The job's planned runs around an instant. `last`: the newest of all."""

    before: Run | None = None
    after: Run | None = None
    last: Run | None = None


def next_after_end(job: Job, last: Run | None) -> Instant | None:
    """When the rule of the job, as it is now, fires next; None: never, or that depends on a run that goes on."""
    if last is not None:
        if last.finished_at is None:
            return None
        job = replace(job, anchor_at=last.finished_at)
    try:
        with limited(2 * PLAN_STEPS):
            return next_in_window(job, job.planned_until)
    except TooExpensive:
        return None


def explain_from_end(job: Job, at: Instant, now: Instant, run: Run | None, beside: Beside) -> Explanation:
    """`run`: the one for this instant, or the skipped one that covers it."""
    coming = next_after_end(job, beside.last)
    following = beside.after.fire_at if beside.after is not None else coming
    told = from_run(run, now) if run is not None else _without(job, at, now, beside, coming)
    return told._replace(
        at=at,
        run=run,
        previous=None if beside.before is None else beside.before.fire_at,
        next=following if following is not None and following > at else None,
    )


def _without(job: Job, at: Instant, now: Instant, beside: Beside, coming: Instant | None) -> Explanation:
    delay, before = str(timedelta(microseconds=after_end(job) or 0)), beside.before
    if beside.after is not None:
        return Explanation(at, False, f"{_said_of_past(at, before, delay)}; the next came at {_at(beside.after)}")
    if exhausted(job) and at > job.planned_until:
        return refused(job, at, now, windows_only=True) or _beyond_limit(job, at)
    if at == coming:
        how = "it is the first fire time" if before is None else f"it is {delay} after the end of the last run"
        text = f"{how}: it will run" if at > now else f"{how}: it is due, and is about to be planned"
        return refused(job, at, now) or Explanation(at, True, text)
    excluded = _excluded(job, at, before)
    if excluded is not None:
        return Explanation(at, False, f"excluded by {excluded}", Disposition.EXCLUDED)
    outside = refused(job, at, now, windows_only=True)
    if outside is not None:
        return outside
    if before is not None and before.finished_at is None:
        return Explanation(at, False, f"the run of {_at(before)} goes on, and the next comes {delay} after its end")
    if coming is None:
        return Explanation(at, False, f"{_said_of_past(at, before, delay)}; there is no next")
    stopped = refused(job, coming, now)
    if at < coming:
        later = f"the next is at {to_text(coming)}" + ("" if stopped is None else f", but the job is {stopped.reason}")
        return Explanation(at, False, f"{_said_of_past(at, before, delay)}; {later}")
    if stopped is not None:
        return Explanation(at, False, f"not known yet: the job is {stopped.reason}")
    return Explanation(at, False, f"not known yet: it runs next at {to_text(coming)}, and then {delay} after that ends")


def _said_of_past(at: Instant, before: Run | None, delay: str) -> str:
    if before is None:
        return "no run before it is kept"
    ended = before.finished_at
    if ended is None or ended > at:
        return f"the run of {_at(before)} was under way, and the next comes {delay} after its end"
    return f"the run of {_at(before)} ended at {to_text(ended)}, and the next comes {delay} after that"


def _beyond_limit(job: Job, at: Instant) -> Explanation:
    return Explanation(at, False, words_of_limit(job), Disposition.LIMIT_REACHED)


def _excluded(job: Job, at: Instant, before: Run | None) -> str | None:
    if before is not None and (before.finished_at is None or before.finished_at >= at):
        return None
    anchored = job if before is None else replace(job, anchor_at=before.finished_at)
    with limited(2 * PLAN_STEPS):
        return excluded_by(trigger_of(anchored), at)


def _at(run: Run) -> str:
    return to_text(run.fire_at)


# ---- a job that follows from runs of others ---------------------------------------------------------------------


def explain_join(job: Job, at: Instant, now: Instant, run: Run | None, window: Window) -> Explanation:
    """`run`: the one of the window in which the instant lies, or of this instant, or the skipped one that covers it.
    `window`: who came in it."""
    return _explain_join(job, at, now, run, window)._replace(missing=tuple(missing(job, window)))


def _explain_join(job: Job, at: Instant, now: Instant, run: Run | None, window: Window) -> Explanation:
    start = join_of(job).window_of(at)
    if run is not None:
        return from_run(run, now)._replace(at=at, run=run)
    begins = f"of the window that begins at {to_text(start)}: {said_of(job, window)}"
    whole = of_fire(job, start)
    if whole is not None and not whole.done:
        return Explanation(at, True, f"it is due, and is about to be planned; {begins}")
    told = refused(job, start, max(now, start), windows_only=exhausted(job))
    if told is None and not is_owed(job, start):
        told = Explanation(at, False, "the window lies before the one in which the job was defined")
    if told is None and window.done_at is not None:
        told = Explanation(at, False, "no run is kept: it was deleted by retention, or the job was changed since")
    if told is None and exhausted(job):
        told = _beyond_limit(job, at)
    if told is not None:
        return told._replace(at=at, reason=f"{told.reason}; {begins}")
    deadline = join_of(job).deadline
    if deadline is None or start + deadline > now:
        until = "" if deadline is None else f", until {to_text(start + deadline)}"
        return Explanation(at, True, f"it runs once all have come{until}; {begins}")
    return Explanation(at, False, f"its deadline has passed; {begins}", Disposition.MISSED)
