"""What people overlook in a rule, said before it is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from horarium.clock import DAY, SECOND, Instant, to_datetime
from horarium.model import Job
from horarium.rules.compiled import trigger_of
from horarium.rules.planning import job_fires
from horarium.triggers import Trigger, parse_trigger
from horarium.triggers.compose import zone_of
from horarium.triggers.zones import Gap, Zone, get_zone

GAPS_AHEAD = 400 * DAY
LEAP_FIRES = 3
"""How many fire times are looked at, to see whether all of them are on 29 February."""
YEAR = 366 * DAY


def warnings_of(job: Job, now: Instant) -> Iterator[str]:
    """What an experienced operator would say of the job's rule. Raises TooExpensive."""
    if not job.enabled:
        return
    fires = job_fires(job, now, LEAP_FIRES)
    trigger = trigger_of(job)
    zone = get_zone(zone_of(trigger))
    days = [to_datetime(zone.to_wall(fire // SECOND) * SECOND) for fire in fires]
    if days and all((day.month, day.day) == (2, 29) for day in days):
        yield f"it fires only in leap years: {', '.join(f'{day:%Y-%m-%d}' for day in days)}"
    elif fires and fires[0] > now + YEAR:
        yield f"it does not fire within a year: next on {days[0]:%Y-%m-%d}"
    yield from _of_gaps(job, trigger, zone, now)


def _of_gaps(job: Job, trigger: Trigger, zone: Zone, now: Instant) -> Iterator[str]:
    """Times of the rule that the clock skips. A policy that was set to skip them was meant."""
    if gap_policy(job.trigger) in (None, Gap.SKIP):
        return
    for start, skipped in gaps(zone, now // SECOND, (now + GAPS_AHEAD) // SECOND):
        fire = trigger.next_fire(start * SECOND - 1)
        if fire is None or fire >= (start + skipped) * SECOND:
            continue
        without = parse_trigger(with_gap(trigger.spec(), Gap.SKIP)).anchored(job.anchor_at).seeded(job.name)
        if without.next_fire(fire - 1) == fire:
            continue
        becomes = to_datetime(zone.to_wall(fire // SECOND) * SECOND)
        yield (
            f"on {becomes:%Y-%m-%d} its time does not exist in {zone.key}, where the clock skips from "
            f"{to_datetime((start + zone.segment_at(start - 1).offset) * SECOND):%H:%M} on: it runs at {becomes:%H:%M}"
        )
        return


def gaps(zone: Zone, since: int, until: int) -> Iterator[tuple[int, int]]:
    """The changes of the clock in a span that skip wall time: the second, and how many seconds are skipped."""
    at = since
    while at < until:
        segment = zone.segment_at(at)
        if segment.end >= until:
            return
        skipped = zone.segment_at(segment.end).offset - segment.offset
        if skipped > 0:
            yield segment.end, skipped
        at = segment.end


def with_gap(spec: Mapping[str, Any], gap: Gap) -> dict[str, Any]:
    """The same rule with another policy for gaps, members too."""
    changed: dict[str, Any] = dict(spec)
    if spec.get("type") in ("cron", "rrule"):
        changed["gap"] = str(gap)
    if isinstance(spec.get("trigger"), Mapping):
        changed["trigger"] = with_gap(spec["trigger"], gap)
    if isinstance(spec.get("triggers"), list):
        changed["triggers"] = [with_gap(member, gap) for member in spec["triggers"]]
    return changed


def gap_policy(spec: Mapping[str, Any]) -> Gap | None:
    """The policy of the rule, or of its first member that has one."""
    match spec.get("type"):
        case "cron":
            return Gap(spec.get("gap", Gap.RUN_AT_TRANSITION))
        case "rrule":
            return Gap(spec.get("gap", Gap.SHIFT))
    members = [spec.get("trigger"), *spec.get("triggers", ())]
    return next((found for each in members if isinstance(each, Mapping) and (found := gap_policy(each))), None)
