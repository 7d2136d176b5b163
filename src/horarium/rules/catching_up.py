"""Fire times that are owed, and those that are not: missed ones by the job's catch-up policy, those that a hold skips.

After a long absence a rule may owe millions of fire times, so none of this enumerates them: the newest are found by
halving, dropped ones become one row for the range (docs/architecture/planners.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horarium.clock import Instant, to_micros
from horarium.model import Cause, Disposition, Job
from horarium.policies import CatchUpPolicy
from horarium.rules.holds import Skipped
from horarium.rules.overridden import MISFIRE_GRACE, Dropped, Owed
from horarium.rules.windows import (
    dropped_ranges,
    fires_in_window,
    last_in_window,
    newest_in_window,
    next_in_window,
)

CATCH_UP_RUNS_MAX = 1_000
"""Runs that one plan creates for one job at most; of missed ones, the newest are kept."""


class Gap(NamedTuple):
    """The fire times in (after, until]."""

    after: Instant
    until: Instant


def account(
    job: Job, now: Instant, horizon: Instant, ran: Sequence[Instant], skipped: Sequence[Skipped]
) -> tuple[list[Owed], list[Dropped], list[Dropped]]:
    """Sort the fire times in (cursor, horizon] into owed ones, dropped ones and those that a person is asked about.
    `skipped`: stretches of holds whose fire times do not run, by begin; `ran`: fire times that have a row already,
    ascending."""
    cursor = job.planned_until
    first = next_in_window(job, cursor)
    if first is None or first > horizon:
        return [], [], []
    held = _held(job, cursor, horizon, ran, skipped) if skipped else []
    if first > now - MISFIRE_GRACE:
        on_time = fires_in_window(job, cursor, horizon, CATCH_UP_RUNS_MAX)
        if skipped:
            on_time = [fire for fire in on_time if not _is_skipped(fire, skipped)]
        return [Owed(fire, Cause.SCHEDULE) for fire in on_time], held, []
    asks = job.catch_up.policy is CatchUpPolicy.ASK
    keep_from = _oldest(job, first, now)
    if asks or job.catch_up.policy is CatchUpPolicy.NONE:
        keep_from = max(keep_from, now - MISFIRE_GRACE)
    late = [fire for fire in _kept(job, gaps(keep_from, now, skipped)) if fire > cursor]
    owed = [Owed(fire, Cause.SCHEDULE if fire > now - MISFIRE_GRACE else Cause.CATCH_UP) for fire in late]
    ahead = fires_in_window(job, now, horizon, CATCH_UP_RUNS_MAX)
    owed += [Owed(fire, Cause.SCHEDULE) for fire in ahead if not _is_skipped(fire, skipped)]
    until = (late[0] - 1) if late else now
    too_old = min(max(cursor, _oldest(job, first, now)), until) if asks else until
    missed, asked = (
        [
            range_
            for gap in gaps(start, end, skipped)
            for range_ in dropped_ranges(job, *gap, Disposition.MISSED, f"catch_up: {job.catch_up.policy}", ran)
        ]
        for start, end in ((cursor, too_old), (too_old, until))
    )
    return owed, [*missed, *held], asked


def gaps(after: Instant, until: Instant, skipped: Sequence[Skipped]) -> list[Gap]:
    """What these stretches leave of (after, until], oldest first."""
    found = []
    for begins_at, ends_at, _ in skipped:
        if begins_at - 1 > after:
            found.append(Gap(after, min(begins_at - 1, until)))
        after = max(after, ends_at - 1)
        if after >= until:
            return found
    return [*found, Gap(after, until)] if after < until else found


def _held(
    job: Job, after: Instant, until: Instant, ran: Sequence[Instant], skipped: Sequence[Skipped]
) -> list[Dropped]:
    """One row for each stretch with fire times; where stretches overlap, the first of them has these."""
    found: list[Dropped] = []
    for begins_at, ends_at, reason in skipped:
        end = min(ends_at - 1, until)
        start = max(begins_at - 1, after)
        if start < end:
            found += dropped_ranges(job, start, end, Disposition.HELD, reason, ran)
            after = end
    return found


def _is_skipped(fire: Instant, skipped: Sequence[Skipped]) -> bool:
    return any(begins_at <= fire < ends_at for begins_at, ends_at, _ in skipped)


def _oldest(job: Job, first: Instant, now: Instant) -> Instant:
    """After which instant late fire times are not too old."""
    window = job.catch_up.window_seconds
    return first - 1 if window is None else max(first - 1, now - to_micros(window) - 1)


def _kept(job: Job, among: Sequence[Gap]) -> list[Instant]:
    """The fire times in these gaps that run: the newest one, or the newest of all, as the policy says."""
    found: list[Instant] = []
    for gap in reversed(among):
        if job.catch_up.policy is CatchUpPolicy.LATEST:
            last = last_in_window(job, *gap)
            if last is not None:
                return [last]
        else:
            found = [*newest_in_window(job, *gap, CATCH_UP_RUNS_MAX - len(found)), *found]
            if len(found) >= CATCH_UP_RUNS_MAX:
                break
    return found
