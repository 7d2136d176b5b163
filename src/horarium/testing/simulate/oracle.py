"""What ought to have happened, worked out a second time: every fire time of every job, by its trigger alone.

The books say how the owner's part of each job changed, and when. From that follows which fire times were owed, and by
which rule; the cursor, the plans and the policies are not looked at. Each fire time must then be in exactly one row:
a run of its own, or a skipped run whose range covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from horarium.clock import SECOND, Instant
from horarium.model import Cause, Disposition, Job, Run, State
from horarium.rules.compiled import trigger_of
from horarium.rules.missed import waits
from horarium.rules.overridden import run_moved_to
from horarium.testing.simulate.joined import check_join, is_joined
from horarium.testing.simulate.watch import PLANNED, Books

FIRES_MAX = 20_000
DECIDED = (Disposition.REJECTED, Disposition.APPROVAL_EXPIRED)
WRITING = 3 * SECOND
"""How long an edit may take, at most, from its `now` until it is written."""
LATE = 30 * SECOND
"""How long after its time a run may be planned, with trouble before it."""


def check_fires(books: Books, now: Instant, exact: bool, fail: Callable[[str], None]) -> int:
    """Compare every job's rows with its rule. How many fire times were checked. `exact` is false where the clock was
    stepped or nodes disagree on the time: then a fire time may be covered twice. Where the clock went back, a range
    that begins at a fire time which ran before can't be recorded, so nothing is compared."""
    if books.trace.clock_went_back:
        return 0
    if exact:
        books.gates.asked.check(books.rows_of, fail)
    return sum(
        check_join(books, versions, now, exact, fail)
        if is_joined(versions)
        else _check_job(books, versions, now, exact, fail)
        for versions in books.jobs.versions.values()
    )


def _check_job(books: Books, versions: list[Job], now: Instant, exact: bool, fail: Callable[[str], None]) -> int:
    job = versions[-1]
    rows = books.rows_of(job.id)
    if any(version.trigger.get("from") == "end" for version in versions):
        return _check_from_end(versions, rows, now, exact, fail)
    asked = _cover([row for row in rows if row.cause is Cause.BACKFILL])
    rows = [row for row in rows if row.cause in PLANNED]
    ran = [row for row in rows if row.state is not State.SKIPPED and row.disposition is not Disposition.WITHDRAWN]
    limits = [version.fires_max for version in versions]
    if None not in limits and len(ran) > max(limit or 0 for limit in limits) + len(versions) - 1:
        fail(f"job {job.name}: {len(ran)} runs, fires_max is {job.fires_max}")
    covered = _cover(rows)
    edits = [version.updated_at for version in versions]
    steady = [row for row in rows if not _raced(row, edits)]
    certain = _cover(steady)
    expected = {fire for stretch in _owed(versions, now) for fire in stretch}
    waiting = {each.fire_at for each in job.overrides}
    # One that was moved, and goes back to its rule once all runs are made that there may be, is owed no more.
    spent = any(version.fires_max is not None and version.fires_count >= version.fires_max for version in versions)
    for fire in sorted(expected - waiting):
        count = covered(fire) or min(1, asked(fire))
        if waits(job, fire):
            if certain(fire):
                fail(f"job {job.name}: its fire time {fire} has a row, though a person is asked about it")
            continue
        if count == 0 and not (spent and (job.id, fire) in books.gates.lifted):
            fail(f"job {job.name}: nothing accounts for its fire time {fire}")
        elif exact and certain(fire) > 1:
            fail(f"job {job.name}: {count} rows account for its fire time {fire}")
    if exact:
        _check_rows(job, steady, expected, fail)
    return len(expected)


def _check_from_end(
    versions: list[Job], rows: list[Run], now: Instant, exact: bool, fail: Callable[[str], None]
) -> int:
    """A job that counts from the end of its last run: the delay lies between each end and the next fire time, and it
    never falls silent. Around a change of the job nothing is compared."""
    job = versions[-1]
    planned = sorted((row for row in rows if row.cause in PLANNED), key=lambda row: row.fire_at)
    edits = [version.updated_at for version in versions[1:]]
    for run, following in pairwise(planned):
        version = [each for each in versions if each.updated_at <= following.created_at][-1:]
        if not exact or not version or version[0].trigger.get("from") != "end":
            continue
        if any(run.created_at - WRITING <= edit <= following.created_at + WRITING for edit in edits):
            continue
        delay = round(version[0].trigger["every_seconds"] * SECOND)
        if run.finished_at is None or following.fire_at < run.finished_at + delay:
            fail(f"job {job.name}: run {following.id} for {following.fire_at} follows too soon after {run.id}")
    last = planned[-1] if planned else None
    over = max(job.updated_at, (last.finished_at or now) if last is not None else job.created_at)
    goes_on = job.enabled and job.deleted_at is None and job.ends_at is None and job.fires_max is None
    if goes_on and job.trigger.get("from") == "end" and over + job.trigger["every_seconds"] * SECOND + LATE < now:
        fail(f"job {job.name}: nothing has followed since {over}")
    return len(planned)


def _raced(row: Run, edits: list[Instant]) -> bool:
    """Whether it was planned ahead and claimed while an edit that would have withdrawn it was being written."""
    return row.state is not State.SKIPPED and any(edit < row.fire_at <= edit + WRITING for edit in edits)


def _check_rows(job: Job, rows: list[Run], expected: set[Instant], fail: Callable[[str], None]) -> None:
    """No row without a fire time, but for those planned ahead and ended before their time."""
    for row in rows:
        if (
            row.state is State.CANCELLED
            or row.disposition in DECIDED
            # Of one that was moved, and so may have been settled before its rule was changed.
            or (row.fire_at not in expected and run_moved_to(row) is not None)
        ):
            continue
        if row.fire_at not in expected:
            fail(f"job {job.name}: row {row.id} ({row.state}) is for {row.fire_at}, which is no fire time")
        if row.fires > 1 and row.disposition is not Disposition.SKIPPED_OVERLAP:
            counted = sum(row.fire_at <= fire <= (row.last_fire_at or 0) for fire in expected)
            if counted != row.fires:
                fail(f"job {job.name}: row {row.id} counts {row.fires} fire times, there are {counted}")


def _owed(versions: list[Job], now: Instant) -> Iterator[list[Instant]]:
    """For each stretch between two changes what its rule yields in it. With `fires_max` reached, nothing more is owed;
    a pause counts only once it has ended."""
    for index, (version, following) in enumerate(zip(versions, [*versions[1:], None], strict=True)):
        start = version.created_at if version is versions[0] else version.updated_at
        end = now if following is None else following.updated_at
        if version.deleted_at is not None:
            return
        if versions[-1].deleted_at is not None:
            # What a hold or a pause kept back, over edits too, goes with the job.
            end = min(end, versions[-1].planned_until)
        end = min([end, now, *(later.updated_at for later in versions[index + 1 :])])
        if not version.enabled and not _goes_on(version, versions[index + 1 :]):
            # A backfill accounts for earlier fire times of the pause, whichever version of the job it meets.
            end = min(end, max(later.planned_until for later in versions[index:] if later.deleted_at is None))
        if version.fires_max is not None and version.fires_count >= version.fires_max:
            # Nothing is counted in a pause: the limit had been reached before it. A backfill moves the cursor there.
            end = min(end, version.planned_until if version.enabled else start)
        yield _fires(version, start, end)


def _goes_on(paused: Job, later: list[Job]) -> bool:
    """Whether the pause came to its account: the job was resumed, or its rule changed meanwhile."""
    rule = (paused.trigger, paused.starts_at, paused.ends_at)
    alive = [version for version in later if version.deleted_at is None]
    return any(version.enabled or (version.trigger, version.starts_at, version.ends_at) != rule for version in alive)


def _fires(job: Job, after: Instant, until: Instant) -> list[Instant]:
    start = after if job.starts_at is None else max(after, job.starts_at - 1)
    end = until if job.ends_at is None else min(until, job.ends_at - 1)
    return trigger_of(job).list_fires(start, end, FIRES_MAX) if start < end else []


def _cover(rows: list[Run]) -> Callable[[Instant], int]:
    singles: dict[Instant, int] = {}
    ranges: list[tuple[Instant, Instant]] = []
    for row in rows:
        if row.last_fire_at is None:
            singles[row.fire_at] = singles.get(row.fire_at, 0) + 1
        else:
            ranges.append((row.fire_at, row.last_fire_at))
    return lambda fire: singles.get(fire, 0) + sum(first <= fire <= last for first, last in ranges)
