"""The unfinished runs of jobs, some at a time: no call brings more runs than one call may."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter

from horarium.model import Run, State
from horarium.stores.redis.loading import Read, found_all
from horarium.stores.redis.parts import parts

JOBS_OF_RUNS = 100
"""Of how many jobs the unfinished runs are asked for in one call."""
RUNS_AT_ONCE = 500
"""How many unfinished runs one call brings: some two milliseconds of the server, and as long here."""

_in_order = attrgetter("fire_at", "id")


async def unfinished_runs(read: Read, job_ids: Sequence[str]) -> dict[str, list[Run]]:
    """See `ports.Store`. Jobs of more than `RUNS_AT_ONCE` runs are read page by page: of such a job a run may be left
    out that was claimed and put back in between."""
    found: dict[str, list[Run]] = {}
    for part in parts(list(dict.fromkeys(job_ids)), JOBS_OF_RUNS):
        while part:
            counts, ids, loaded = await read("unfinished_runs", RUNS_AT_ONCE, *part)
            runs = _by_job(await found_all(read, ids, loaded))
            for job_id, count in zip(part, counts, strict=False):
                many = count < 0
                found[job_id] = (
                    await _page_by_page(read, job_id) if many else sorted(runs.get(job_id, ()), key=_in_order)
                )
            part = part[len(counts) :]
    return found


def _by_job(runs: Sequence[Run]) -> dict[str | None, list[Run]]:
    groups: dict[str | None, list[Run]] = {}
    for run in runs:
        if not run.finished:  # as one may be that did not come with the others
            groups.setdefault(run.job_id, []).append(run)
    return groups


async def _page_by_page(read: Read, job_id: str) -> list[Run]:
    """All of one job. Claimed ones come last: one that is claimed meanwhile comes twice, and counts as claimed. (So
    many are not sorted: that would hold up the event loop.)"""
    found: dict[str, Run] = {}
    bound = "+inf"
    while bound:
        ids, loaded, beyond = await read("unfinished_page", job_id, bound, RUNS_AT_ONCE)
        found.update((run.id, run) for run in await found_all(read, ids, loaded) if not run.finished)
        bound = beyond.decode()
    runs = list(found.values())
    runs.reverse()
    claimed = list(takewhile(lambda run: run.state is not State.PENDING, runs))
    del runs[: len(claimed)]
    for run in claimed:
        insort(runs, run, key=_in_order)
    return runs
