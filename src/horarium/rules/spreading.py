"""Where jobs that are defined together begin: spread over their interval, not all at one instant.

`every 60 s` without an anchor counts from when its job is defined. Ten thousand such jobs of one import would fire as
one, every minute, for good. Here each gets an anchor of its own, so that their first fire times, and all later ones,
lie evenly over the interval. Pure: the same jobs at the same instant give the same anchors. A job that exists keeps the
one it has, so that importing again moves nothing. One that counts from the end of its last run and has a beginning
ahead (`starts_at`) has its first run then: it is how another scheduler's next run is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from horarium.clock import Instant
from horarium.model import Job, fraction
from horarium.rules.editing import is_retimed
from horarium.rules.planning import next_fire
from horarium.triggers import Trigger, read_stored
from horarium.triggers.compose import Between, Except
from horarium.triggers.interval import Interval

GOLDEN = 0.618_033_988_749_895
"""Multiples of the golden ratio, modulo 1, lie evenly however many there are (the three-distance theorem)."""


def spread(jobs: Sequence[Job], now: Instant) -> list[Job]:
    """The jobs, whose triggers were set at `now`; those that count from then begin within one interval, evenly. Jobs of
    one interval are spread among each other, also if other jobs lie between them."""
    begun: dict[int, float] = {}
    moved: list[Job] = []
    for job in jobs:
        trigger = read_stored(job.trigger)
        period, delay = period_of(trigger, now), trigger.after_end
        if delay is not None and job.starts_at is not None and job.starts_at > now:
            moved.append(_anchored(job, job.starts_at - delay))
            continue
        if period is None:
            moved.append(job)
            continue
        share = begun.setdefault(period, fraction("spread", job.name))
        begun[period] = (share + GOLDEN) % 1
        moved.append(_anchored(job, now - int(share * period)))
    return moved


def spread_changes(pairs: Sequence[tuple[Job | None, Job]], now: Instant) -> list[Job]:
    """The second of each pair, jobs as a change leaves them, where all these changes are made together: the jobs that
    are new are spread among each other, and so are those that have a new rule."""
    jobs = [after for _, after in pairs]
    for places in (
        [place for place, (job, _) in enumerate(pairs) if job is None],
        [place for place, (job, after) in enumerate(pairs) if job is not None and is_retimed(job, after)],
    ):
        for place, after in zip(places, spread([jobs[place] for place in places], now), strict=True):
            jobs[place] = after
    return jobs


def period_of(trigger: Trigger, now: Instant) -> int | None:
    """The microseconds of the interval that counts from when its job is defined; None where the trigger does not."""
    from horarium.triggers.phrase import Phrase  # what reads English is large, and seldom needed

    match trigger:
        case Interval(anchor=None):
            return trigger.every
        case Phrase(anchor=None):
            return period_of(trigger.compiled(now), now)
        case Except() | Between():
            return period_of(trigger.trigger, now)
    return None


def _anchored(job: Job, anchor: Instant) -> Job:
    """The job counted from `anchor`, if it still fires at all."""
    moved = replace(job, anchor_at=anchor)
    if not job.enabled:
        return moved if next_fire(replace(moved, enabled=True), job.planned_until) is not None else job
    first = next_fire(moved, job.planned_until)
    return job if first is None else replace(moved, next_fire_at=first)
