"""Joins, worked out a second time from the runs of their members alone: each window fires at most once; where all came
it is accounted for, and where one did not come it does not run.

Only certain things are looked at: a job that was edited, or whose count or window bounds it, may leave windows out, and
ends around its definition, or a moment ago, may not be known yet.
"""

from __future__ import annotations

from collections.abc import Callable

from horarium.clock import SECOND, Instant
from horarium.model import Disposition, Job, State
from horarium.rules.joins import end_of_run, is_join, join_of, window_counted
from horarium.testing.simulate.watch import PLANNED, Books

KNOWN = 20 * SECOND
"""Within this an end is taken into account, with trouble before it."""


def check_join(books: Books, versions: list[Job], now: Instant, exact: bool, fail: Callable[[str], None]) -> int:
    """Compare the rows of a job that follows from others with the runs of these. How many windows were checked."""
    job = versions[-1]
    rows = [row for row in books.rows_of(job.id) if row.cause in PLANNED]
    covered = [row for row in rows if row.disposition is not Disposition.WITHDRAWN]
    if any(version.trigger != job.trigger or not is_join(version) for version in versions):
        return 0
    came = _came(books, job)
    whole = set.intersection(*(set(came.get(name, {})) for name in join_of(job).jobs))
    for row in covered:
        if row.state is not State.SKIPPED and row.fire_at not in whole:
            fail(f"job {job.name}: run {row.id} is for the window {row.fire_at}, in which not all had come")
    for start in sorted(whole):
        accounts = [row for row in covered if row.fire_at <= start <= (row.last_fire_at or row.fire_at)]
        if exact and len(accounts) > 1:
            fail(f"job {job.name}: {len(accounts)} rows account for its window {start}")
        if not accounts and exact and _is_certain(books, job, versions, max(came[n][start] for n in came), now):
            fail(f"job {job.name}: all had come in its window {start}, and nothing accounts for it")
    return len(whole)


def _came(books: Books, job: Job) -> dict[str, dict[Instant, Instant]]:
    """Of each member the windows in which it came, and when first."""
    found: dict[str, dict[Instant, Instant]] = {name: {} for name in join_of(job).jobs}
    for run in books.runs.values():
        end = end_of_run(run)
        start = None if end is None or end.job not in found else window_counted(job, end)
        if start is not None and end is not None:
            windows = found[end.job]
            windows[start] = min(windows.get(start, end.finished_at), end.finished_at)
    return found


def _is_certain(books: Books, job: Job, versions: list[Job], last: Instant, now: Instant) -> bool:
    """`last`: when the last of them came."""
    is_bound = any(each.fires_max is not None or each.starts_at or each.ends_at for each in versions)
    waits = any(each.joined for each in job.overrides)
    return not is_bound and not waits and job.deleted_at is None and job.created_at < last < now - KNOWN


def is_joined(versions: list[Job]) -> bool:
    """Whether the job has ever followed from others."""
    return any(map(is_join, versions))
