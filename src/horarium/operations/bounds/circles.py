"""Jobs that follow from each other's runs in a circle would never run: such a definition is refused, and names it."""

from __future__ import annotations

from collections.abc import Mapping

from horarium.errors import InvalidTrigger
from horarium.model import Job
from horarium.ports import Store
from horarium.rules.joins import members_in

JOBS_MAX = 1_000
"""Jobs that are looked at for one definition."""
NONE_BESIDE: Mapping[str, Job] = {}


async def require_no_circle(
    store: Store, after: Job, before: Job | None = None, beside: Mapping[str, Job] = NONE_BESIDE
) -> None:
    """Raises InvalidTrigger if the job is to follow from its own runs, be it through others. `beside`: jobs that are
    written with it. Two new jobs at one moment see each other (`operations.jobs.defining`). Of two edits either may not
    see the other: such a circle does no harm, each of its jobs waits for the other."""
    if not members_in(after) or (before is not None and members_in(before) == members_in(after)):
        return
    reached: dict[str, str] = {}
    names = dict.fromkeys(members_in(after), after.name)
    while names and len(reached) < JOBS_MAX:
        reached |= names
        if after.name in names:
            said = " after ".join([after.name, *_way(reached, after.name)])
            raise InvalidTrigger(f"jobs: {said}: this is a circle, none of them would run", field="trigger.jobs")
        known = dict(zip(names, await store.get_jobs(list(names)), strict=True))
        jobs = [beside.get(name, known[name]) for name in names]
        names = {
            member: job.name for job in jobs if job is not None for member in members_in(job) if member not in reached
        }


def _way(reached: Mapping[str, str], name: str) -> list[str]:
    """From a job back to itself, by what follows from what."""
    way, at = [name], reached[name]
    while at != name:
        way.append(at)
        at = reached[at]
    return way[::-1]
