"""Lists of jobs by any filter: how far is walked for a page."""

from __future__ import annotations

from horarium.model import Job
from horarium.ports import JobFilter, Page
from horarium.stores.redis.loading import Read
from horarium.stores.redis.rows import decode_job, label_texts

SCAN_STRETCH = 1_000
"""How many names or ids a filtered list looks at in one call."""
JOBS_LOOKED_AT = 3 * SCAN_STRETCH
"""How many jobs a list looks at for a page, and a stretch more."""
FINISHED_PART = 4
"""Whether a job is finished is in its row, which costs as much as this number of names."""


async def list_jobs(read: Read, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
    """See `ports.Store`."""
    prefix = where.name_prefix or ""
    bound = (f"[{prefix}" if prefix else "-") if after is None or after < prefix else f"({after}"
    upto = f"({prefix}\U0010ffff" if prefix else "+"
    found: list[Job] = []
    part = FINISHED_PART if where.finished else 1
    looked_at, stretch, stopped = 0, limit + 1, b""
    while len(found) <= limit and looked_at < JOBS_LOOKED_AT // part:
        wanted = limit + 1 - len(found)
        rows, stopped = await read(
            "list_jobs", bound, upto, wanted, stretch, *_flags(where), *label_texts(where.labels)
        )
        found += map(decode_job, rows)
        if not stopped:
            break
        looked_at, bound, stretch = looked_at + stretch, f"({stopped.decode()}", SCAN_STRETCH // part
    return _page(found, stopped, limit)


def _flags(where: JobFilter) -> tuple[str, str]:
    enabled = "" if where.enabled is None else str(int(where.enabled))
    return enabled, "" if where.finished is None else str(int(where.finished))


def _page(found: list[Job], stopped: bytes, limit: int) -> Page[Job]:
    if len(found) > limit > 0:
        return Page(tuple(found[:limit]), found[limit - 1].name)
    return Page(tuple(found[:limit]), stopped.decode() or None if limit > 0 else None)
